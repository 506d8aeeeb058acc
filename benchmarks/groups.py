"""Searches with a limit per group, beside plain ones: what they cost, and whether they find what a walk finds.

    python -m benchmarks.groups --vectors vectors.npy --out groups.json [--queries 300] [--limit 2]

`--vectors` is an .npy [N, D] of numbers; some are held out as queries. A row has a value of each of four columns:
`many` is one of a thousand, at random; `near` is the k-means cluster of its vector, one of a thousand, as a seller's
goods are alike; `coarse` is one of twenty such clusters; `most` is the same value in 99 % of the rows, and a number of
its own in the others. Each query is asked plainly and with each column, in turn first and second, in one thread: `ms`
and `plain_ms` are medians of CPU time, `ratio` is that of the sums. `recall` is recall@10 beside all rows by distance,
and `left_out` the share of queries for which a search left out groups that were full.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.lake import SCHEMA, STORAGE, Lake, arrow_rows, held_out
from icepuffin.ann_kernels.codes import kmeans
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.shaped.shaped_search import first_of_groups

K = 10
_WARM_UP = 20
"""Queries before those that are measured: the first ones read the columns"""
_COLUMNS = ("many", "near", "coarse", "most")
_DEFINITION = IndexDefinition(
    name="grouped", column="embedding", metric="l2", shards=1, target_recall=0.0, filters=_COLUMNS
)


class _GroupedLake(Lake):
    """The columns beside the vectors."""

    schema = pa.schema([*SCHEMA, *(pa.field(name, pa.int64()) for name in _COLUMNS)])
    groups: dict[str, npt.NDArray[np.int64]]

    def rows_of(self, ids: npt.NDArray[np.int64], vectors: npt.NDArray[Any]) -> pa.Table:
        rows = arrow_rows(ids, vectors)
        for name in _COLUMNS:
            rows = rows.append_column(name, pa.array(self.groups[name][ids]))
        return rows


def groups_of(vectors: npt.NDArray[np.float32], seed: int) -> dict[str, npt.NDArray[np.int64]]:
    """int64[N] of each column."""
    rng, sample = np.random.default_rng(seed), vectors[:: max(1, len(vectors) // 50_000)]
    near, coarse = (
        kmeans.assign(vectors, kmeans.train(sample, count, seed=seed))[0].astype(np.int64) for count in (1_000, 20)
    )
    most = np.where(rng.random(len(vectors)) < 0.99, -1, np.arange(len(vectors)))
    return {"many": rng.integers(0, 1_000, len(vectors)), "near": near, "coarse": coarse, "most": most}


def nearest(
    vectors: npt.NDArray[np.float32], query: npt.NDArray[np.float32], groups: npt.NDArray[np.int64], limit: int
) -> npt.NDArray[np.int64]:
    """int64[10]: the rows of a walk by distance, which passes over those of full groups."""
    order = np.argsort(((vectors - query) ** 2).sum(axis=1), kind="stable")
    return order[np.flatnonzero(first_of_groups(groups[order], limit))[:K]]


def measure(
    reader: IndexReader, queries: npt.NDArray[np.float32], wanted: list[npt.NDArray[np.int64]], name: str, limit: int
) -> dict[str, float]:
    """Figures of one column, by the rows that each query should find."""
    milliseconds: dict[bool, list[float]] = {False: [], True: []}
    recall, left_out = [], 0
    for number in range(-_WARM_UP, len(queries)):
        for is_limited in (False, True) if number % 2 else (True, False):
            options: dict[str, Any] = {"per_group": {name: limit}} if is_limited else {}
            begun = time.process_time()
            found = reader.search(queries[number], K, columns=["id"], **options)
            if number < 0:
                continue
            milliseconds[is_limited].append(1000 * (time.process_time() - begun))
            if is_limited:
                recall.append(len(np.intersect1d(found.rows["id"], wanted[number])) / K)
                left_out += "queries" in found.profile.strategy
    return {
        "plain_ms": float(np.median(milliseconds[False])),
        "ms": float(np.median(milliseconds[True])),
        "ratio": sum(milliseconds[True]) / sum(milliseconds[False]),
        "recall": float(np.mean(recall)),
        "left_out": left_out / len(queries),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--limit", type=int, default=2)
    arguments = parser.parse_args()
    queries, vectors = held_out(arguments.vectors, arguments.queries)
    _GroupedLake.groups = groups_of(vectors, 1)
    figures: dict[str, Any] = {"rows": len(vectors), "dims": vectors.shape[1]}
    with tempfile.TemporaryDirectory() as folder:
        lake = _GroupedLake(Path(folder), vectors, len(vectors), 4, _DEFINITION, 2)
        lake.index()
        reader = open_index(lake.table.refresh(), _DEFINITION, storage=STORAGE, threads=1)
        for name, groups in _GroupedLake.groups.items():
            wanted = [nearest(vectors, query, groups, arguments.limit) for query in queries]
            figures[name] = measure(reader, queries, wanted, name, arguments.limit)
    arguments.out.write_text(json.dumps(figures, indent=2) + "\n")
    print(arguments.out.read_text())


if __name__ == "__main__":
    main()
