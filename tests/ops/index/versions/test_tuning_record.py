"""What a record of tuning says of itself, and what is no record."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from icepuffin.ops.index.versions.layout_fit import LayoutFit
from icepuffin.ops.index.versions.tuning_record import TuningError, TuningRecord, changes_of, identity_of
from icepuffin.ops.index.versions.version_sizes import VersionSizes
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.recall.measured_points import MeasuredPoint
from tests.ops.index.comparison import DEFINITION

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


def test_a_record_with_a_text_that_cannot_be_written_is_none() -> None:
    """A reader's warnings would have it."""
    document = r'{"identity": {"\ud800": 1}}'
    with pytest.raises(TuningError, match="half of a surrogate pair"):
        TuningRecord.from_json(document)


@pytest.mark.parametrize("change", [{"queries": None}, {"queries": 1e400}, {"identity": 7}, {"points": 7}], ids=str)
def test_a_record_of_other_things_than_it_is_to_have_is_none(change: dict[str, Any]) -> None:
    document = TuningRecord((), 500, SnapshotId(7), SnapshotId(6), 0, {}).document()
    with pytest.raises(TuningError, match="it is no record of tuning"):
        TuningRecord.from_json(json.dumps({**document, **change}).replace("Infinity", "1e400"))
    del document[next(iter(change))]
    with pytest.raises(TuningError, match="it is no record of tuning"):
        TuningRecord.from_json(json.dumps(document))


def test_what_shares_of_the_queries_reach_is_kept_apart_from_what_0_1_0_reads() -> None:
    measured = MeasuredPoint(10, 40, 1, 0.5, 0.9, 0.01, 1234.5, 7.5, (0.9, 0.8, 0.123456789))
    earlier = replace(measured, reached=())
    record = TuningRecord((measured, earlier), 500, SnapshotId(7), SnapshotId(6), 0, {})
    document = record.document()
    assert document["points"] == [[10, 40, 1, 0.5, 0.9, 0.01, 1234.5, 7.5]] * 2
    assert document["reached"] == [[0.9, 0.8, 0.12346], []]
    assert record.as_kept().points == (replace(measured, reached=(0.9, 0.8, 0.12346)), earlier)
    del document["reached"]
    assert TuningRecord.from_json(json.dumps(document)).points == (earlier, earlier)


@pytest.mark.parametrize(
    "reached", [7, [], [[]], [[0.9, 0.8, 1.1], []], [[0.9], []], [["x", 0, 0], []], [[-0.1, 0, 0], []]], ids=str
)
def test_shares_that_cannot_be_are_none(reached: Any) -> None:
    point = MeasuredPoint(10, 40, 1, 0.5, 0.9, 0.01, 1234.5, 7.5)
    document = TuningRecord((point, point), 500, SnapshotId(7), SnapshotId(6), 0, {}).document()
    with pytest.raises(TuningError, match="it is no record of tuning"):
        TuningRecord.from_json(json.dumps({**document, "reached": reached}))


def test_a_record_of_another_format_names_both() -> None:
    document = TuningRecord((), 500, SnapshotId(7), SnapshotId(6), 0, {}).document()
    with pytest.raises(TuningError, match="it has format 2, and this release reads 1"):
        TuningRecord.from_json(json.dumps({**document, "format": 2}))


def test_a_record_is_as_short_as_its_numbers_are_known() -> None:
    """Recalls of a thousand queries for a hundred rows have five decimals; properties are written with each commit."""
    point = MeasuredPoint(10, 40, 1, math.inf, 0.123456789, 0.0123456789, 1234.5678, 7.5)
    record = TuningRecord((point,), 500, SnapshotId(7), SnapshotId(6), 1_795_651_200_000, {"dims": 16})
    assert record.document()["points"] == [[10, 40, 1, None, 0.12346, 0.01235, 1234.6, 7.5]]
    assert " " not in record.to_json()
    assert record.as_kept() == TuningRecord.from_json(record.to_json()) != record
    assert record.as_kept().points == (MeasuredPoint(10, 40, 1, math.inf, 0.12346, 0.01235, 1234.6, 7.5),)
    assert replace(record, queries=1_500).origin == (
        "1,500 queries that `icepuffin tune` measured with index version 7 of snapshot 6 on 2026-11-26"
    )


def test_a_record_holds_for_a_version_with_more_deltas_and_not_with_other_shards_or_of_another_model() -> None:
    def opened(*to_shard: int, codebook: float = 0, distance: float = 1) -> Any:
        routing = SimpleNamespace(
            partition_to_shard=np.array(to_shard), dims=16, shards=(1, 2, 3), codebook=np.full((3, 16), codebook)
        )
        sizes = VersionSizes("d", 16, 3, 9, 3, (), 0.0, LayoutFit(distance=distance, built_distance=1)).text()
        return SimpleNamespace(routing=routing, definition=DEFINITION, bound=SimpleNamespace(sizes=sizes))

    identity = identity_of(opened(0, 1, 1))
    assert (identity["dims"], identity["routed_shards"]) == (16, 2)
    assert changes_of(identity, identity_of(opened(0, 0, 1, distance=1.04))) == ""
    assert changes_of(identity, identity_of(opened(0, 1, 2))) == "routed_shards was 2 and is 3"
    assert changes_of(identity, identity_of(opened(0, 1, 1, codebook=1))).startswith("codebook was ")
    later = opened(0, 1, 1)
    later.routing.codebook[2] = 1
    assert changes_of(identity, identity_of(later)).startswith("codebook was ")
    apart = identity_of(opened(0, 1, 1, distance=1.06))
    assert changes_of(identity, apart) == "codebook_apart was 0 and is 1"
    assert changes_of(apart, identity_of(opened(0, 1, 1, distance=1.2))) == "codebook_apart was 1 and is 3"
    assert changes_of({"a": 1}, {"a": 2, "b": 3}) == "a was 1 and is 2, b was None and is 3"
    assert changes_of({"a": 1}, {}) == "a was 1 and is None"
