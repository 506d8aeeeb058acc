"""What a condition costs a search of a table: keywords from half of the rows down to one in 8,000, ranges, and tags.

    python -m benchmarks.filters --vectors embeddings.npy --out filters.json [--queries 100] [--seed 0]
    python -m benchmarks.filters --vectors embeddings.npy --out filters.json --keep FOLDER

`--vectors` is an .npy f32[N, D] of any vectors. Some of them are held out as queries by a permutation that is always
the same; the table holds the others, and columns that `--seed` draws. The shapes:

  keyword s %        one column, rows with one keyword: the shares of Qdrant's benchmark of filters (August 2026)
  two keywords s %   two independent columns, rows with both keywords
  correlated         the rows of the k-means cluster that the query lies in
  anti-correlated    the rows of the cluster that is farthest from the query
  range s %          a column of doubles, rows between two bounds
  tag 1 %            a column of lists of three texts, rows with one text among them

`share` is of the rows that match, `recall` is recall@10 beside exact search over the rows that match (candidates by
f32, ranked by f64; 1 where no row matches), `p50_ms` of one query after another in a warm reader on one thread, without
columns. No reader sees a condition twice, so that no cache can answer: each names, beside its keyword or tag, one that
no row has and no other query names, or bounds between two cents that no other query has. `first_ms` is the median of
the first condition of five readers that have searched without one: it reads the columns. `parquet_bytes` is what such
a query reads of Parquet files on average: each read of Arrow's is counted where the file is opened, in queries of their
own, since that costs time. Progress, on stderr, has the processor time of a query as well: where the machine is busy,
`p50_ms` is mostly waiting.

`build_ratio` is the time to build the index with the filters named by its definition, divided by that without, both
after a small build that loads the kernels; of several pairs (`--builds`) it is that of the medians.

`--keep` leaves the table with its index in a folder. A later run with the same vectors, queries and seed opens it
there: it builds nothing, and `build_ratio` is null.
"""

import argparse
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.filter_columns import COLUMNS, SHAPES, Columns, FilterLake, Shape
from benchmarks.lake import STORAGE, Lake, held_out
from icepuffin.ann_kernels.distances.recall import recalls_of
from icepuffin.ops.cache.cache_settings import DIRECTORY as SHARD_CACHE
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.reader import IndexReader

K = 10
_WARM_UP = 10
_WARM_UP_ROWS = 2_000
_QUERIES_AT_ONCE = 16
_NEW_READERS = 5
_TIES = 20
"""Rows beyond the k nearest by f32 that are ranked by f64"""


class _CountedFile(io.RawIOBase):
    """A local file for Arrow to read from, whose reads are counted."""

    def __init__(self, file: pa.NativeFile, total: list[int]) -> None:
        super().__init__()
        self._file = file
        self._total = total

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def read(self, size: int = -1) -> bytes:
        data = bytes(self._file.read(None if size < 0 else size))
        self._total[0] += len(data)
        return data


@contextmanager
def counted_parquet() -> Iterator[list[int]]:
    """The bytes that are read of Parquet files which are opened meanwhile, in a list of one number.

    Arrow opens local files by `pa.OSFile`, and nothing but Parquet.
    """
    total, original = [0], pa.OSFile
    pa.OSFile = lambda path: pa.PythonFile(_CountedFile(original(path), total), mode="r")
    try:
        yield total
    finally:
        pa.OSFile = original


def true_distances(
    base: npt.NDArray[np.float32], queries: npt.NDArray[np.float32], columns: Columns
) -> dict[str, list[npt.NDArray[np.float64]]]:
    """For each shape and query the distances f64 of the k nearest rows that match, ascending; fewer where fewer do."""
    norms = np.einsum("ij,ij->i", base, base)
    nearest: dict[str, list[npt.NDArray[np.float64]]] = {shape.name: [] for shape in SHAPES}
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        products = norms - 2 * (queries[start : start + _QUERIES_AT_ONCE] @ base.T)
        for query, scores in enumerate(products, start):
            for shape in SHAPES:
                rows = shape.matching(columns, query)
                if len(rows) > K + _TIES:
                    rows = rows[np.argpartition(scores[rows], K + _TIES)[: K + _TIES]]
                gaps = base[rows].astype(np.float64) - queries[query]
                nearest[shape.name].append(np.sort(np.linalg.norm(gaps, axis=1))[:K])
    return nearest


def measured(
    reader: IndexReader,
    shape: Shape,
    columns: Columns,
    queries: npt.NDArray[np.float32],
    truth: Sequence[npt.NDArray[np.float64]],
) -> tuple[dict[str, Any], float]:
    """(the figures of one shape, median milliseconds of processor time of a query)."""
    shares, recalls, milliseconds, of_processor = [], [], [], []
    for number in range(min(_WARM_UP, len(queries))):
        reader.search(queries[number], K, where=shape.condition(columns, number), columns=[])
    # counted beforehand: reading whole columns between two queries would take the index out of the processor's caches
    expected = [len(shape.matching(columns, number)) for number in range(len(queries))]
    for number, (query, true) in enumerate(zip(queries, truth, strict=True)):
        where = shape.condition(columns, number)
        begun, worked = time.perf_counter(), time.thread_time()
        result = reader.search(query, K, where=where, columns=[])
        milliseconds.append(1000 * (time.perf_counter() - begun))
        of_processor.append(1000 * (time.thread_time() - worked))
        assert result.profile.matching_rows == expected[number], where
        shares.append(expected[number] / reader.row_count)
        if len(true):
            distances = np.asarray(result.rows["distance"])
            recalls.append(float(recalls_of(distances[None], true[None], 1e-9 * true[-1])[0]))
    with counted_parquet() as read:
        few = queries[: max(1, len(queries) // 4)]
        for number, query in enumerate(few):
            reader.search(query, K, where=shape.condition(columns, number), columns=[])
    figures = {
        "name": shape.name,
        "share": float(np.mean(shares)),
        "recall": float(np.mean(recalls)) if recalls else 1.0,
        "p50_ms": float(np.median(milliseconds)),
        "parquet_bytes": round(read[0] / len(few)),
    }
    return figures, float(np.median(of_processor))


def first_milliseconds(
    opened: Callable[[], IndexReader], shape: Shape, columns: Columns, queries: npt.NDArray[np.float32]
) -> float:
    """Median milliseconds of the first condition of a new reader, after a search without one."""
    milliseconds = []
    for number, query in enumerate(queries[:_NEW_READERS]):
        reader, where = opened(), shape.condition(columns, number)
        reader.search(query, K, columns=[])
        begun = time.perf_counter()
        reader.search(query, K, where=where, columns=[])
        milliseconds.append(1000 * (time.perf_counter() - begun))
    return float(np.median(milliseconds))


def with_filters(definition: IndexDefinition) -> IndexDefinition:
    """The definition that names the filters."""
    return replace(definition, name="filtered", filters=tuple(field.name for field in COLUMNS))


def build_seconds(lake: Lake, definitions: Sequence[IndexDefinition], rounds: int) -> list[float]:
    """Median seconds of building an index by each definition, in turn. The versions of the last round stay."""
    seconds: list[list[float]] = [[] for _ in definitions]
    for number in range(rounds):
        for own, definition in zip(seconds, definitions, strict=True):
            if number:
                lake.forget(definition.name)
            begun = time.perf_counter()
            lake.index(definition)
            own.append(time.perf_counter() - begun)
    return [float(np.median(own)) for own in seconds]


def progress() -> Callable[[str], None]:
    """Writes lines with the seconds since it was made, to stderr."""
    begun = time.perf_counter()

    def write(text: str) -> None:
        print(f"[{time.perf_counter() - begun:7.1f} s] {text}", file=sys.stderr, flush=True)

    return write


def measure(options: argparse.Namespace, folder: Path, write: Callable[[str], None]) -> dict[str, Any]:
    """All figures of one table."""
    queries, base = held_out(options.vectors, options.queries)
    columns = Columns(base, queries, options.seed)
    plain = IndexDefinition(name="plain", column="embedding", metric="l2", shards=options.shards, target_recall=0.0)
    filtered = with_filters(plain)
    write(f"{len(base):,} rows x {base.shape[1]}: the table")
    ratio = None
    if options.keep and (folder / "warm").exists():
        lake = FilterLake(columns, folder, base, len(base), None, filtered, options.threads)
    else:
        (folder / "warm").mkdir()
        small = base[:_WARM_UP_ROWS]
        FilterLake(columns, folder / "warm", small, len(small), 1, filtered, options.threads).index()
        lake = FilterLake(columns, folder, base, len(base), options.files, filtered, options.threads)
        write("builds")
        without, named = build_seconds(lake, (plain, filtered), options.builds)
        ratio = named / without
        write(f"{without:.1f} s without filters, {named:.1f} s with them")
    write("exact search")
    truth = true_distances(base, queries, columns)
    opened = partial(open_index, lake.table.refresh(), filtered, storage=STORAGE, threads=1)
    reader = opened()
    shapes = []
    for shape in SHAPES:
        figures, of_processor = measured(reader, shape, columns, queries, truth[shape.name])
        figures["first_ms"] = first_milliseconds(opened, shape, columns, queries)
        shapes.append(figures)
        write(f"{json.dumps(figures)}, {of_processor:.2f} ms of processor time")
    return {"shapes": shapes, "build_ratio": ratio}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the figures."""
    options = _options(arguments)
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(exist_ok=True)
        os.environ[SHARD_CACHE] = f"{folder}/cache"
        figures = measure(options, folder, progress())
    options.out.write_text(json.dumps(figures, indent=1))
    print(json.dumps(figures, indent=1))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True, help=".npy f32[N, D]")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the figures")
    parser.add_argument("--queries", type=int, default=100, help="held out of the vectors [default: %(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="of the columns [default: %(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="of a build [default: %(default)s]")
    parser.add_argument("--builds", type=int, default=1, help="pairs of builds [default: %(default)s]")
    parser.add_argument("--files", type=int, default=8, help="data files [default: %(default)s]")
    parser.add_argument("--shards", type=int, help="[default: by the size]")
    parser.add_argument("--keep", type=Path, help="folder that keeps the table for later runs")
    parser.add_argument("--scratch", type=Path, help="folder for the table [default: the system's temporary one]")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
