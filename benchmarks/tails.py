"""What a freshness tail costs a search: without one, read from data files, and kept in memory.

    python -m benchmarks.tails --out tails.json [--rows 1000000] [--dims 128] [--share 0.1] [--target-recall 0.95]
    python -m benchmarks.tails --out tails.json --keep FOLDER

The table has simulated vectors and an index; then rows are appended in one file, a `--share` of those before. Two
readers answer the same queries in turn, on one thread, for 10 rows and without columns: one at the snapshot before the
tail (`without`), one that keeps it (`kept`); then some queries are for one that reads it each time (`scanned`). Each:
`cpu_ms` and `p50_ms` of a query, medians, and recall@10 beside exact search. `ratio` is the processor time of `kept`
over that of `without`. `making` has the processor time of the first and the second query of a new reader that keeps the
tail (medians of five), and the memory of a row.

`--keep` leaves the table in a folder, where a later run with the same numbers finds it.
"""

import argparse
import json
import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.lake import STORAGE, Lake
from benchmarks.simulated_vectors import SimulatedVectors, prepare
from icepuffin.ann_kernels.distances.recall import recalls_of
from icepuffin.ops.cache import CacheSettings, use_settings
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import SearchResult

K = 10
DEFINITION = IndexDefinition(name="bench", column="embedding", metric="l2", target_recall=0.0)
_WARMING = 10
_SCANNED = 10
"""Queries that read the data files of the tail"""
_FILES = 4
_OPENED = 5
"""New readers whose first queries are measured"""


def main() -> None:
    """Make the table or open it, and measure."""
    options = _options()
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.scratch)))
        lake = _lake(folder, options)
        queries = SimulatedVectors(folder, options.queries + _WARMING, seed=99)[: options.queries + _WARMING]
        out = {"rows": options.rows, "dims": options.dims, "tail": _tail_rows(options), "k": K}
        for target in (None, options.target_recall):
            out["default" if target is None else f"target {target}"] = _measured(lake, folder, queries, target)
        out["making"] = _making(lake, folder, queries)
        options.out.write_text(json.dumps(out, indent=2), encoding="utf-8")


def _tail_rows(options: argparse.Namespace) -> int:
    return int(options.rows * options.share)


def _lake(folder: Path, options: argparse.Namespace) -> Lake:
    whole = options.rows + _tail_rows(options)
    is_new = not (folder / "catalog.db").exists()
    if is_new:
        folder.mkdir(exist_ok=True)
        prepare(None, options.dims, folder)
    vectors = SimulatedVectors(folder, whole)
    lake = Lake(folder, vectors, options.rows, _FILES if is_new else None, DEFINITION, options.threads)
    if is_new:
        os.environ["ICEPUFFIN_SHARD_CACHE"] = f"{folder}/cache"
        lake.index()
        lake.append(_tail_rows(options))
    lake.table.refresh()
    return lake


def _measured(lake: Lake, folder: Path, queries: npt.NDArray[np.float32], target: float | None) -> dict[str, Any]:
    settings = CacheSettings(directory=folder / "cache")

    def opened(*, tail_bytes: int = settings.tail_bytes, snapshot: int | None = None) -> IndexReader:
        use_settings(replace(settings, tail_bytes=tail_bytes))
        reader = open_index(lake.table, DEFINITION, snapshot=snapshot, storage=STORAGE, threads=1)
        reader.search(queries[0], K, columns=[], target_recall=target)
        return reader

    def once(reader: IndexReader, query: npt.NDArray[np.float32]) -> tuple[float, float, SearchResult]:
        use_settings(settings if reader is not readers["scanned"] else replace(settings, tail_bytes=0))
        begun, cpu_begun = time.perf_counter(), time.process_time()
        result = reader.search(query, K, columns=[], target_recall=target)
        return (time.perf_counter() - begun) * 1e3, (time.process_time() - cpu_begun) * 1e3, result

    before = lake.table.history()[-2].snapshot_id
    readers = {"without": opened(snapshot=before), "scanned": opened(tail_bytes=0), "kept": opened()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in readers}
    answers: dict[str, list[SearchResult]] = {name: [] for name in readers}
    for names, count in ((("without", "kept"), len(queries)), (("scanned",), _WARMING + _SCANNED)):
        for number, query in enumerate(queries[:count]):
            for name in names:
                elapsed, cpu, result = once(readers[name], query)
                if number >= _WARMING:
                    times[name].append((elapsed, cpu))
                    answers[name].append(result)
    out: dict[str, Any] = {}
    for name, reader in readers.items():
        p50, cpu = np.median(times[name], axis=0).tolist()
        exact = open_exact(lake.table, "embedding", "l2", snapshot=reader.snapshot_id, storage=STORAGE)
        true = np.asarray(exact.search(queries[_WARMING:], K, columns=[]).rows["distance"]).reshape(-1, K)
        distances = np.stack([np.asarray(answer.rows["distance"]) for answer in answers[name]])
        recall = float(recalls_of(distances, true[: len(distances)]).mean())
        out[name] = {"p50_ms": p50, "cpu_ms": cpu, "recall": recall}
        out[name]["tail"] = answers[name][-1].profile.tail
        out[name]["bytes_read"] = sum(answers[name][-1].profile.bytes_read.values())
    out["ratio"] = out["kept"]["cpu_ms"] / out["without"]["cpu_ms"]
    return out


def _making(lake: Lake, folder: Path, queries: npt.NDArray[np.float32]) -> dict[str, float]:
    """The first two queries of new readers, which search all shards, and what the tail in memory takes."""
    use_settings(CacheSettings(directory=folder / "cache"))
    cpu_ms = []
    for number in range(_OPENED):
        reader = open_index(lake.table, DEFINITION, storage=STORAGE, threads=1)
        cpu_ms.append([])
        for query in queries[2 * number : 2 * number + 2]:
            begun = time.process_time()
            reader.search(query, K, columns=[])
            cpu_ms[-1].append((time.process_time() - begun) * 1e3)
    first, second = np.median(cpu_ms, axis=0).tolist()
    kept = reader.kept_tail
    return {"first_cpu_ms": first, "second_cpu_ms": second, "bytes_per_row": kept.bytes / kept.rows}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dims", type=int, default=128)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--target-recall", type=float, default=0.95)
    parser.add_argument("--threads", type=int, default=2, help="threads of the build")
    parser.add_argument("--scratch", type=Path, help="folder for the table [default: the system's temporary one]")
    parser.add_argument("--keep", type=Path, help="folder that keeps the table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
