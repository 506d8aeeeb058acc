"""What `make engines` reports: a fault of an index is no fault that a table without one has, too."""

import pyarrow as pa
import pytest

from tests.conftest import make_rows
from tests.interop import engines
from tests.interop.engines import KINDS, READS, Reading, compared, report

READINGS = [
    Reading(kind, f"{kind.title}{twin}", snapshot, None, 0, 20, twin)
    for kind in KINDS
    for twin in (False, True)
    for snapshot in (None, 7)
]


@pytest.mark.parametrize("words", ["3 rows, not 20", "Error: no such snapshot"])
def test_an_engine_that_reads_the_twin_alone_fails(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = [READS if reading.is_twin or reading.snapshot_id is None else words for reading in READINGS]
    assert report(READINGS, {"Engine 1": [READS] * len(READINGS), "Engine 2": outcome}) == 1
    printed = capsys.readouterr().out
    assert "| Engine 1 | reads | reads | reads | reads |" in printed
    assert "| Engine 2 | **no** | **no** | **no** | **no** |" in printed
    assert f"- Engine 2, v3, index tag: {words}\n" in printed


def test_an_engine_that_reads_neither_is_named_and_does_not_fail(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = [READS if reading.kind.version == 2 else "Error:\n no v3" for reading in READINGS]
    assert report(READINGS, {"Engine 1": outcome}) == 0
    printed = capsys.readouterr().out
    assert "| Engine 1 | reads | reads | no, nor its twin | no, nor its twin |" in printed
    assert "- Engine 1, v3, head: Error: no v3\n" in printed


def test_rows_and_values_are_compared() -> None:
    reading, rows = READINGS[0], make_rows(0, 20)
    assert compared(reading, rows.take(list(range(19, -1, -1)))) == READS
    wide = rows.cast(pa.schema([rows.schema.field("id"), *[(f.name, _wide(f.type)) for f in rows.schema][1:]]))
    assert compared(reading, wide) == READS
    assert compared(reading, rows.slice(1)) == "wrong: 19 rows, not 20"
    for column in engines.COLUMNS:
        changed = make_rows(1, 21)[column]
        other = rows.set_column(rows.column_names.index(column), column, changed)
        assert compared(reading, other) == f"wrong: values of {column}"


def _wide(data_type: pa.DataType) -> pa.DataType:
    """A type of Arrow with the same values, as engines choose it."""
    return pa.large_list(pa.float32()) if pa.types.is_list(data_type) else pa.large_string()
