"""Queries by two tags each, beside vectors of bytes: how many a second, each under a condition of its own.

    python -m benchmarks.tags --vectors bytes.npy --out tags.json [--queries 2000] [--threads 2] [--keep FOLDER]

`--vectors` is an .npy [N, D] of numbers, such as `benchmarks.simulated_vectors` makes. Each row gets some ten tags of
50,000: half of them by the k-means cluster that it lies in, and all by Zipf's law, as people's tags have it. The last
rows are held out as queries. A query is a vector and two of its own tags that k rows have together, if any do: of
the shape of YFCC-10M with its bags of tags (NeurIPS'23 Big ANN Benchmarks, the filter track), on a tenth of the rows.

`matches` are the medians of the rows that match. `recall` is recall@10 beside exact search over the rows that match, of
one call for all queries; that of a call per query is the same, or this fails. `one_call` has the queries per second of
such a call, text of the conditions included, by threads of the reader; `one_call_first` of the first, which makes the
lists of rows. `call_per_query` has them by threads that call. A condition that returns is evaluated again: the cache of
a reader holds 64, and there are more. `bytes_read` are means per query, as the algorithm needs them: of the shorter
list of rows, of the bitmap or list that it is looked for in, at 64 bytes per row, and of the codes of matches.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.filters import progress
from benchmarks.lake import SCHEMA, STORAGE, Lake, arrow_rows
from icepuffin.ann_kernels.codes import kmeans
from icepuffin.ann_kernels.distances.recall import recalls_of
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.cache.cache_settings import DIRECTORY as SHARD_CACHE
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import SearchResult

K = 10
_TAGS, _PER_ROW, _CLUSTERS = 50_000, 10, 100
_DEFINITION = IndexDefinition(
    name="tagged", column="embedding", metric="l2", shards=1, target_recall=0.0, filters=("tags",)
)


def tags_of(vectors: npt.NDArray[np.float32], seed: int) -> npt.NDArray[np.int64]:
    """int64[N, 10]: tags of each row, some of them twice."""
    rng = np.random.default_rng(seed)
    centroids = kmeans.train(vectors[:: max(1, len(vectors) // 20_000)], _CLUSTERS, seed=seed)
    clusters = kmeans.assign(vectors, centroids)[0].astype(np.int64)
    shares = 1 / np.arange(1, _TAGS + 1)
    ranks = np.searchsorted(np.cumsum(shares / shares.sum()), rng.random((len(vectors), _PER_ROW)))
    ranks[:, ::2] = (ranks[:, ::2] + 400 * clusters[:, None]) % _TAGS  # each cluster has favourites of its own
    return np.asarray(np.minimum(ranks, _TAGS - 1))


class _RowsOfTags:
    """The rows that have each tag."""

    def __init__(self, tags: npt.NDArray[np.int64]) -> None:
        rows = np.arange(tags.size) // tags.shape[1]
        pairs = np.unique(tags.reshape(-1) * len(tags) + rows)
        self._rows = pairs % len(tags)
        self._starts = np.searchsorted(pairs // len(tags), np.arange(_TAGS + 1))

    def of(self, tag: int) -> npt.NDArray[np.int64]:
        return self._rows[self._starts[tag] : self._starts[tag + 1]]

    def both(self, one: int, other: int) -> npt.NDArray[np.int64]:
        """The rows that have both tags."""
        few, many = sorted((self.of(one), self.of(other)), key=len)
        places = np.minimum(np.searchsorted(many, few), max(0, len(many) - 1))
        return few[many[places] == few] if len(many) else few

    def pair(self, own: npt.NDArray[np.int64]) -> tuple[int, int]:
        """The first two tags of a row that occur together in k rows; the first two where there are none."""
        pairs = list(combinations(dict.fromkeys(own.tolist()), 2))
        return next((pair for pair in pairs if len(self.both(*pair)) >= K), pairs[0])


class TagLake(Lake):
    """A table with a column of lists of tags beside its vectors."""

    schema = pa.schema([*SCHEMA, pa.field("tags", pa.list_(pa.string()))])

    def __init__(self, tags: npt.NDArray[np.int64], *arguments: Any) -> None:
        self._tags = tags
        super().__init__(*arguments)

    def rows_of(self, ids: npt.NDArray[np.int64], vectors: npt.NDArray[Any]) -> pa.Table:
        names = pa.array([f"t{number}" for number in range(_TAGS)])
        offsets = pa.array(np.arange(len(ids) + 1, dtype=np.int32) * _PER_ROW)
        lists = pa.ListArray.from_arrays(offsets, names.take(pa.array(self._tags[ids].reshape(-1))))
        return arrow_rows(ids, vectors).append_column("tags", lists)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures."""
    write = progress()
    vectors = np.load(options.vectors, mmap_mode="r").astype(np.float32)
    tags = tags_of(vectors, options.seed)
    base, queries = vectors[: -options.queries], vectors[-options.queries :]
    rows_of = _RowsOfTags(tags[: len(base)])
    pairs = [rows_of.pair(own) for own in tags[-options.queries :]]
    write(f"{len(base):,} rows x {base.shape[1]}")
    if (folder / "catalog.db").exists():
        lake = TagLake(tags, folder, base, len(base), None, _DEFINITION, 2)
    else:
        lake = TagLake(tags, folder, base, len(base), 8, _DEFINITION, 2)
        lake.index()
    write("indexed")
    texts = [f"array_contains(tags, 't{one}') and array_contains(tags, 't{other}')" for one, other in pairs]
    rows = [rows_of.both(*pair) for pair in pairs]
    write("truth")
    opened = partial(open_index, lake.table.refresh(), _DEFINITION, storage=STORAGE)
    readers = {threads: opened(threads=threads) for threads in sorted({1, options.threads})}
    answers = [distances_by_query(reader.search(queries, K, where=texts, columns=[])) for reader in readers.values()]
    first = _seconds(lambda: opened(threads=options.threads).search(queries, K, where=texts, columns=[]), 1)
    recalls = []
    for place in range(options.checked):
        alone = readers[1].search(queries[place], K, where=texts[place], columns=[]).rows["distance"].to_numpy()
        assert all(np.array_equal(distances.get(place, []), alone) for distances in answers)
        if len(rows[place]):
            true = exact_top_k(queries[place][None], base[rows[place]], min(K, len(rows[place])), Metric.L2)[1][0]
            recalls.append(float(recalls_of(alone[None], true[None], 1e-9 * true[-1])[0]))
    shorter = np.array([min(len(rows_of.of(tag)) for tag in pair) for pair in pairs])
    figures = {
        "queries": len(queries),
        "matches": float(np.median([len(matching) for matching in rows])),
        "recall": float(np.mean(recalls)),
        "one_call": {
            threads: len(queries) / _seconds(lambda own=reader: own.search(queries, K, where=texts, columns=[]), 5)
            for threads, reader in readers.items()
        },
        "one_call_first": len(queries) / first,
        "call_per_query": {threads: _call_per_query(readers[1], queries, texts, threads) for threads in readers},
        "bytes_read": {
            "list": float(4 * shorter.mean()),
            "other list": float(64 * shorter.mean()),
            "codes": float(np.mean([len(matching) for matching in rows]) * (vectors.shape[1] + 5)),
        },
    }
    write(json.dumps(figures))
    return figures


def distances_by_query(result: SearchResult) -> dict[int, npt.NDArray[np.float64]]:
    """The distances of each query's rows, by its number."""
    numbers, distances = result.rows["query"].to_numpy(), result.rows["distance"].to_numpy()
    own, starts = np.unique(numbers, return_index=True)
    return dict(zip(own.tolist(), np.split(distances, starts[1:]), strict=True))


def _seconds(call: Callable[[], Any], times: int) -> float:
    """The least seconds of some calls."""
    seconds = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def _call_per_query(reader: IndexReader, queries: npt.NDArray[np.float32], texts: Sequence[str], threads: int) -> float:
    begun = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(
            pool.map(
                lambda pair: reader.search(pair[0], K, where=pair[1], columns=[]), zip(queries, texts, strict=True)
            )
        )
    return len(texts) / (time.perf_counter() - begun)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True, help=".npy [N, D]")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the figures")
    parser.add_argument("--queries", type=int, default=2_000, help="[default: %(default)s]")
    parser.add_argument("--checked", type=int, default=200, help="queries whose recall counts [default: %(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="[default: %(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="of the tags [default: %(default)s]")
    parser.add_argument("--keep", type=Path, help="folder that keeps the table for later runs")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(exist_ok=True)
        os.environ[SHARD_CACHE] = f"{folder}/cache"
        figures = measure(options, folder)
    options.out.write_text(json.dumps(figures, indent=1))
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
