"""Reports become metadata that the UI can plot."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import dagster as dg
from dagster import serialize_value
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from icepuffin.assets.ann_index import _changed_first, _measured_recall, _summary
from icepuffin.assets.glance import INLINE_CHARACTERS
from icepuffin.assets.metadata import (
    MAX_TABLE_ROWS,
    bullet_list,
    details,
    kept_metadata,
    plotted,
    total_metadata,
    when_and_how,
)
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.planning.index_report import Estimate, IndexReport, ShardEstimate, ShardReport, VersionRecall
from icepuffin.ops.model import Action, How, ShardId, SnapshotId
from icepuffin.ops.recall.shard_recall import RecallBasis
from icepuffin.ops.theta.theta_report import ThetaOutcome, ThetaReport


class Way(StrEnum):
    NEW = "new"


@dataclass(frozen=True)
class Part:
    number: int
    how: str
    recall: float


@dataclass(frozen=True)
class ExpectedCost:
    seconds: float = 1.5
    shards: tuple[Part, ...] = (Part(0, Way.NEW, 0.9),)


@dataclass(frozen=True)
class Report:
    snapshot_id: int = 6170229538723520381
    recall: float = 0.97
    rows: int = 12
    bytes_total: int = 5_000_000_000
    fresh: bool = True
    action: Way = Way.NEW
    path: str | None = None
    unmeasured: float = float("nan")
    ndv: Mapping[str, int] = field(default_factory=lambda: {"id": 7, "name": 3})
    shard_reports: tuple[Part, ...] = (Part(0, "built", 0.98), Part(1, "copied", 0.991234))
    estimate: ExpectedCost = field(default_factory=ExpectedCost)


def detailed(report: object) -> Any:
    return details(report).value


def test_details_are_plain_values_and_ids_are_text() -> None:
    assert detailed(Report()) == {
        "snapshot_id": "6170229538723520381",
        "recall": 0.97,
        "rows": 12,
        "bytes_total": 5_000_000_000,
        "fresh": True,
        "action": "new",
        "ndv": {"id": 7, "name": 3},
        "shard_reports": [
            {"number": 0, "how": "built", "recall": 0.98},
            {"number": 1, "how": "copied", "recall": 0.9912},
        ],
        "estimate": {"seconds": 1.5, "shards": [{"number": 0, "how": "new", "recall": 0.9}]},
    }


def test_details_have_the_names_of_files_and_no_folder() -> None:
    assert detailed({"statistics_path": "s3://bucket/table/metadata/1-a.stats"}) == {"statistics_path": "1-a.stats"}


def test_a_number_that_javascript_would_round_is_text() -> None:
    assert detailed(Report(rows=2**53))["rows"] == 2**53
    assert detailed(Report(rows=2**53 + 1))["rows"] == "9007199254740993"


def test_a_long_table_is_cut_and_says_how_much_it_leaves_out() -> None:
    """Two tables of 6,199 shards were 2.4 MB of Dagster's database per version."""
    shards = tuple(Part(number, "built", 0.9) for number in range(6_199))
    cut = details(Report(shard_reports=shards, estimate=ExpectedCost(shards=shards)))
    for table in (cut.value["shard_reports"], cut.value["estimate"]["shards"]):
        assert [row["number"] for row in table[:-1]] == list(range(100))
        assert table[-1] == "6,099 more"
    assert len(serialize_value(cut)) < 50_000
    assert len(detailed(Report(shard_reports=shards[:100]))["shard_reports"]) == 100


def test_numbers_past_32_bits_are_floats_which_the_ui_does_not_wrap() -> None:
    kinds = [type(plotted(rows=rows)["rows"]) for rows in (2**31 - 1, 2**31)]
    assert kinds == [dg.IntMetadataValue, dg.FloatMetadataValue], "equal numbers are equal values"
    shown = plotted(bytes=5_000_000_000, rows=2**31 - 1, recall=None, seconds=float("nan"), gone=0, part=0.00001)
    assert shown == {"bytes": dg.MetadataValue.float(5e9), "rows": dg.MetadataValue.int(2**31 - 1)}


def test_the_totals_of_a_snapshot_are_words_and_numbers() -> None:
    totals = {"total-records": "4935", "total-data-files": "11", "total-files-size": "4183337", "added-records": "9"}
    deletes = {"total-delete-files": "10", "total-position-deletes": "324", "total-equality-deletes": "0"}
    result = total_metadata(_snapshot(totals | deletes))
    assert result["summary"].value.splitlines() == [
        "* **rows in files:** 4,935; data files: 11",
        "* **deletes:** 324 by position; delete files: 10",
        "* **bytes:** 4.0 MiB",
    ]
    assert {name: value.value for name, value in result.items() if name != "summary"} == {
        "rows": 4935 - 324,
        "bytes": 4_183_337,
    }
    by_key = total_metadata(_snapshot(totals | {"total-equality-deletes": "7", "total-delete-files": "1"}))
    assert "rows" not in by_key, "those that are left are not known"
    assert by_key["summary"].value.splitlines()[1] == "* **deletes:** 7 by equality; delete files: 1"
    assert total_metadata(_snapshot(totals))["summary"].value.splitlines()[1:] == ["* **bytes:** 4.0 MiB"]
    assert total_metadata(_snapshot({})) == {}
    uncounted = total_metadata(_snapshot({"total-delete-files": "2", "total-files-size": "-1"}))
    assert uncounted["summary"].value.splitlines()[1:] == ["* **deletes:** rows not counted; delete files: 2"]


def test_a_snapshot_is_told_by_the_time_and_the_operation_that_it_has() -> None:
    appended = _snapshot({})
    assert when_and_how(appended) == "append, committed 1970-01-01 00:00:00 UTC"
    nameless = appended.model_copy(update={"summary": None})
    assert when_and_how(nameless) == "unknown operation, committed 1970-01-01 00:00:00 UTC"
    assert when_and_how(None) == "has expired"


def _snapshot(summary: Mapping[str, str]) -> Snapshot:
    return Snapshot(
        snapshot_id=1, timestamp_ms=0, manifest_list="file:///list", summary=Summary(Operation.APPEND, **summary)
    )


def test_a_text_in_a_list_makes_no_picture_and_no_line() -> None:
    text = "a_b: ![x](http://evil.example)\n* **rows:** 0 <img src=x> `c`"
    (line,) = bullet_list({"note": text}).value.splitlines()
    assert len(bullet_list({"note": 2_000 * "x"}).value) == INLINE_CHARACTERS
    assert line == r"* **note:** a_b: !\[x\](http://evil.example) \* \*\*rows:\*\* 0 \<img src=x\> \`c\`"


def test_of_many_shards_those_that_were_written_come_first_and_then_those_that_find_least() -> None:
    def shard(number: int, how: How, recall: float) -> ShardReport:
        return ShardReport(ShardId(number), how, 1, 1, 0, 0, recall, 1, RecallBasis.HERE, 1)

    shards = [shard(number, How.COPIED, 1 - number / 1_000) for number in range(MAX_TABLE_ROWS)]
    written = [shard(500, How.REBUILT, 0.99), shard(501, How.BUILT, 0.98)]
    report = IndexReport(
        table="t", index="e", snapshot_id=SnapshotId(1), action=Action.REFRESHED, reason="", build_id="", files=1,
        seconds=1.0, stage_seconds={}, shard_reports=(*shards, *written),
    )  # fmt: skip
    ordered = [one.number for one in _changed_first(report).shard_reports]
    assert ordered == [501, 500, *range(MAX_TABLE_ROWS - 1, -1, -1)]
    few = replace(report, shard_reports=tuple(shards))
    assert _changed_first(few) == few


def test_of_many_shards_the_expected_work_comes_first_and_most_bytes_before_fewer() -> None:
    def shard(number: int, how: How, written: int) -> ShardEstimate:
        return ShardEstimate(ShardId(number), how, "", 1, 0, 0, 0, 0, written, 0)

    copied = [shard(number, How.COPIED, 0) for number in range(MAX_TABLE_ROWS)]
    few = (*copied[1:], shard(500, How.BUILT, 5))
    estimate = Estimate(Action.REFRESHED, "", 0, 0, 0, 0, 0, 0, 0, 0, 1.0, "", few)
    report = IndexReport(
        table="t", index="e", snapshot_id=SnapshotId(1), action=Action.REFRESHED, reason="", build_id="", files=1,
        seconds=1.0, stage_seconds={}, estimate=estimate,
    )  # fmt: skip
    assert _changed_first(report) == report
    expected = (shard(500, How.BUILT, 5), shard(501, How.REBUILT, 9))
    ordered = _changed_first(replace(report, estimate=replace(estimate, shards=(*copied, *expected)))).estimate
    assert ordered is not None
    assert [one.number for one in ordered.shards] == [501, 500, *range(MAX_TABLE_ROWS)]


def test_sketches_that_others_have_counted_are_told() -> None:
    report = ThetaReport(
        "t", SnapshotId(1), None, {"id": 7}, True, files_sketched=1, files_reused=2, bytes_written=3, seconds=4.0,
        outcome=ThetaOutcome.WRITTEN,
    )  # fmt: skip
    actions = [replace(report, fresh=fresh).fields()["action"] for fresh in (True, False)]
    assert actions[1] == f"{actions[0]}; not all columns were counted for this very snapshot"


def test_a_repeated_run_has_the_figures_of_the_one_that_made_the_same() -> None:
    key, now = dg.AssetKey("index"), {"details": details({"puffin_path": "x/b"}), "action": "reused", "rows": 1}

    def materialized(**metadata: Any) -> None:
        event = dg.AssetMaterialization(key, partition="7", metadata=metadata)
        instance.report_runless_asset_event(event)

    def kept() -> dict[str, Any]:
        found = kept_metadata(context, key, "puffin_path", now).items()
        return {name: getattr(value, "value", value) for name, value in found if name != "details"}

    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_asset_context(partition_key="7", instance=instance)
        own = {"action": "reused", "rows": 1}
        assert kept() == own, "Dagster has none"
        materialized(details=details({"puffin_path": "x/a"}), action="built", seconds=2.5)
        assert kept() == own, "of another file"
        materialized(seconds=2.5)
        assert kept() == own, "of nobody knows which"
        assert kept_metadata(context, key, "statistics_path", now) == now
        materialized(details=details({"puffin_path": "y/b"}), action="built", seconds=2.5)
        assert kept() == {"action": "reused", "rows": 1, "seconds": 2.5}


def test_recall_of_a_hundred_rows_is_told_where_it_was_measured() -> None:
    report = IndexReport(
        table="t", index="e", snapshot_id=SnapshotId(1), action=Action.BUILT, reason="", build_id="", files=1,
        seconds=1.0, stage_seconds={}, recall=0.95, recall_basis=VersionRecall(queries=64, rows_here=7),
    )  # fmt: skip
    told: dict[str, object] = {"recall": 0.95, "queries": 64, "95 % interval": "0.8667 to 0.9823"}
    told |= {"measured": "100% of the rows measured here"}
    assert _measured_recall(report) == told
    wide = replace(report, recall_basis=VersionRecall(queries=64, wide=0.93, rows_here=7))
    assert _measured_recall(wide) == {**told, "recall@100": 0.93}


def test_the_change_of_recall_since_the_build_is_told_with_its_sign_where_there_is_one() -> None:
    definition = IndexDefinition(name="e", column="v", target_recall=0.9)
    report = IndexReport(
        table="t", index="e", snapshot_id=SnapshotId(1), action=Action.BUILT, reason="", build_id="b", files=1,
        seconds=1.0, stage_seconds={}, recall=0.95, index_snapshot_id=SnapshotId(2), puffin_path="p",
    )  # fmt: skip
    unchanged = _summary(definition, report, 0.0)["recall@10"]
    changes = {0.02: ", +0.0200 since it was built anew", -0.02: ", -0.0200 since it was built anew", 0.00004: ""}
    for change, told in changes.items():
        shown = _summary(definition, report, change)["recall@10"]
        assert shown == unchanged.replace("; at least 0.9 is required", f"{told}; at least 0.9 is required")
