"""The stages of a kNN join, without Spark: blocks follow from rows, and what does not fit together is refused."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from icepuffin.ops.search.candidates import Candidates
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.worker import SearchShare
from icepuffin.ops.spark import knn_blocks
from icepuffin.ops.spark.knn_blocks import (
    EXPECTED,
    ROW_HASH,
    BlockCandidates,
    FileRows,
    Join,
    Row,
    digest_of_names,
    finish,
    last_stage,
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
