"""What a record of tuning says of itself, and what is no record."""

import json
import math
from typing import Any

import pytest

from icepuffin.ops.index.versions.tuning_record import TuningError, TuningRecord
from icepuffin.ops.model import SnapshotId

POINT = [1, 1, 1, 0.0, 1.0, 0.0, 10.0, 1.0]
"""A point of the least parameters that there are: k, search list, oversample, probe slack, recall and so on"""
YEAR_10000_MS = 253_402_300_800_000


def read(timestamp_ms: int = 0, **changes: Any) -> TuningRecord:
    """The record with one point, some of whose places are changed."""
    point = [changes.get(f"at_{place}", value) for place, value in enumerate(POINT)]
    document = {"format": 1, "queries": 500, "index-snapshot-id": "7", "base-snapshot-id": "6", "identity": {}}
    return TuningRecord.from_json(json.dumps({**document, "timestamp-ms": timestamp_ms, "points": [point]}))


def test_the_day_of_a_record_is_that_of_its_time_in_utc() -> None:
    for timestamp_ms, day in ((1_795_651_199_999, "2026-11-25"), (1_795_651_200_000, "2026-11-26")):
        assert TuningRecord((), 500, SnapshotId(7), SnapshotId(6), timestamp_ms, {}).day == day


def test_a_point_of_the_least_and_of_the_largest_numbers_is_read() -> None:
    assert (read().points[0].recall, read(at_4=0.0).points[0].recall) == (1.0, 0.0)
    assert read(at_3=None).points[0].probe_slack == math.inf
    assert [read(moment).timestamp_ms for moment in (0, YEAR_10000_MS - 1)] == [0, YEAR_10000_MS - 1]


@pytest.mark.parametrize(
    "changes",
    [
        *({f"at_{place}": 0} for place in range(3)),
        {"at_3": -0.1},
        {"at_4": -0.1},
        {"at_4": 1.1},
        {"timestamp_ms": -1},
        {"timestamp_ms": YEAR_10000_MS},
    ],
    ids=str,
)
def test_a_record_with_numbers_that_cannot_be_is_none(changes: dict[str, Any]) -> None:
    """Whoever may set the table's properties may write one: a search by it would rank no candidate."""
    with pytest.raises(TuningError, match="it is no record of tuning"):
        read(**changes)
