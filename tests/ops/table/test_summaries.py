"""Numbers in summaries, which any writer may set."""

import logging
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from icepuffin.assets.metadata import total_metadata
from icepuffin.ops.binding.measurements import Measurement
from icepuffin.ops.index.versions.tuning_record import TuningError, TuningRecord
from icepuffin.ops.index.versions.version_sizes import VersionSizes
from icepuffin.ops.table.ownership import own_snapshot
from icepuffin.ops.table.summaries import find_count, finite_number, number_of, snapshot_count, summary_of

NO_NUMBERS = ("", "abc", "1.5", "1e3", "٣", "²", str(2**63), str(-(2**63) - 1), "9" * 5_000, "0x10", "1_000", " 7")
NO_DOCUMENTS = ("[" * 100_000, '{"a":' * 100_000, "9" * 5_000, '{"threads": 1e999}', "null")


def snapshot(snapshot_id: int, **properties: str) -> Snapshot:
    summary = Summary(Operation.APPEND, **properties)
    return Snapshot(snapshot_id=snapshot_id, timestamp_ms=1, manifest_list="s3://b/m", summary=summary)


def test_a_count_is_the_whole_number_of_its_text() -> None:
    ends = [-(2**63), 2**63 - 1]
    assert [number_of(text) for text in ("0", "-7", "012", *map(str, ends))] == [0, -7, 12, *ends]
    assert finite_number("-1.5") == -1.5
    for text in ("nan", "-inf", "1e999", "x"):
        with pytest.raises(ValueError, match=text):
            finite_number(text)
    written = snapshot(1, **{"added-records": "60"})
    assert (snapshot_count(written, "added-records"), find_count(written, "added-records")) == (60, 60)
    assert (snapshot_count(written, "total-records"), find_count(written, "total-records")) == (0, None)
    assert summary_of(snapshot(2).model_copy(update={"summary": None})) == {}


@pytest.mark.parametrize("text", NO_NUMBERS, ids=lambda text: repr(text)[:12])
def test_a_count_that_is_no_number_is_none_and_is_warned_of_once(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert number_of(text) is None
    written = snapshot(hash(text), **{"total-records": text})
    with caplog.at_level(logging.WARNING):
        assert [find_count(written, "total-records"), snapshot_count(written, "total-records")] == [None, 0]
    (record,) = caplog.records
    message = record.getMessage()
    assert f"snapshot {written.snapshot_id}: total-records is '{text[:20]}" in message
    assert len(message) < 200


def test_values_that_json_has_as_no_texts_are_read_as_texts() -> None:
    values: Any = {"total-records": 7, "added-records": 1.5, "ann.base-snapshot-id": {"a": 1}, "ann.took": None}
    written = Snapshot.model_validate_json(snapshot(3, **values).model_dump_json(warnings=False))
    assert [find_count(written, key) for key in values] == [7, None, None, None]
    assert summary_of(written) == {key: str(value) for key, value in values.items()}
    assert own_snapshot(written) is None


def test_totals_that_are_no_numbers_are_not_shown() -> None:
    totals: Any = total_metadata(snapshot(1, **{f"total-{number}": text for number, text in enumerate(NO_NUMBERS)}))
    assert totals == {}
    shown = total_metadata(snapshot(1, **{"total-records": "7", "total-cost": "-7", "total-files-size": "²"}))
    assert set(shown) == {"summary", "rows"}


@pytest.mark.parametrize("text", NO_DOCUMENTS, ids=lambda text: text[:18])
def test_what_is_no_document_is_no_measurement_and_no_record(text: str) -> None:
    assert Measurement.parse(text) is None
    assert VersionSizes.parse(text) is None
    with pytest.raises(TuningError, match="no record of tuning"):
        TuningRecord.from_json(text)
