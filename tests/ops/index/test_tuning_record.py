"""What a record of tuning says of itself."""

from icepuffin.ops.index.tuning_record import TuningRecord
from icepuffin.ops.model import SnapshotId


def test_the_day_of_a_record_is_that_of_its_time_in_utc() -> None:
    for timestamp_ms, day in ((1_795_651_199_999, "2026-11-25"), (1_795_651_200_000, "2026-11-26")):
        assert TuningRecord((), 500, SnapshotId(7), SnapshotId(6), timestamp_ms, {}).day == day
