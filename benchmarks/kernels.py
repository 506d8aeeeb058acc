"""Our graph beside the peers that are installed: build time, recall, queries per second, latency.

Each system runs in a process of its own.

    python -m benchmarks.kernels [--vectors X.npy] [--queries 1000] [--systems icepuffin,diskannpy,svs,hnswlib]
        [--threads 2] [--seeds 5] [--widths 20 70] [--peers PYTHON] [--diskannpy PYTHON]

Squared L2, k = 10, R = 64, L = 100, alpha = 1.2. Rows are permuted, the first are held out as queries. Recall counts
equal distances as hits. With --seeds ours is built that many times, and recall is reported as mean and spread. Only
figures of one sitting compare, and only where nothing else ran. `docs/performance/kernels.md` has ours.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from icepuffin.ann_kernels import vamana
from icepuffin.ann_kernels.graph_search import Searcher
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.top_k import exact_top_k

ROOT = Path(__file__).parents[1]
K = 10
SWEEP = (10, 20, 30, 50, 100, 200)
TARGETS = (0.95, 0.99, 0.998)


def main(arguments: list[str] | None = None) -> None:
    """Time each system and print what came out."""
    options = _options(arguments)
    rows = _rows(options)
    order = np.random.default_rng(1).permutation(len(rows))
    queries, base = (np.ascontiguousarray(rows[part], np.float32) for part in np.split(order, [options.queries]))
    true = exact_top_k(queries, base, K, Metric.L2)[1]
    print(f"{len(base)} x {base.shape[1]}, {len(queries)} queries, {options.threads} threads, load {_load():.1f}")
    line = "{:12} {:>8} {:>8}  " + "{:>9} " * len(TARGETS) + " {}"
    print(line.format("system", "build s", "peak MB", *(f"QPS@{t}" for t in TARGETS), "width: recall, QPS, p50/p99 us"))
    if options.seeds:
        _over_seeds(base, queries, true, options)
    for name in filter(None, options.systems.split(",")):
        result = _run(name, base, queries, options)
        if isinstance(result, str):
            print(f"{name:12} skipped: {result}")
            continue
        points = result["points"]
        for point in points:
            point["recall"] = _recall(base, queries, point.pop("answer"), true)
        rates = [_qps_at(points, target) for target in TARGETS]
        shown = "; ".join(
            f"{p['width']}: {p['recall']:.4f}, {p['qps']:.0f}, {p['p50_us']:.0f}/{p['p99_us']:.0f}" for p in points
        )
        print(line.format(name, f"{result['seconds']:.2f}", f"{result['peak_mb']:.0f}", *rates, shown), flush=True)
        if options.insert:
            recall = _recall(base, queries, result["inserted"], true)
            print(f"{'':12} inserts: {result['insert_us']:.0f} us per vector, recall after: {recall:.4f}", flush=True)


def _over_seeds(base: Any, queries: Any, true: Any, options: argparse.Namespace) -> None:
    """Whether a graph's quality is luck: recall over builds that differ in their seed alone."""
    recalls = np.empty((options.seeds, len(options.widths)))
    for seed in range(options.seeds):
        graph = vamana.build(base, Metric.L2, vamana.VamanaParams(seed=seed), threads=options.threads)
        searcher = Searcher(graph, base, Metric.L2, threads=options.threads)
        for at, width in enumerate(options.widths):
            ids, _, _ = searcher.search(queries, K, search_list=width, threads=options.threads)
            recalls[seed, at] = _recall(base, queries, ids, true)
    shown = "; ".join(
        f"{width}: {mean:.4f} ({low:.4f} to {high:.4f})"
        for width, mean, low, high in zip(options.widths, recalls.mean(0), recalls.min(0), recalls.max(0), strict=True)
    )
    print(f"recall of {options.seeds} seeds, mean (least to most), by width: {shown}", flush=True)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, help="an .npy [rows, dims]; default 20,000 x 96 of a few clusters")
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--systems", default="icepuffin,diskannpy,svs,hnswlib")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--seeds", type=int, default=0, help="builds of ours to tell recall's spread by")
    parser.add_argument("--insert", type=int, default=0, help="rows that are inserted into an index of the others")
    parser.add_argument("--widths", type=int, nargs="+", default=SWEEP, help="of the searches [default: %(default)s]")
    parser.add_argument("--peers", type=Path, default=ROOT / ".venv-peers/bin/python")
    parser.add_argument("--diskannpy", type=Path, default=ROOT / ".venv-diskannpy/bin/python")
    return parser.parse_args(arguments)


def _rows(options: argparse.Namespace) -> Any:
    if options.vectors:
        return np.load(options.vectors, mmap_mode="r")
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((200, 96))
    return (centers[rng.integers(0, 200, 21_000)] + 0.7 * rng.standard_normal((21_000, 96))).astype(np.float32)


def _load() -> float:
    return os.getloadavg()[0]


def _run(name: str, base: Any, queries: Any, options: argparse.Namespace) -> dict[str, Any] | str:
    """The system's result, or why there is none."""
    python = {"icepuffin": Path(sys.executable), "diskannpy": options.diskannpy}.get(name, options.peers)
    if not python.exists():
        wanted = "diskannpy" if name == "diskannpy" else "peers"
        return f"no {python}; make it as benchmarks/requirements-{wanted}.txt says"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "scratch").mkdir()
        spec = {
            "R": 64,
            "L": 100,
            "alpha": 1.2,
            "k": K,
            "metric": "l2",
            "threads": options.threads,
            "sweep": options.widths,
        }
        spec["insert"] = options.insert
        (folder / "spec.json").write_text(json.dumps(spec | {"scratch": str(folder / "scratch")}))
        np.save(folder / "base.npy", base)
        np.save(folder / "queries.npy", queries)
        counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
        environment = os.environ | dict.fromkeys(counts, str(options.threads)) | {"PYTHONPATH": str(ROOT)}
        command = [str(python), str(ROOT / "benchmarks/systems.py"), name, place]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if not (folder / "result.json").exists():
            return (done.stderr.strip().splitlines() or ["it died"])[-1]
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
        with np.load(folder / "answers.npz") as answers:
            for point in result["points"]:
                point["answer"] = answers[str(point["width"])]
            result["inserted"] = answers["inserted"] if options.insert else None
        return result


def _recall(base: Any, queries: Any, answer: Any, true: Any) -> float:
    near = np.sqrt(((base[answer].astype(np.float64) - queries[:, None]) ** 2).sum(axis=2))
    return float((near <= true[:, -1:] * (1 + 1e-6)).mean())


def _qps_at(points: list[dict[str, Any]], target: float) -> str:
    """Interpolated between the two points around the target: log QPS over log (1 - recall)."""
    ordered = sorted(points, key=lambda point: float(point["recall"]))
    if ordered[0]["recall"] >= target:
        return f">={ordered[0]['qps']:.0f}"
    for low, high in itertools.pairwise(ordered):
        if low["recall"] < target <= high["recall"]:
            near, far, wanted = (np.log(max(1 - recall, 1e-5)) for recall in (high["recall"], low["recall"], target))
            share = (far - wanted) / (far - near)
            return f"{np.exp(np.log(low['qps']) * (1 - share) + np.log(high['qps']) * share):.0f}"
    return "-"


if __name__ == "__main__":
    main()
