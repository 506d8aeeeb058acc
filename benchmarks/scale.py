"""One table of any size, end to end: what building, opening, searching and refreshing its index cost.

    python -m benchmarks.scale --rows 1000000 --dims 128 --base vectors.npy --out scale.json

`--base` is an .npy of real vectors [M, D], such as embeddings of texts or SIFT descriptors: some 10,000 or more, of any
number type. `np.save("vectors.npy", vectors)` makes it. Each row of the table lies between one of them and one of its
near neighbours, plus noise, so that a few thousand vectors give a table of any size that has their clusters. Without
`--base` the vectors are simulated: then costs mean something, and recall does not say much. Rows go to Parquet file by
file; no step holds the table. The disk must hold the table and its indexes (see `--versions`).

Each step runs in a fresh process. What is reported of a step is of its measured part, without imports:

  build     the index of the table, from Parquet to the commit
  open      from the catalog to the first answer (one query, k = 10, with ids), in a new process at `--open-target`;
            `cold` with an empty shard cache and with the table's files out of the page cache, `warm` with what `cold`
            has left. `open_every_shard` is the same with a query that probes every shard
  search    single queries, one thread, without columns: recall beside exact search, latency, and the resident memory of
            a process that has answered each query once; in each of `--layouts` of the shard cache. With
            `--memory-limit` no more memory is there than so many bytes per vector, the pages of files included
  refresh   the version after a change: 1 % of the rows appended; 1 % deleted; files merged, two into one; a rollback
            to the first snapshot. `ratio_to_rebuild` is of the seconds, beside `build`
  versions  so many versions, each of 1 % more rows than the last: `storage_ratio` is what their files take, beside the
            file of the first. Fewer are made where the disk gets full

`steps` has for each step: seconds, core-microseconds per vector of the table, peak resident, anonymous and mapped bytes
of all its processes, bytes read and written, and bytes on disk after it. Bytes read are those of system calls, or what
the disk gave where that is more. What is measured so far is written after each step.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pyiceberg.manifest import DataFile

from benchmarks.lake import STORAGE, Lake
from benchmarks.memory_limit import limited_memory
from benchmarks.refresh_cost import append_1pct, delete_only
from benchmarks.simulated_vectors import BLOCK, SimulatedVectors, prepare
from benchmarks.step_costs import Meter, StepCosts, as_json, memory_of, run_step
from icepuffin.ann_kernels.blas_threads import one_blas_thread
from icepuffin.ann_kernels.distances.recall import recalls_of
from icepuffin.ops.cache.cache_settings import DIRECTORY as SHARD_CACHE
from icepuffin.ops.cache.cache_settings import DISK_MB, LAYOUT, LAYOUTS
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.reader import IndexReader

KS = (10, 100)
_TIES = 28
"""Rows beyond the largest k that are kept as true neighbours: some may be as near as the k-th"""
_WARM_UP = 20
_QUERY_SEED = 1
_PROCESS_BYTES = 256 << 20
"""Memory of the interpreter, its libraries and one search, beside which `--memory-limit` counts"""
_GROWTH = 0.01
_Part = TypeVar("_Part")


@dataclass(frozen=True)
class Plan:
    """What is measured. Picklable: each step gets it."""

    folder: Path
    base: Path | None
    rows: int
    dims: int | None
    files: int
    definition: IndexDefinition
    threads: int
    queries: int
    versions: int
    seed: int
    byte_valued: bool
    layouts: tuple[str, ...] = LAYOUTS[1:]
    memory_limit: float | None = None

    def vectors(self) -> SimulatedVectors:
        """Rows of the table, and those of all later appends."""
        later = 1 + _GROWTH * (self.versions + 1)
        return SimulatedVectors(self.folder, int(later * self.rows) + 1, seed=self.seed, byte_valued=self.byte_valued)

    def lake(self) -> Lake:
        """The table, once it was made."""
        return Lake(self.folder, self.vectors(), self.rows, None, self.definition, self.threads)

    def row_ranges(self) -> list[range]:
        """Rows of each data file."""
        ends = [number * self.rows // self.files for number in range(self.files + 1)]
        return [range(first, last) for first, last in pairwise(ends)]

    def reader(self) -> IndexReader:
        """The index at the head, opened from the catalog on, for one thread's searches."""
        return open_index(self.lake().table, self.definition, storage=STORAGE, threads=self.threads)

    def query_vectors(self) -> Any:
        """f32[Q, D], of the distribution of the rows."""
        vectors = SimulatedVectors(
            self.folder, self.queries, seed=self.seed + _QUERY_SEED, byte_valued=self.byte_valued
        )
        return vectors[: self.queries]


def make_table(meter: Meter, plan: Plan) -> int:
    """Step: the table, in one snapshot; returns its dimensions."""
    dims = prepare(plan.base, plan.dims, plan.folder, seed=plan.seed)
    with meter.measured():
        lake = Lake(plan.folder, plan.vectors(), plan.rows, 0, plan.definition, plan.threads)
        lake.commit_files(chain.from_iterable(_by_processes(plan, _write_files, plan.row_ranges())))
    return dims


def _write_files(plan: Plan, rows: range) -> list[DataFile]:
    return plan.lake().write_files(rows)


def find_truth(meter: Meter, plan: Plan) -> None:
    """Step: the nearest rows of each query, by comparing every one."""
    with meter.measured():
        parts = _by_processes(plan, _nearest_of, plan.row_ranges())
        ids, distances = merged_nearest(parts, max(KS) + _TIES)
        np.savez(plan.folder / "truth.npz", ids=ids, distances=distances)


def _nearest_of(plan: Plan, rows: range) -> tuple[Any, Any]:
    with one_blas_thread:
        return nearest(plan.vectors(), rows, plan.query_vectors(), max(KS) + _TIES)


def merged_nearest(parts: Iterable[tuple[Any, Any]], k: int) -> tuple[Any, Any]:
    """The k nearest of all parts, of what `nearest` returns of each; equally near ones by the order of the parts."""
    ids, distances = (np.hstack(arrays) for arrays in zip(*parts, strict=True))
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(distances, order, axis=1)


def _by_processes(plan: Plan, work: Callable[[Plan, range], _Part], parts: list[range]) -> list[_Part]:
    """`work(plan, part)` of each part: by a process per thread of the plan, or here where it has one thread."""
    if plan.threads == 1:
        return [work(plan, part) for part in parts]
    with ProcessPoolExecutor(plan.threads, multiprocessing.get_context("spawn")) as processes:
        return list(processes.map(partial(work, plan), parts))


def nearest(vectors: Any, rows: range, queries: Any, k: int) -> tuple[Any, Any]:
    """(ids int64[Q, k], squared distances f64[Q, k]) of the nearest of these rows: found in f32, ranked in f64."""
    k = min(k, len(rows))
    best_ids, best = np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0))
    limits = np.full(len(queries), np.inf)
    own = np.einsum("ij,ij->i", queries, queries)
    for start in range(rows.start, rows.stop, BLOCK):
        block = vectors[start : min(rows.stop, start + BLOCK)]
        scores = np.einsum("ij,ij->i", block, block) + own[:, None] - 2 * (queries @ block.T)
        rounding = 1e-5 * (own + float(scores.max(initial=0)))
        if not np.isfinite(limits).all() and len(block) >= k:
            limits = np.minimum(limits, np.partition(scores, k - 1, axis=1)[:, k - 1] + rounding)
        new_ids, new = np.full((len(queries), k), -1), np.full((len(queries), k), np.inf)
        for query in range(len(queries)):
            places = np.flatnonzero(scores[query] <= limits[query] + rounding[query])
            exact = ((block[places].astype(np.float64) - queries[query]) ** 2).sum(axis=1)
            order = np.argsort(exact, kind="stable")[:k]
            new_ids[query, : len(order)], new[query, : len(order)] = start + places[order], exact[order]
        best_ids, best = merged_nearest([(best_ids, best), (new_ids, new)], k)
        limits = np.minimum(limits, best[:, -1])
    return best_ids, best


def build(meter: Meter, plan: Plan) -> dict[str, Any]:
    """Step: the first version."""
    lake = plan.lake()
    with meter.measured():
        report = lake.index()
    return {"bytes": report.bytes_total, "snapshot_id": lake.head}


def open_and_answer(meter: Meter, plan: Plan, target: float | None, cold: bool) -> None:
    """Step: the first answer of a process."""
    os.environ[SHARD_CACHE] = str(plan.folder / ("cache-all" if target is None else "cache"))
    if cold:
        _forget_pages(plan.folder / "warehouse")
    query = plan.query_vectors()[0]
    with meter.measured():
        plan.reader().search(query, 10, target_recall=target, columns=["id"])


def fill_cache(meter: Meter, plan: Plan, layout: str) -> None:
    """Step: every shard in the shard cache."""
    _use_cache(plan, layout)
    with meter.measured():
        plan.reader().search(plan.query_vectors()[0], 10, columns=[])


def search(meter: Meter, plan: Plan, k: int, target: float, layout: str) -> dict[str, Any]:
    """Step: all queries, one after the other, from shards in the shard cache."""
    _use_cache(plan, layout)
    queries = plan.query_vectors()
    limit = None
    if plan.memory_limit:
        _forget_pages(plan.folder)
        limit = _PROCESS_BYTES + int(plan.memory_limit * plan.rows)
    milliseconds = []
    with limited_memory(limit):
        reader = plan.reader()
        for query in queries[:_WARM_UP]:
            reader.search(query, k, target_recall=target, columns=[])
        with meter.measured():
            for query in queries:
                begun = time.perf_counter()
                reader.search(query, k, target_recall=target, columns=[])
                milliseconds.append(1000 * (time.perf_counter() - begun))
        resident = memory_of("self")["Rss"]
        ids = np.asarray(reader.search(queries, k, target_recall=target, columns=["id"]).rows["id"]).reshape(-1, k)
    p50, p99 = np.percentile(milliseconds, (50, 99)).tolist()
    point = {"k": k, "target": target, "layout": layout, "recall": recall_of(ids, plan), "p50_ms": p50, "p99_ms": p99}
    return {**point, "resident_bytes": resident}


def _use_cache(plan: Plan, layout: str) -> None:
    os.environ |= {SHARD_CACHE: str(plan.folder / "cache-all"), DISK_MB: str(1 << 20), LAYOUT: layout}


def _forget_pages(folder: Path) -> None:
    """Put the files of the table and of the shard cache out of the page cache."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as stream:
                os.fdatasync(stream.fileno())  # pages that are not on the disk stay
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def recall_of(ids: Any, plan: Plan) -> float:
    """Mean recall of ids int64[Q, k]."""
    truth = np.load(plan.folder / "truth.npz")
    true_ids, true = truth["ids"][: len(ids)], truth["distances"][: len(ids)]
    distances = [np.where(np.isin(near, own), far, np.inf) for near, own, far in zip(true_ids, ids, true, strict=True)]
    return float(recalls_of(np.stack(distances), true[:, : ids.shape[1]]).mean())


def merge_pairs(lake: Lake) -> None:
    """Every two files of the table as one."""
    lake.merge_files(2)


CHANGES: dict[str, Callable[[Lake], None]] = {"append": append_1pct, "delete": delete_only, "compact": merge_pairs}


def refresh(meter: Meter, plan: Plan, change: str, first_snapshot: int) -> None:
    """Step: a change, and the version after it, which alone is measured."""
    lake = plan.lake()
    if change == "rollback":
        lake.table.manage_snapshots().rollback_to_snapshot(first_snapshot).commit()
    else:
        CHANGES[change](lake)
    with meter.measured():
        lake.index()


def make_versions(meter: Meter, plan: Plan) -> dict[str, Any]:
    """Step: versions of a growing table. The first is the one that the table has."""
    lake = plan.lake()
    own = lake.index().bytes_total
    before, count = puffin_bytes(plan.folder), 1
    with meter.measured():
        while count < plan.versions and shutil.disk_usage(plan.folder).free > 3 * own:
            append_1pct(lake)
            lake.index()
            count += 1
    return {"count": count, "storage_ratio": (own + puffin_bytes(plan.folder) - before) / own}


def puffin_bytes(folder: Path) -> int:
    """Bytes of all Puffin files of the table."""
    return sum(file.stat().st_size for file in (folder / "warehouse").rglob("*.puffin"))


class Report:
    """The figures so far: on the console, and in the file."""

    def __init__(self, plan: Plan, out: Path, about: dict[str, Any]) -> None:
        self._plan = plan
        self._out = out
        self._begun = time.perf_counter()
        self.figures: dict[str, Any] = {**about, "open": {}, "open_every_shard": {}, "search": [], "refresh": {}}
        self.figures["steps"] = {}

    def run(self, name: str, step: Callable[..., Any], *arguments: Any) -> tuple[Any, StepCosts]:
        """Run a step and keep its costs."""
        print(f"[{time.perf_counter() - self._begun:7.1f} s] {name} ...", file=sys.stderr, flush=True)
        result, costs = run_step(step, self._plan, *arguments)
        storage = sum(file.stat().st_size for file in (self._plan.folder / "warehouse").rglob("*") if file.is_file())
        self.figures["steps"][name] = shown = as_json(costs, self._plan.rows, storage)
        print(name, json.dumps(shown), flush=True)
        return result, costs

    def write(self) -> None:
        """Write what there is."""
        self._out.write_text(json.dumps(self.figures, indent=1))


def main() -> None:
    """Run all steps; what is done so far is written after each."""
    options = _options()
    definition = IndexDefinition(
        name="bench",
        column="embedding",
        metric="l2",
        vectors=options.vectors,
        cells=options.cells,
        shards=options.shards,
        target_recall=0.0,
    )
    about = {"rows": options.rows, "base": str(options.base) if options.base else "simulated", "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        plan = Plan(
            folder=Path(folder),
            base=options.base,
            rows=options.rows,
            dims=options.dims,
            files=-(-options.rows // options.file_rows),
            definition=definition,
            threads=options.threads,
            queries=options.queries,
            versions=options.versions,
            seed=options.seed,
            byte_valued=options.byte_valued,
            layouts=tuple(options.layouts),
            memory_limit=options.memory_limit,
        )
        measure(plan, Report(plan, options.out, about), options.targets, options.open_target)


def measure(plan: Plan, report: Report, targets: list[float], open_target: float) -> None:
    """All steps, in order."""
    figures = report.figures
    figures["dims"], _ = report.run("table", make_table)
    report.run("truth", find_truth)
    built, costs = report.run("build", build)
    figures["build"] = {
        "seconds": costs.seconds,
        "core_us_per_vector": 1e6 * costs.cpu_seconds / plan.rows,
        "peak_bytes": costs.peak_bytes,
    }
    figures["index"] = {"bytes_per_vector": built["bytes"] / plan.rows}
    report.write()
    for key, target in (("open", open_target), ("open_every_shard", None)):
        for name in ("cold", "warm"):
            _, opening = report.run(f"{key} {name}", open_and_answer, target, name == "cold")
            chosen = ("seconds", "anonymous_bytes", "bytes_read")
            figures[key][name] = {field: getattr(opening, field) for field in chosen}
            report.write()
    for layout in plan.layouts:
        report.run(f"fill cache {layout}", fill_cache, layout)
        for k, target in product(KS, targets):
            point, _ = report.run(f"search {layout} k={k} target={target}", search, k, target, layout)
            figures["search"].append(point)
            report.write()
    for change in (*CHANGES, "rollback"):
        _, refreshed = report.run(f"refresh {change}", refresh, change, built["snapshot_id"])
        figures["refresh"][change] = {
            "seconds": refreshed.seconds,
            "ratio_to_rebuild": refreshed.seconds / costs.seconds,
            "bytes_written": refreshed.bytes_written,
        }
        report.write()
    figures["versions"], _ = report.run("versions", make_versions)
    report.write()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: int(float(text)), required=True, help="such as 1e6")
    parser.add_argument("--dims", type=int, help="[default: those of the base; 128 without one]")
    parser.add_argument("--base", type=Path, help=".npy of real vectors [default: simulated clusters]")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the figures")
    parser.add_argument("--byte-valued", action="store_true", help="round vectors to whole numbers of 0 to 255")
    parser.add_argument("--vectors", default="f32", help="as the definition has it, such as f16 [default: %(default)s]")
    parser.add_argument("--cells", default="none", help="as the definition has it, such as sq4 [default: %(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="[default: %(default)s]")
    parser.add_argument("--shards", type=int, help="[default: by the size]")
    parser.add_argument("--file-rows", type=int, default=250_000, help="rows per data file [default: %(default)s]")
    parser.add_argument("--queries", type=int, default=500, help="[default: %(default)s]")
    parser.add_argument("--targets", type=float, nargs="+", default=[0.9, 0.95, 0.98], help="[default: %(default)s]")
    parser.add_argument("--open-target", type=float, default=0.95, help="of the first answer [default: %(default)s]")
    parser.add_argument("--versions", type=int, default=20, help="each takes an index of space [default: %(default)s]")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS[1:], default=LAYOUTS[1:], help="[default: %(default)s]")
    parser.add_argument(
        "--memory-limit", type=float, metavar="BYTES", help="per vector, of searches; needs root [default: none]"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path, help="folder for the table [default: the system's temporary one]")
    options = parser.parse_args()
    if options.rows < 2 * max(KS):
        parser.error(f"--rows must be {2 * max(KS)} or more")
    return options


if __name__ == "__main__":
    main()
