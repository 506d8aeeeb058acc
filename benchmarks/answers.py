"""What the columns of an answer cost: out of row groups of data files, and out of columns that the index includes.

    python -m benchmarks.answers --out answers.json [--rows 1000000] [--dims 128] [--file-rows 250000]

The table has simulated vectors, and each file one row group. One query after another searches for 10 rows on one
thread, first by a version that includes no column, then by one that includes `title` and `year`. Per set of columns:
`p50_ms` of the whole search, `rows_p50_ms` of its last stage, which fetches the rows, `cpu_ms` per query, and bytes per
query of data files and of the index. `kept`: decoded row groups stay in memory and on disk, as in every reader;
`on_disk`: on disk alone, as most do where a table's are more than 64 MiB; `not_kept`: none does, as in a first search.
`include` has what the columns add to the version. Graphs are small ones: what is measured is the rows.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.lake import STORAGE, Lake
from benchmarks.simulated_vectors import SimulatedVectors, prepare
from icepuffin.ops.cache.cache_settings import DIRECTORY as SHARD_CACHE
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.reader import IndexReader

K = 10
INCLUDE = ("title", "year")
COLUMNS: dict[str, list[str]] = {
    "none": [],
    "id": ["id"],
    "title, year": ["title", "year"],
    "link": ["link"],
    "title, year, link": ["title", "year", "link"],
}
_WARMING = 30


class LibraryLake(Lake):
    """Rows with a title, a link and a year: all titles and links differ."""

    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("title", pa.string()),
            ("link", pa.string()),
            ("year", pa.int32()),
            ("embedding", pa.list_(pa.float32())),
        ]
    )

    def rows_of(self, ids: npt.NDArray[np.int64], vectors: npt.NDArray[Any]) -> pa.Table:
        """Rows of `schema` by their ids."""
        base = super().rows_of(ids, vectors)
        rng = np.random.default_rng([7, int(ids[0])])
        names = [f"{number:016x}" for number in rng.integers(0, 2**62, len(ids)).tolist()]
        columns = [
            base["id"],
            pa.array([f"On the {name[:7]} of {name[7:]}, volume {row}" for name, row in zip(names, ids, strict=True)]),
            pa.array([f"https://example.org/{name[::-1]}/{row}" for name, row in zip(names, ids, strict=True)]),
            pa.array(rng.integers(1900, 2026, len(ids)), pa.int32()),
            base["embedding"],
        ]
        return pa.table(columns, schema=self.schema)


def main() -> None:
    """Make the table, build, measure, include, measure."""
    options = _options()
    definition = IndexDefinition(
        name="bench", column="embedding", metric="l2", shards=1, target_recall=0.0, max_degree=24, search_list=40
    )
    with tempfile.TemporaryDirectory(dir=options.scratch) as name:
        folder = Path(name)
        os.environ[SHARD_CACHE] = f"{folder}/cache"
        prepare(None, options.dims, folder)
        vectors = SimulatedVectors(folder, options.rows)
        queries = SimulatedVectors(folder, options.queries + _WARMING, seed=99)[: options.queries + _WARMING]
        files = -(-options.rows // options.file_rows)
        lake = LibraryLake(folder, vectors, options.rows, files, definition, options.threads)
        built = lake.index()
        out: dict[str, Any] = {"rows": options.rows, "dims": options.dims, "files": files, "k": K}
        out["without"] = _all_sets(lake, definition, queries, options.target_recall)
        including = replace(definition, include=INCLUDE)
        start = time.process_time()
        report = lake.index(including)
        out["include"] = {
            "cpu_seconds": time.process_time() - start,
            "bytes": report.bytes_total - built.bytes_total,
            "bytes_per_row": (report.bytes_total - built.bytes_total) / options.rows,
            "index_bytes": built.bytes_total,
        }
        out["with"] = _all_sets(lake, including, queries, options.target_recall)
        options.out.write_text(json.dumps(out, indent=2), encoding="utf-8")


def _all_sets(lake: Lake, definition: IndexDefinition, queries: npt.NDArray[np.float32], target: float) -> Any:
    measured: dict[str, Any] = {}
    for way in ("kept", "on_disk", "not_kept"):
        for name, columns in COLUMNS.items():
            reader = open_index(lake.table.refresh(), definition, storage=STORAGE, threads=1)
            groups = reader._rows._groups  # noqa: SLF001  no other way than a table of many gigabytes
            if way != "kept":
                groups._budget = 0  # noqa: SLF001
            groups._can_write = way != "not_kept"  # noqa: SLF001
            measured.setdefault(way, {})[name] = _one_set(reader, queries, columns, target)
    return measured


def _one_set(
    reader: IndexReader, queries: npt.NDArray[np.float32], columns: list[str], target: float
) -> dict[str, float]:
    total, rows, of_files, of_index = [], [], 0, 0
    start = time.process_time()
    for number, query in enumerate(queries):
        if number == _WARMING:
            start = time.process_time()
        begun = time.perf_counter()
        profile = reader.search(query, K, columns=columns, target_recall=target).profile
        if number >= _WARMING:
            total.append((time.perf_counter() - begun) * 1e3)
            rows.append(profile.milliseconds["rows"])
            of_files += profile.bytes_read["rows"]
            of_index += profile.bytes_read.get("included", 0)
    return {
        "p50_ms": statistics.median(total),
        "rows_p50_ms": statistics.median(rows),
        "cpu_ms": (time.process_time() - start) * 1e3 / len(total),
        "file_bytes": of_files / len(total),
        "index_bytes": of_index / len(total),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dims", type=int, default=128)
    parser.add_argument("--file-rows", type=int, default=250_000)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--target-recall", type=float, default=0.95)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scratch", type=Path, help="folder for the table [default: the system's temporary one]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
