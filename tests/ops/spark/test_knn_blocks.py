"""The stages of a kNN join, without Spark: blocks follow from rows, and what does not fit together is refused."""

import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from icepuffin.ops.model import FileNumber
from icepuffin.ops.rows.candidates import Candidates
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.indexed.worker import FileCandidates, SearchShare
from icepuffin.ops.search.source_answer import SourceAnswer
from icepuffin.ops.spark import knn_blocks
from icepuffin.ops.spark.knn_blocks import (
    EXPECTED,
    ROW_HASH,
    BlockCandidates,
    FileRows,
    Join,
    Row,
    ShareAnswer,
    WholeBlock,
    digest_of_names,
    finish,
    last_stage,
    read,
    select,
    split,
)
from tests.conftest import queries

JOB: Any = SimpleNamespace(
    worker=lambda: SimpleNamespace(
        job=SimpleNamespace(opened=None, element_type="column", metric="l2"), probed=lambda *_: None
    )
)
REQUEST: Any = SimpleNamespace(k=2, rerank=False)
JOIN = Join(JOB, REQUEST, (SearchShare(),), 1, 4, "query", (), (), True, 5)
DIFFERS = "the left side was not the same"


def left_rows(numbers: Sequence[int], texts: Sequence[str] | None = None) -> pa.RecordBatch:
    """Rows as Spark gives them to `split`, by the number that stands for their hash."""
    vectors = queries(20)[list(numbers)].tolist()
    texts = texts or [f"text {number}" for number in numbers]
    facts = pa.array([[(text, 1)] for text in texts], pa.map_(pa.string(), pa.int32()))
    return pa.record_batch({"text": texts, "facts": facts, "query": vectors, ROW_HASH: pa.array(numbers, pa.int64())})


def names(join: Join, batches: Iterable[pa.RecordBatch], partition: int = 0) -> list[str]:
    """Names of the blocks, one row each as there is one share."""
    return [batch["block"][0].as_py() for batch in split(join, partition, batches)]


def test_blocks_are_the_same_however_rows_come_in_batches() -> None:
    whole = names(JOIN, [left_rows(range(12))])
    assert len(whole) == len({*whole}) == 3
    assert names(JOIN, [left_rows(range(3)), left_rows(range(3, 12))]) == whole


def test_a_block_with_another_row_has_another_name() -> None:
    whole = names(JOIN, [left_rows(range(12))])
    other = names(JOIN, [left_rows([*range(6), 15, *range(7, 12)])])
    assert [first == second for first, second in zip(whole, other, strict=True)] == [True, False, True]
    assert not {*whole} & {*names(JOIN, [left_rows(range(12))], partition=1)}


def test_a_block_has_another_name_where_a_column_differs_that_spark_does_not_hash() -> None:
    join = replace(JOIN, unhashed=("facts",))
    texts = [f"text {number}" for number in range(5)]
    same, other = ([left_rows(range(5), [*texts[:4], last])] for last in (texts[4], "other"))
    assert names(join, same) == names(join, [left_rows(range(5))])
    assert names(join, same) != names(join, other)


def test_rows_without_a_vector_are_in_no_block() -> None:
    rows = left_rows(range(4))
    vectors = pa.array([None, *rows["query"].to_pylist()[1:3], None], rows["query"].type)
    assert names(JOIN, [rows.set_column(2, "query", vectors)]) == names(JOIN, [left_rows([1, 2])])


def test_a_query_without_a_number_is_reported_with_its_column() -> None:
    rows = left_rows([0]).set_column(2, "query", pa.array([[1.0, None]]))
    with pytest.raises(QueryError, match=r"^column 'query' of the left side: .*row 0"):
        names(JOIN, [rows])


def wide_rows(count: int, size: int) -> pa.RecordBatch:
    return left_rows(range(count), ["x" * size] * count)


def test_a_block_has_the_same_name_whatever_bytes_lie_under_nulls() -> None:
    join, valid = replace(JOIN, unhashed=("facts",)), pa.py_buffer(bytes([0b101]))
    blocks = []
    for under_null in (0, 7):
        values = pa.Array.from_buffers(pa.int32(), 3, [valid, pa.array([1, under_null, 3], pa.int32()).buffers()[1]])
        facts = pa.MapArray.from_arrays(pa.array(range(4), pa.int32()), pa.array(["a", "b", "c"]), values)
        blocks.append(names(join, [left_rows(range(3)).set_column(1, "facts", facts)]))
    assert blocks[0] == blocks[1]


def test_a_block_is_gone_when_the_next_is_made() -> None:
    """In memory are the batch before, the one of the block before, and what was sent of that."""

    def allocated() -> int:
        return pa.total_allocated_bytes() + tracemalloc.get_traced_memory()[0]

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(6):
            held.append(allocated() - before)
            yield left_rows(range(5), ["a" * (1 << 20)] * 5)

    held: list[int] = []
    tracemalloc.start()
    try:
        before = allocated()
        one = left_rows(range(5), ["a" * (1 << 20)] * 5)
        size = allocated() - before
        del one
        for _ in split(JOIN, 0, batches()):
            pass
    finally:
        tracemalloc.stop()
    assert max(held) < 4 * size


def test_a_block_has_few_bytes_however_wide_its_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for a row that is larger by itself. Rows are not lost by it, and the blocks do not depend on the batches."""
    monkeypatch.setattr(knn_blocks, "BLOCK_BYTES", 10_000)
    join = replace(JOIN, block_rows=8)
    for size, rows_per_block in ((10, [8, 4]), (4_000, [2] * 6), (9_000, [1] * 12), (90_000, [1] * 12)):
        rows = wide_rows(12, size).drop_columns(["facts"])
        blocks = [*knn_blocks._blocks(join, [rows])]
        assert [block.num_rows for block in blocks] == rows_per_block
        assert [number for block in blocks for number in block[ROW_HASH].to_pylist()] == [*range(12)]
        assert names(join, [rows]) == names(join, [rows.slice(0, 5), rows.slice(5)])


def test_a_block_is_full_by_its_rows_and_their_queries_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [left_rows([number]).drop_columns(["facts"]) for number in range(7)]
    size = max(row.nbytes for row in rows)
    monkeypatch.setattr(knn_blocks, "_query_bytes", lambda _: size)
    monkeypatch.setattr(knn_blocks, "BLOCK_BYTES", 7 * size)
    assert [block.num_rows for block in knn_blocks._blocks(replace(JOIN, block_rows=8), rows)] == [3, 3, 1]
    whole = pa.Table.from_batches(rows).combine_chunks()
    assert knn_blocks._fitting(whole, 7, whole.slice(0, 4).nbytes + 4 * 10_000, 10_000) == 4


def test_a_query_may_be_a_list_of_numbers_or_a_number_for_each_bit() -> None:
    assert knn_blocks._query_bytes(pa.array([[1.0, 2.0, 3.0]])) == 3 * 8
    assert knn_blocks._query_bytes(pa.array([b"abc"])) == 3 * 8 * 8
    assert knn_blocks._query_bytes(pa.array([], pa.binary())) == 0


def test_each_share_has_tasks_of_its_own_among_which_blocks_are_divided() -> None:
    join = replace(JOIN, shares=(SearchShare(),) * 3, lanes=2)
    rows = [row for batch in split(join, 0, [left_rows(range(12))]) for row in batch.to_pylist()]
    assert [row["part"] for row in rows] == [0, 2, 4, 1, 3, 5, 0, 2, 4]


@pytest.mark.parametrize(
    ("k", "oversample", "shares", "expected"),
    [(10, 1, 8, 2_048), (150, 1, 8, 436), (10, 4, 100, 1_048), (32, 3, 1, 512), (2**40, 1, 1, 1)],
)
def test_a_block_reads_few_rows_and_has_few_candidates(k: int, oversample: int, shares: int, expected: int) -> None:
    from icepuffin.ops.spark.knn_join import _bounded  # noqa: PLC0415  imports pyspark

    request: Any = SimpleNamespace(k=k, rerank=oversample > 1, parameters=SimpleNamespace(oversample=oversample))
    assert _bounded(2_048, request, shares) == expected
    assert _bounded(1, request, shares) == 1


def test_batches_of_the_result_have_few_bytes_however_often_a_row_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn_blocks, "OUTPUT_BYTES", 100_000)
    best = Candidates(*(np.zeros((4, 50), kind) for kind in (np.int64, np.int64, np.float64)))
    for size, most in ((1_000, 100_000), (30_000, 100_000), (300_000, 301_000)):
        rows = wide_rows(4, size).drop_columns([ROW_HASH, "facts"])
        batches = [*knn_blocks._output(JOIN, knn_blocks._to_bytes(pa.Table.from_batches([rows])), best, [])]
        assert max(batch.nbytes for batch in batches) <= most
        assert sum(batch.nbytes for batch in batches) > (len(batches) - 8) * 0.5 * most
        ranks = [rank for batch in batches for rank in batch["rank"].to_pylist()]
        assert ranks == [*range(1, 51)] * 4


def test_batches_of_the_result_have_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn_blocks, "_ROWS_OUT", 7)
    best = Candidates(*(np.zeros((2, 10), kind) for kind in (np.int64, np.int64, np.float64)))
    rows = pa.Table.from_batches([wide_rows(2, 3).drop_columns([ROW_HASH, "facts"])])
    batches = knn_blocks._output(JOIN, knn_blocks._to_bytes(rows), best, [])
    assert [batch.num_rows for batch in batches] == [7, 7, 6]


@pytest.mark.parametrize("shares", [[0], [1], [0, 0, 1], [0, 1, 2]], ids=str)
def test_a_block_that_some_share_has_not_searched_once_is_refused(shares: list[int]) -> None:
    answer = ShareAnswer(SourceAnswer(Candidates.none(2, 2), 2, "scan"), None, WholeBlock(2, None, b""))
    join = replace(JOIN, shares=(SearchShare(),) * 2)
    with pytest.raises(QueryError, match=DIFFERS):
        list(select(join, [Row("a", 0, number, answer) for number in shares]))


def test_columns_of_matched_rows_come_in_batches_of_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all of a block's together are more than Arrow has in one array."""
    monkeypatch.setattr(knn_blocks, "OUTPUT_BYTES", 10_000)
    monkeypatch.setattr(knn_blocks, "as_spark", lambda rows: rows)
    schema = Schema(NestedField(1, "found", StringType()))
    worker = SimpleNamespace(job=SimpleNamespace(schema=schema))
    join = replace(JOIN, job=SimpleNamespace(worker=lambda: worker), field_ids=(1,), names=("match",))  # type: ignore[arg-type]
    widths = np.where(np.arange(40) == 7, 9_000, 300)  # one of them is far wider than their mean
    texts = {file: [f"{file} {position} " + "x" * widths[position] for position in range(40)] for file in (0, 3)}
    files = [
        Row("a", 0, file, FileRows(np.arange(40), None, columns=pa.table({"found": texts[file]}))) for file in texts
    ]
    rng = np.random.default_rng(1)
    positions = np.where(rng.random((6, 30)) < 0.5, 7, rng.integers(0, 40, (6, 30)))
    best = Candidates(rng.choice([0, 3], (6, 30)), positions, np.zeros((6, 30)))
    rows = pa.Table.from_batches([left_rows(range(6)).drop_columns([ROW_HASH, "facts"])])
    batches = [*knn_blocks._output(join, knn_blocks._to_bytes(rows), best, files)]
    assert max(batch.nbytes for batch in batches) <= 10_000
    pairs = zip(best.files.ravel().tolist(), best.positions.ravel().tolist(), strict=True)
    assert [text for batch in batches for text in batch["match"].to_pylist()] == [
        texts[file][position] for file, position in pairs
    ]


def passed(join: Join, rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    for row in rows:
        assert row.number != EXPECTED
        yield pa.record_batch({"block": [row.block]})


def of_parts(blocks: dict[int, list[str]], expected: dict[int, list[str]]) -> list[Row]:
    rows = [Row("", part, EXPECTED, digest_of_names(own)) for part, own in expected.items()]
    return rows + [Row(block, part, number, None) for part, own in blocks.items() for block in own for number in (0, 1)]


def test_the_last_stage_gives_the_blocks_that_it_expects() -> None:
    expected = {0: ["a", "b"], 1: ["c"], 3: []}
    given = [*last_stage(passed)(JOIN, of_parts({1: ["c"], 0: ["b", "a"]}, expected))]
    assert sorted(batch["block"][0].as_py() for batch in given) == ["a", "a", "b", "b", "c", "c"]


@pytest.mark.parametrize(
    "blocks",
    [{0: ["a"], 1: ["c"]}, {0: ["a", "b"]}, {0: ["a", "b"], 1: ["d"]}, {0: ["a", "b"], 1: ["c"], 2: ["d"]}],
    ids=["one is missing", "a part is missing", "one differs", "a part is not expected"],
)
def test_the_last_stage_refuses_blocks_that_it_does_not_expect(blocks: dict[int, list[str]]) -> None:
    with pytest.raises(QueryError, match=DIFFERS):
        list(last_stage(passed)(JOIN, of_parts(blocks, {0: ["a", "b"], 1: ["c"], 3: []})))


def matched_rows(files: dict[int, list[int]]) -> list[Row]:
    return [
        Row("a", 0, file, FileRows(np.array(positions), None, columns=pa.table({"id": positions})))
        for file, positions in files.items()
    ]


FOUND = {0: [3, 8], 2: [5]}


def finished(whole: bool, files: dict[int, list[int]]) -> pa.Table:
    rows = left_rows([0, 1]).drop_columns([ROW_HASH])
    exact = Candidates(np.array([[0, 2], [0, -1]]), np.array([[3, 5], [8, -1]]), np.array([[0.5, 1.5], [2.5, np.inf]]))
    block = Row("a", 0, -1, BlockCandidates(knn_blocks._to_bytes(pa.Table.from_batches([rows])), None, exact))
    return pa.Table.from_batches(finish(JOIN, [*([block] if whole else []), *matched_rows(files)]))


def test_a_block_is_finished_with_the_rows_of_its_data_files() -> None:
    assert [file for file, _ in BlockCandidates(b"", None, Candidates.none(2, 2)).rows_by_file()] == []
    rows = finished(True, FOUND)
    assert rows.select(["text", "rank", "distance"]).to_pylist() == [
        {"text": "text 0", "rank": 1, "distance": 0.5},
        {"text": "text 0", "rank": 2, "distance": 1.5},
        {"text": "text 1", "rank": 1, "distance": 2.5},
    ]


@pytest.mark.parametrize(
    ("whole", "files"),
    [(True, {0: [3, 8]}), (True, {0: [3, 9], 2: [5]}), (True, {**FOUND, 3: [1]}), (False, FOUND)],
    ids=["a file is missing", "another row was read", "another file was read", "the block is missing"],
)
def test_a_block_whose_data_files_do_not_fit_is_refused(whole: bool, files: dict[int, list[int]]) -> None:
    with pytest.raises(QueryError, match=DIFFERS):
        finished(whole, files)


def test_each_data_file_is_read_by_tasks_of_its_own_among_which_blocks_are_divided() -> None:
    """Else a task would read the row groups of several files for each block."""
    worker = SimpleNamespace(job=SimpleNamespace(live=SimpleNamespace(files=range(3))))
    join = replace(JOIN, job=SimpleNamespace(worker=lambda: worker), parts=6)  # type: ignore[arg-type]
    candidates = Candidates(np.array([[0, 1], [2, 1]]), np.array([[3, 5], [8, 6]]), np.zeros((2, 2)))
    answer = ShareAnswer(SourceAnswer(candidates, 2, "scan"), None, WholeBlock(2, None, b""))
    rows = select(join, [Row(f"block {number}", 0, 0, answer) for number in range(20)])
    parts: dict[int, set[int]] = {}
    for row in knn_blocks._rows(rows):
        parts.setdefault(row.number, set()).add(row.part)
    assert {file: parts[file] for file in range(3)} == {0: {0, 1}, 1: {2, 3}, 2: {4, 5}}


def test_distances_that_were_computed_from_data_files_are_those_of_their_rows() -> None:
    candidates = Candidates(np.array([[0, 2], [0, -1]]), np.array([[3, 5], [8, -1]]), np.zeros((2, 2)))
    files = [
        Row("a", 0, file, FileRows(np.zeros(len(own), np.int64), None, np.array(own)))
        for file, own in ((0, [4.0, 2.0]), (2, [3.0]))
    ]
    ranked = knn_blocks._with_distances(candidates, files)
    assert (ranked.files.tolist(), ranked.distances.tolist()) == ([[2, 0], [0, -1]], [[3, 4], [2, np.inf]])


def test_the_queries_that_ranked_rows_of_a_file_are_not_sent_to_the_last_stage() -> None:
    """It has the rows of all files of a block at once, and would have the queries as often."""
    join = replace(JOIN, job=SimpleNamespace(worker=lambda: SimpleNamespace(rank=lambda _: np.zeros(3))))  # type: ignore[arg-type]
    ranked = FileCandidates.from_positions(FileNumber(0), np.arange(3), np.array([0, 1, 1]), queries(20).astype(float))
    (row,) = knn_blocks._rows(read(join, [Row("a", 0, 0, FileRows(np.arange(3), ranked))]))
    assert (row.payload.ranked, row.payload.distances.tolist()) == (None, [0, 0, 0])


@pytest.mark.parametrize(
    "fault", [pa.ArrowInvalid("overflowed binary array capacity"), pa.ArrowCapacityError("array cannot contain more")]
)
def test_matched_rows_that_arrow_cannot_hold_are_reported_with_their_file(fault: pa.ArrowException) -> None:
    """Arrow says so of columns over 2 GiB, or of these when they are sent."""

    def take(*_: object) -> pa.Table:
        raise fault

    live = SimpleNamespace(files={0: SimpleNamespace(path="file:///t/a.parquet")})
    worker = SimpleNamespace(job=SimpleNamespace(live=live), rows=SimpleNamespace(take=take))
    join = replace(JOIN, job=SimpleNamespace(worker=lambda: worker), field_ids=(1,), names=("text",))  # type: ignore[arg-type]
    with pytest.raises(QueryError, match=r"matched 3 rows of file:///t/a.parquet, .* over 2 GiB .*block_rows"):
        list(read(join, [Row("a", 0, 0, FileRows(np.arange(3), None))]))
