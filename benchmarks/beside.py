"""Searches by this code beside those by another checkout of it, such as one of a week ago.

    git worktree add ../before fe37fa9b && (cd ../before && sh deploy/bootstrap.sh setup)
    python -m benchmarks.beside --other ../before --out beside.json [--rows 30000] [--dims 384] [--rounds 60]

Each checkout indexes the same simulated vectors with its own environment, and keeps a process with a reader of its own.
The two processes share one core and take turns: one searches, then the other, and the next round the other way round.
So what slows the machine slows both. The figures are processor time: the `median` over the rounds of this code's time
over the other's, with its `quartiles`, and the medians `here_us` and `other_us` per search, by kind of search.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_K = 10
_WARMING = 60
_FIRST = 100
"""Queries before this one are for warming"""
_ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Let both checkouts search in turn, or be the process of one of them."""
    options = _options()
    if options.worker is not None:
        _work(options)
        return
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        _save_vectors(Path(scratch), options)
        here, other = (_start(root, Path(scratch), options) for root in (_ROOT, options.other.resolve()))
        kinds = _answer(here).split()
        common = [kind for kind in _answer(other).split() if kind in kinds]
        out = {kind: _compared(here, other, kind, options.rounds) for kind in common}
        for process in (here, other):
            process.communicate()
    for kind, figures in out.items():
        low, high = figures["quartiles"]
        print(f"{kind:<22} {figures['median']:.2f} ({low:.2f} to {high:.2f}), {figures['here_us']:,.0f} us here")
    options.out.write_text(json.dumps(out, indent=2), encoding="utf-8")


def _save_vectors(scratch: Path, options: argparse.Namespace) -> None:
    """The vectors and queries of both, so that a change of their simulation changes nothing."""
    from benchmarks.simulated_vectors import SimulatedVectors, prepare  # noqa: PLC0415  the other checkout may lack it

    prepare(None, options.dims, scratch)
    np.save(scratch / "vectors.npy", SimulatedVectors(scratch, options.rows)[: options.rows].astype(np.float32))
    queries = SimulatedVectors(scratch, _FIRST + 400, seed=9)[: _FIRST + 400]
    np.save(scratch / "queries.npy", queries.astype(np.float32))


def _start(root: Path, scratch: Path, options: argparse.Namespace) -> "subprocess.Popen[str]":
    """The process of a checkout, on one core."""
    python = root / ".venv" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{python} does not exist: run `sh deploy/bootstrap.sh setup` in {root}")
    core = str(max(os.sched_getaffinity(0)))
    environment = {**os.environ, "PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    command = [str(python), str(Path(__file__).resolve()), "--other", str(options.other), "--out", str(options.out)]
    command += ["--rows", str(options.rows), "--worker", str(scratch / ("other" if root != _ROOT else "here"))]
    return subprocess.Popen(
        ["taskset", "-c", core, *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=root,
    )  # fmt: skip


def _answer(process: "subprocess.Popen[str]", question: str = "") -> str:
    """The next line of a process, after it was sent a question."""
    if process.stdin is None or process.stdout is None:
        raise ValueError("the process has no pipes")
    if question:
        process.stdin.write(f"{question}\n")
        process.stdin.flush()
    answer = process.stdout.readline().strip()
    if not answer:
        raise SystemExit(f"a checkout's process ended with {process.wait()}; its error is above")
    return answer


def _compared(here: "subprocess.Popen[str]", other: "subprocess.Popen[str]", kind: str, rounds: int) -> dict[str, Any]:
    """The figures of one kind of search."""
    times: list[tuple[float, float]] = []
    for number in range(rounds):
        if number % 2:
            last = float(_answer(other, kind))
            times.append((float(_answer(here, kind)), last))
        else:
            first = float(_answer(here, kind))
            times.append((first, float(_answer(other, kind))))
    low, median, high = statistics.quantiles((own / before for own, before in times), n=4)
    return {
        "median": median,
        "quartiles": [low, high],
        "here_us": statistics.median(own for own, _ in times),
        "other_us": statistics.median(before for _, before in times),
    }


def _work(options: argparse.Namespace) -> None:
    """Index the vectors, then do the searches that the standard input names; answer with microseconds per search."""
    searches = _searches(options)
    queries = np.load(options.worker.parent / "queries.npy")
    for name, search in searches.items():
        for query in queries[: _WARMING if _count(name) > 2 else 2]:
            search(query)
    print(" ".join(searches), flush=True)
    for line in sys.stdin:
        name = line.strip()
        for query in queries[:3]:
            searches[name](query)
        measured = queries[_FIRST : _FIRST + _count(name)]
        begun = time.process_time_ns()
        for query in measured:
            searches[name](query)
        print((time.process_time_ns() - begun) / len(measured) / 1000, flush=True)


def _count(name: str) -> int:
    """Searches per turn."""
    return 2 if name.startswith("batch") else 15 if name == "within" else 150


def _searches(options: argparse.Namespace) -> Mapping[str, Callable[[Any], Any]]:
    """What is measured, by name: each searches for one query, but for batches."""
    os.environ["ICEPUFFIN_SHARD_CACHE"] = str(options.worker / "cache")
    from benchmarks.lake import STORAGE, Lake  # noqa: PLC0415  those of the checkout
    from icepuffin.ops.index.definitions.index_definition import IndexDefinition  # noqa: PLC0415
    from icepuffin.ops.search.opening import open_index  # noqa: PLC0415

    options.worker.mkdir()
    vectors, queries = (np.load(options.worker.parent / f"{name}.npy") for name in ("vectors", "queries"))
    definition = IndexDefinition(name="bench", column="embedding", metric="l2", shards=1, target_recall=0.0)
    lake = Lake(options.worker, vectors, options.rows, 4, definition, 1)
    lake.index()
    reader = open_index(lake.table.refresh(), definition, storage=STORAGE, threads=1)
    nearest = [reader.search(query, _K, columns=[], search_list=100).rows["distance"] for query in queries[:50]]
    distance = float(np.median([distances[-1].as_py() for distances in nearest]))
    condition = f"id < {options.rows * 2 // 3}"
    return {
        "target_recall=0.99": lambda query: reader.search(query, _K, columns=[], target_recall=0.99),
        "target_recall=0.95": lambda query: reader.search(query, _K, columns=[], target_recall=0.95),
        "search_list=50": lambda query: reader.search(query, _K, columns=[], search_list=50),
        "ids": lambda query: reader.search(query, _K, columns=["id"], search_list=50),
        "condition": lambda query: reader.search(query, _K, columns=[], search_list=50, where=condition),
        "within": lambda query: reader.within(query, distance, columns=[]),
        "batch": lambda _: reader.search(queries, _K, columns=[], search_list=50),
        "batch_k=100": lambda _: reader.search(queries, 100, columns=[], search_list=200),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="another checkout, with its environment in .venv")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--dims", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--scratch", type=Path, help="folder for both tables [default: the system's]")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
