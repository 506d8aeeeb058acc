"""Our graph beside the peers that are installed: build time, recall, queries per second, latency.

Each system runs in a process of its own.

    python -m benchmarks.kernels [--vectors X.npy] [--queries 1000] [--systems icepuffin,diskannpy,svs,hnswlib]
        [--k 10 100] [--parts 2] [--threads 2] [--seeds 5] [--widths 20 100] [--peers PYTHON] [--diskannpy PYTHON]

Squared L2, R = 64, L = 100, alpha = 1.2. Rows are permuted, the first are held out as queries. Recall counts equal
distances as hits. With --parts N a vector is N rows in a row, joined: of a file in an order of meaning, such as by
name, these are vectors of N x D dimensions of related texts. With --seeds ours is built that many times, and recall is
reported as mean and spread. Peak memory is that of the build, above what the process had with the rows loaded; bytes
are of what a search reads. Only figures of one sitting compare, and only where nothing else ran.
`docs/performance/kernels.md` has ours.
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

from benchmarks.systems import SYSTEMS
from icepuffin.ann_kernels.distances.recall import recalls_of
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.graphs.locality import locality_order, reorder
from icepuffin.ann_kernels.metric import Metric

ROOT = Path(__file__).parents[1]
SWEEP = (10, 20, 30, 50, 100, 200)
TARGETS = (0.95, 0.99, 0.998)


def main(arguments: list[str] | None = None) -> None:
    """Time each system and print what came out."""
    options = _options(arguments)
    rows = _rows(options)
    order = np.random.default_rng(1).permutation(len(rows))
    queries, base = (np.ascontiguousarray(rows[part], np.float32) for part in np.split(order, [options.queries]))
    true = {k: exact_top_k(queries, base, k, Metric.L2)[1] for k in options.k}
    print(f"{len(base)} x {base.shape[1]}, {len(queries)} queries, {options.threads} threads, load {_load():.1f}")
    if options.seeds:
        _over_seeds(base, queries, true, options)
    for name in filter(None, options.systems.split(",")):
        result = _run(name, base, queries, options)
        if isinstance(result, str):
            print(f"{name}: skipped: {result}")
            continue
        bytes_each = result["bytes_per_vector"] and round(result["bytes_per_vector"])
        took = f"{result['seconds']:.2f} s, {result['peak_mb']:.0f} MB at the peak, {bytes_each} bytes per vector"
        print(f"{name}: built in {took}; others took {result['others_cpu']:.0%} of the CPU")
        for k in options.k:
            points = [point for point in result["points"] if point["k"] == k]
            for point in points:
                point["recall"] = recall_of(base, queries, point.pop("answer"), true[k])
            rates = ", ".join(f"{_qps_at(points, target)} at {target}" for target in TARGETS)
            print(f"  k = {k}: QPS {rates}; width: recall, QPS, p50/p99 us")
            for p in points:
                print(f"    {p['width']}: {p['recall']:.4f}, {p['qps']:.0f}, {p['p50_us']:.0f}/{p['p99_us']:.0f}")
        if result["inserted"] is not None:
            recall = recall_of(base, queries, result["inserted"], true[options.k[0]])
            print(f"  inserts: {result['insert_us']:.0f} us per vector, recall after: {recall:.4f}")
        if options.out:
            with options.out.open("a") as file:
                result.pop("inserted")
                file.write(json.dumps({"system": name, "rows": len(base), "dims": base.shape[1], **result}) + "\n")
        sys.stdout.flush()


def _over_seeds(base: Any, queries: Any, true: Any, options: argparse.Namespace) -> None:
    """Whether a graph's quality is luck: recall over builds that differ in their seed alone."""
    k = options.k[0]
    nodes = base.copy()
    reorder(nodes, locality_order(nodes, threads=options.threads))  # as before the build of a shard
    recalls = np.empty((options.seeds, len(options.widths)))
    for seed in range(options.seeds):
        graph = vamana.build(nodes, Metric.L2, vamana.VamanaParams(seed=seed), threads=options.threads)
        searcher = Searcher(graph, nodes, Metric.L2, threads=options.threads)
        for at, width in enumerate(options.widths):
            ids, _, _ = searcher.search(queries, k, search_list=width, threads=options.threads)
            recalls[seed, at] = recall_of(nodes, queries, ids, true[k])
    shown = "; ".join(
        f"{width}: {mean:.4f} ({low:.4f} to {high:.4f})"
        for width, mean, low, high in zip(options.widths, recalls.mean(0), recalls.min(0), recalls.max(0), strict=True)
    )
    print(f"recall of {options.seeds} seeds, mean (least to most), by width: {shown}", flush=True)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, help="an .npy [rows, dims]; default 20,000 x 96 of a few clusters")
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument(
        "--systems",
        default="icepuffin,diskannpy,svs,hnswlib",
        help=f"any of {', '.join(SYSTEMS)} [default: %(default)s]",
    )
    parser.add_argument("--k", type=int, nargs="+", default=[10], help="nearest rows [default: 10]")
    parser.add_argument("--parts", type=int, default=1, help="rows that are joined to one vector [default: 1]")
    parser.add_argument("--alone", type=int, default=1_000, help="queries that are also timed one by one")
    parser.add_argument("--out", type=Path, help="a file to which one line of JSON per system is added")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--seeds", type=int, default=0, help="builds of ours to tell recall's spread by")
    parser.add_argument("--insert", type=int, default=0, help="rows that are inserted into an index of the others")
    parser.add_argument("--widths", type=int, nargs="+", default=SWEEP, help="of the searches [default: %(default)s]")
    parser.add_argument("--peers", type=Path, default=ROOT / ".venv-peers/bin/python")
    parser.add_argument("--diskannpy", type=Path, default=ROOT / ".venv-diskannpy/bin/python")
    options = parser.parse_args(arguments)
    if max(options.k) > max(options.widths):
        parser.error(f"no width is {max(options.k)} or more: a beam is at least as wide as --k")
    return options


def _rows(options: argparse.Namespace) -> Any:
    if options.vectors:
        return joined_rows(np.load(options.vectors, mmap_mode="r"), options.parts)
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((200, 96))
    return (centers[rng.integers(0, 200, 21_000)] + 0.7 * rng.standard_normal((21_000, 96))).astype(np.float32)


def joined_rows(rows: Any, parts: int) -> Any:
    """[n, parts * D]: each row of [N, D] and those that follow it, joined to one."""
    last = len(rows) - parts + 1
    return np.concatenate([rows[part : last + part] for part in range(parts)], axis=1)


def _load() -> float:
    return os.getloadavg()[0]


def _cpu_seconds() -> tuple[float, float, float]:
    """CPU seconds so far: of the processes that this one waited for, of all processes, and there were in all."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    per_second = os.sysconf("SC_CLK_TCK")
    times = os.times()
    return times.children_user + times.children_system, (sum(ticks) - idle) / per_second, sum(ticks) / per_second


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
            "ks": options.k,
            "metric": "l2",
            "threads": options.threads,
            "widths": options.widths,
            "insert": options.insert,
            "alone": options.alone,
        }
        (folder / "spec.json").write_text(json.dumps(spec | {"scratch": str(folder / "scratch")}))
        np.save(folder / "base.npy", base)
        np.save(folder / "queries.npy", queries)
        counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
        environment = os.environ | dict.fromkeys(counts, str(options.threads)) | {"PYTHONPATH": str(ROOT)}
        command = [str(python), str(ROOT / "benchmarks/systems.py"), name, place]
        before = _cpu_seconds()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        ours, all_used, all_there = (now - then for now, then in zip(_cpu_seconds(), before, strict=True))
        if not (folder / "result.json").exists():
            return (done.stderr.strip().splitlines() or ["it died"])[-1]
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
        result["others_cpu"] = max(0.0, (all_used - ours) / all_there)
        with np.load(folder / "answers.npz") as answers:
            for point in result["points"]:
                point["answer"] = answers[f"{point['k']}_{point['width']}"]
            result["inserted"] = answers.get("inserted")
        return result


def recall_of(base: Any, queries: Any, answer: Any, true: Any) -> float:
    """Recall of answers int64[Q, k] beside the true distances [Q, k]."""
    recalls = []
    for query, ids, distances in zip(queries, answer, true, strict=True):
        ids = np.unique(ids[ids >= 0])  # noqa: PLW2901  # each row counts once
        near = np.sqrt(((base[ids].astype(np.float64) - query) ** 2).sum(axis=1))
        recalls.append(recalls_of(near[None], distances[None], 1e-6 * distances[-1])[0])
    return float(np.mean(recalls))


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
