"""The k nearest rows of each row of a DataFrame, on executors.

This is what happens between the shuffles of `icepuffin.ops.spark.knn_join`.

Left rows are sent in blocks of queries. Each stage takes and gives rows of `ROW`: a block, the partition that
the row goes to next, a number to sort by, and a pickled payload.

    split    left rows -> a row for each (block, share): those of its queries that probe a shard of the share; all
             queries and the left rows themselves with the first share
    search   -> the same with the result of the share (A)
    select   all shares of a block -> its nearest rows, and for each data file that holds some, a row to be read (C)
    read     rows of one data file, each row group once -> exact distances where they are approximate (B), and columns
    finish   -> left columns, rank, distance, columns

Spark may lose a part of a shuffle, and computes it once more. Then the left side may come in another order, or with
other values, while tasks of the last stage have given their rows already. So:

* The rows of a partition come sorted by a hash (`ROW_HASH`). A block is a function of the partition's set of rows, and
  its name has a digest of these.
* The last stage rests on a digest of the whole left side. Spark computes it once, from the shuffle of `split`, as a
  broadcast or a scalar subquery, whose value is the driver's and is lost with no executor. Each partition of the last
  stage gets a row (`EXPECTED`) with a digest of the names of its blocks. A task that has other blocks is refused,
  whichever tasks have ended before it.
* What a block's shares or data files gave is complete and fits, or is refused.
"""

import hashlib
import pickle
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icepuffin.ann_kernels.arrays import F64, I64, Bool
from icepuffin.ops.messages import plural
from icepuffin.ops.model import FileNumber
from icepuffin.ops.rows.candidates import Candidates, merge, merge_sorted
from icepuffin.ops.rows.datafile import arrow_schema, no_rows
from icepuffin.ops.rows.element_types import OF_COLUMN
from icepuffin.ops.rows.row_bytes import row_bytes
from icepuffin.ops.rows.vector_column import VectorColumnError, exact_vectors
from icepuffin.ops.search.arguments import prepare_queries
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.indexed.worker import FileCandidates, SearchRequest, SearchShare, SerializedSearchJob
from icepuffin.ops.search.source_answer import SourceAnswer
from icepuffin.ops.spark.spark_types import as_spark
from icepuffin.ops.tasks.task_runner import BroadcastBytes, received

ROW = "block string, part int, number int, payload binary"
_SCHEMA = pa.schema([("block", pa.string()), ("part", pa.int32()), ("number", pa.int32()), ("payload", pa.binary())])
ROW_HASH = "_icepuffin_row_hash"
"""Name of the column, the last one of what `split` gets, by which its rows are sorted"""
_WHOLE = -1
"""Number of the row that holds the block itself; other numbers are of data files"""
EXPECTED = -2
"""Number of a row of no block, whose payload is the digest of the names of all blocks of its `part`"""
BLOCK_BYTES = 32 << 20
"""Bytes of a block's left rows and queries, but for a block of one row"""
OUTPUT_BYTES = 16 << 20
"""Bytes of a batch of the result, but for bitmaps, and for a batch of one row"""
_ROWS_OUT = 10_000
_OWN_BYTES = 12
"""Bytes of a rank and a distance"""
_PLACE = ("files", "positions")


@dataclass(frozen=True, slots=True, eq=False)
class Join:
    """One join, the same for all tasks."""

    job: SerializedSearchJob
    request: SearchRequest
    shares: tuple[SearchShare, ...]
    lanes: int
    """Tasks that divide the blocks of one share"""
    parts: int
    """Partitions of the other shuffles"""
    vector: str
    """The left side's column of queries"""
    field_ids: tuple[int, ...]
    """Columns to attach"""
    names: tuple[str, ...]
    """Names in the result of the columns to attach"""
    reads: bool
    """Whether data files are read at all"""
    block_rows: int
    unhashed: tuple[str, ...] = ()
    """Columns of the left side of types, as maps, that Spark does not hash: `ROW_HASH` is of the other ones"""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of `ROW`, its payload decoded. That of `EXPECTED` is a text."""

    block: str
    part: int
    number: int
    payload: Any


@dataclass(frozen=True, slots=True, eq=False)
class ShareQueries:
    """The queries of a block that one share is searched for."""

    vectors: F64
    """f64[n, D] prepared"""
    numbers: I64 | None
    """int64[n]: their numbers in the block; None where they are all of it"""
    probed: Bool | None
    """bool[n, shards of the share]: the shards that each probes; None where each probes all"""
    block: "WholeBlock | None"
    """The block itself, with the first share"""


@dataclass(frozen=True, slots=True, eq=False)
class WholeBlock:
    """All queries of a block, and the left rows that they are from."""

    count: int
    """Number of queries"""
    queries: F64 | None
    """f64[Q, D] prepared; None where they are of no use any more"""
    rows: bytes
    """The left rows, as Arrow writes them"""


@dataclass(frozen=True, slots=True, eq=False)
class ShareAnswer:
    """What one share has for a block."""

    result: SourceAnswer
    """Answer to `ShareQueries`"""
    numbers: I64 | None
    """int64[n]: numbers of these queries in the block; None where they are all of it"""
    block: WholeBlock | None
    """The block itself, with the first share"""

    def of_block(self, count: int) -> Candidates:
        """Its candidates, as those of all `count` queries of the block."""
        candidates = self.result.candidates
        return candidates if self.numbers is None else candidates.spread(self.numbers, count)


@dataclass(frozen=True, slots=True, eq=False)
class FileRows:
    """Rows to read of one data file, for one block."""

    positions: npt.NDArray[np.int64]
    """int64[n] ascending, distinct"""
    ranked: FileCandidates | None
    """Candidates whose exact distances are wanted"""
    distances: npt.NDArray[np.float64] | None = None
    """float64[n] distances of `ranked`"""
    columns: pa.Table | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BlockCandidates:
    """The nearest rows of a block, before data files are read."""

    rows: bytes
    """The left rows, as Arrow writes them"""
    approximate: Candidates | None
    """Candidates to rank by exact distances; None where distances are exact already"""
    exact: Candidates

    def rows_by_file(self) -> Iterator[tuple[FileNumber, npt.NDArray[np.int64]]]:
        """The rows to read: (data file, its positions ascending and distinct), files ascending."""
        lists = [candidates for candidates in (self.exact, self.approximate) if candidates is not None]
        files, positions = (np.concatenate([getattr(item, name).ravel() for item in lists]) for name in _PLACE)
        for file in np.unique(files[files >= 0]):
            yield FileNumber(int(file)), np.unique(positions[files == file])


def split(join: Join, partition: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut the left side into blocks. Rows without a vector have no neighbours and are dropped."""
    for number, hashed in enumerate(_blocks(join, batches)):
        block = f"{partition}-{number}-{_digest_of_rows(join, hashed)}"
        rows = hashed.drop_columns([ROW_HASH])
        queries = _queries(join, rows)
        lane = (partition * 31 + number) % join.lanes
        probed = join.job.worker().probed(queries, join.request)
        whole = WholeBlock(len(queries), queries, _to_bytes(rows))
        for share in range(len(join.shares)):
            queries_of_share = _queries_of_share(join.shares[share], queries, probed, whole if share == 0 else None)
            yield _row(block, share * join.lanes + lane, share, queries_of_share)
        del hashed, rows, queries, whole, queries_of_share  # the next block is made in their place


def _digest_of_rows(join: Join, rows: pa.Table) -> str:
    digest = hashlib.blake2b(rows.column(ROW_HASH).to_numpy().tobytes(), digest_size=16)
    if join.unhashed:
        kept = rows.column(join.vector).is_valid()  # all: what a filter takes has no bytes of its own under nulls
        digest.update(_to_bytes(rows.select(join.unhashed).filter(kept).combine_chunks()))
    return digest.hexdigest()


def _queries_of_share(share: SearchShare, queries: F64, probed: Bool | None, block: WholeBlock | None) -> ShareQueries:
    """A share with files to scan has all queries; one of shards has those that probe one of them."""
    if probed is None or share.files:
        return ShareQueries(queries, None, None, block)
    of_share = probed[:, list(share.shards)]
    numbers = np.flatnonzero(of_share.any(axis=1))
    return ShareQueries(queries[numbers], numbers, of_share[numbers], block)


def _blocks(join: Join, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Left rows that have a vector, at most `block_rows` and, but for a single row, `BLOCK_BYTES` at a time."""
    batches_of_block: list[pa.RecordBatch] = []
    count, size = 0, 0
    for batch in batches:
        vectors = batch.column(join.vector)
        rows = batch.filter(vectors.is_valid()) if vectors.null_count else batch
        query_bytes = _query_bytes(rows.column(join.vector))
        while rows.num_rows:
            fitting = _fitting(rows, join.block_rows - count, BLOCK_BYTES - size, query_bytes)
            if not fitting and count:
                yield pa.Table.from_batches(batches_of_block)
                batches_of_block, count, size = [], 0, 0
                continue
            part = rows.slice(0, max(1, fitting))
            batches_of_block.append(part)
            rows = rows.slice(part.num_rows)
            count += part.num_rows
            size += part.nbytes + part.num_rows * query_bytes
    if batches_of_block:
        yield pa.Table.from_batches(batches_of_block)


def _fitting(rows: pa.RecordBatch | pa.Table, most: int, room: int, bytes_beside: int) -> int:
    """How many of the first rows, at most `most`, fit into `room` bytes with so many bytes beside each row."""
    counts = range(1, min(most, rows.num_rows) + 1)
    return bisect_right(counts, room, key=lambda count: rows.slice(0, count).nbytes + count * bytes_beside)


def _query_bytes(vectors: pa.Array) -> int:
    """Bytes of a query as f64, at most: all vectors are as long as the first, and each byte may be eight bits."""
    length = len(vectors[0].as_py()) if len(vectors) else 0
    return 8 * length * (1 if pa.types.is_nested(vectors.type) else 8)


def _queries(join: Join, rows: pa.Table) -> npt.NDArray[np.float64]:
    job = join.job.worker().job
    dims = job.opened.routing.dims if job.opened is not None else None
    try:
        column = rows.column(join.vector)
        element_type = OF_COLUMN if pa.types.is_nested(column.type) else job.element_type
        return prepare_queries(exact_vectors(column, dims, element_type), job.metric, dims)
    except VectorColumnError as error:
        raise QueryError(f"column {join.vector!r} of the left side: {error}") from error


def search(join: Join, rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Stage A: search one share for one block."""
    worker = join.job.worker()
    for row in rows:
        sent: ShareQueries = row.payload
        share, probed = join.shares[row.number], None
        if sent.probed is not None:
            probed = np.zeros((len(sent.vectors), worker.recall_model.shards), np.bool_)
            probed[:, list(share.shards)] = sent.probed
        result = worker.find(sent.vectors, share, join.request, probed)
        block = sent.block if sent.block is None or join.request.rerank else replace(sent.block, queries=None)
        answer = ShareAnswer(result, sent.numbers, block)
        yield _row(row.block, _partition_of(row.block, join.parts), row.number, answer)


def select(join: Join, rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Stage C: the results of all shares, merged; then the rows that are to be read."""
    for block, block_rows in groupby(rows, lambda row: row.block):
        parts = list(block_rows)
        if [row.number for row in parts] != list(range(len(join.shares))):
            raise _differs()
        answers: list[ShareAnswer] = [row.payload for row in parts]
        first = answers[0].block
        if first is None:
            raise ValueError("the first share has the block")
        chosen = _selected(join, answers, first)
        if not join.reads:
            yield from _output(join, chosen.rows, chosen.exact, [])
            continue
        yield _row(block, _partition_of(block, join.parts), _WHOLE, chosen)
        spread = max(1, join.parts // max(1, len(join.job.worker().job.live.files)))
        for file, positions in chosen.rows_by_file():
            part = (file * spread + _partition_of(block, spread)) % join.parts
            yield _row(block, part, file, _file_rows(file, positions, chosen.approximate, first.queries))


def _selected(join: Join, answers: Sequence[ShareAnswer], block: WholeBlock) -> BlockCandidates:
    k, parts = join.request.k, [answer.of_block(block.count) for answer in answers]
    indexed = [part for part, share in zip(parts, join.shares, strict=True) if share.shards]
    scanned = [part for part, share in zip(parts, join.shares, strict=True) if not share.shards]
    exact = merge_sorted(scanned or [Candidates.none(block.count, k)], k)
    if not indexed:
        return BlockCandidates(block.rows, None, exact)
    best = merge_sorted(indexed, max(candidates.files.shape[1] for candidates in indexed))
    if any(answer.result.approximate for answer in answers):
        return BlockCandidates(block.rows, best, exact)
    return BlockCandidates(block.rows, None, merge_sorted([best, exact], k))


def _file_rows(
    file: FileNumber,
    positions: npt.NDArray[np.int64],
    approximate: Candidates | None,
    queries: npt.NDArray[np.float64] | None,
) -> FileRows:
    ranked = None
    if approximate is not None and queries is not None:
        query, rank = np.nonzero(approximate.files == file)
        if len(query):
            ranked = FileCandidates.from_positions(file, approximate.positions[query, rank], query, queries)
    return FileRows(positions, ranked)


def read(join: Join, rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Stage B: the rows of data files; a partition's rows come sorted by file, so that each row group is read once."""
    worker = join.job.worker()
    for row in rows:
        payload, part = row.payload, _partition_of(row.block, join.parts)
        if row.number == _WHOLE:
            yield _row(row.block, part, row.number, payload)
            continue
        distances = None if payload.ranked is None else worker.rank(payload.ranked)
        file, fields = FileNumber(row.number), join.field_ids
        try:
            columns = worker.rows.take(file, fields, payload.positions) if fields else None
            sent = _row(row.block, part, row.number, FileRows(payload.positions, None, distances, columns))
        except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:  # a file that cannot be read has an error of its own
            raise QueryError(
                f"a block of queries has matched {plural(len(payload.positions), 'row')} of "
                f"{worker.job.live.files[file].path}, whose columns take over 2 GiB together: join with fewer "
                f"block_rows, a smaller k, or without the widest column ({error})"
            ) from error
        yield sent


def finish(join: Join, rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """The answer of each block."""
    for _, block_rows in groupby(rows, lambda row: row.block):
        whole, *files = block_rows  # _WHOLE sorts first
        if whole.number != _WHOLE:
            raise _differs()
        chosen: BlockCandidates = whole.payload
        read_rows = [(row.number, row.payload.positions.tolist()) for row in files]
        if read_rows != [(file, positions.tolist()) for file, positions in chosen.rows_by_file()]:
            raise _differs()
        best = chosen.exact
        if chosen.approximate is not None:
            ranked = _with_distances(chosen.approximate, files)
            best = merge([ranked, chosen.exact], join.request.k)
        yield from _output(join, chosen.rows, best, files)


def _with_distances(candidates: Candidates, files: Sequence[Row]) -> Candidates:
    """Candidates with the distances that were computed from data files, in the order of `_file_rows`."""
    distances = np.full(candidates.files.shape, np.inf)
    for row in files:
        if row.payload.distances is not None:
            distances[np.nonzero(candidates.files == row.number)] = row.payload.distances
    return Candidates(candidates.files, candidates.positions, distances).ordered(candidates.files.shape[1])


def _output(join: Join, left_rows: bytes, best: Candidates, files: Sequence[Row]) -> Iterator[pa.RecordBatch]:
    """The answer, as batches of one row or of `OUTPUT_BYTES`: each row, of either side, may be in it many times."""
    left = pa.ipc.open_stream(left_rows).read_all()
    query, rank = np.nonzero(best.files >= 0)
    sizes = row_bytes(left)[query] + _OWN_BYTES
    for row in files if join.field_ids else ():
        of_file = np.flatnonzero(best.files[query, rank] == row.number)
        rows = np.searchsorted(row.payload.positions, best.positions[query, rank][of_file])
        sizes[of_file] += row_bytes(row.payload.columns)[rows]
    ends, start = np.cumsum(sizes), 0
    while start < len(query):
        fitting = int(np.searchsorted(ends, ends[start] - sizes[start] + OUTPUT_BYTES, "right")) - start
        cell = slice(start, start + max(1, min(fitting, _ROWS_OUT)))
        yield from _output_rows(join, left, best, (query[cell], rank[cell]), files)
        start = cell.stop


def _output_rows(
    join: Join, left: pa.Table, best: Candidates, cell: tuple[I64, I64], files: Sequence[Row]
) -> Iterator[pa.RecordBatch]:
    """The rows of the answer for some (query, rank) of the candidates."""
    query, rank = cell
    rows = left.take(pa.array(query))
    rows = rows.append_column("rank", pa.array((rank + 1).astype(np.int32)))
    rows = rows.append_column("distance", pa.array(best.distances[cell]))
    if join.field_ids:
        columns = _columns(join, best.files[cell], best.positions[cell], files)
        for name, column in zip(join.names, columns.columns, strict=True):
            rows = rows.append_column(name, column)
    yield from rows.combine_chunks().to_batches()


def _columns(
    join: Join, files: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], read_rows: Sequence[Row]
) -> pa.Table:
    """The attached columns of (file, position) pairs, out of what was read, of which it copies no other row."""
    schema = join.job.worker().job.schema
    names = [str(schema.find_column_name(field_id)) for field_id in join.field_ids]
    where = np.empty(len(files), np.int64)
    start, tables = 0, [no_rows(arrow_schema(schema.select(*names))).select(names)]
    for row in read_rows:
        in_file = np.flatnonzero(files == row.number)
        wanted, inverse = np.unique(positions[in_file], return_inverse=True)
        where[in_file] = start + inverse
        columns = row.payload.columns.select(names)
        tables.append(columns.take(pa.array(np.searchsorted(row.payload.positions, wanted))))
        start += len(wanted)
    return as_spark(pa.concat_tables(tables).take(pa.array(where)))


def digest_of_names(names: Iterable[str]) -> str:
    """The payload of `EXPECTED` for blocks of these names."""
    return hashlib.sha256(",".join(sorted(names)).encode()).hexdigest()


def last_stage(
    stage: Callable[[Join, Iterable[Row]], Iterator[pa.RecordBatch]],
) -> Callable[[Join, Iterable[Row]], Iterator[pa.RecordBatch]]:
    """A stage that raises QueryError in the end where its blocks are not those that the whole left side had."""

    def checked(join: Join, rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
        names: defaultdict[int, set[str]] = defaultdict(set)
        expected: dict[int, str] = {}

        def of_blocks() -> Iterator[Row]:
            for row in rows:
                if row.number == EXPECTED:
                    expected[row.part] = row.payload
                else:
                    names[row.part].add(row.block)
                    yield row

        yield from stage(join, of_blocks())
        if any(expected.get(part) != digest_of_names(names[part]) for part in names.keys() | expected.keys()):
            raise _differs()

    return checked


def _differs() -> QueryError:
    return QueryError(
        "the left side was not the same when Spark computed it again, as rand(), dropDuplicates of some columns or a "
        "limit without an order is not: write it to a table or checkpoint it, then join that"
    )


def staged(join: bytes | BroadcastBytes, stage: Callable[[Join, Iterable[Row]], Iterator[pa.RecordBatch]]) -> Any:
    """A stage of a pickled `Join` as the body of a `mapInArrow`."""

    def body(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from stage(unpickled(join), _rows(batches))

    return body


def unpickled(join: bytes | BroadcastBytes) -> Join:
    """The join, where a task runs."""
    return pickle.loads(received(join))  # type: ignore[no-any-return]  # noqa: S301  made by our own driver


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        for at in range(batch.num_rows):
            block, part, number, payload = (batch.column(name)[at].as_py() for name in _SCHEMA.names)
            # from an earlier stage of this very job
            yield Row(block, part, number, payload.decode() if number == EXPECTED else pickle.loads(payload))  # noqa: S301


def _row(block: str, part: int, number: int, payload: Any) -> pa.RecordBatch:
    values = ([block], [part], [number], [pickle.dumps(payload)])
    arrays = [pa.array(value, field.type) for value, field in zip(values, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _partition_of(block: str, parts: int) -> int:
    return zlib.crc32(block.encode()) % parts


def _to_bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())
