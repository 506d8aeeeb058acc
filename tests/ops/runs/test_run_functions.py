"""What the functions that run on one table refuse, leave out, and hand on."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.table import Table

import icepuffin
from icepuffin.errors import IndexUnavailableError, TableFaultError
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy, RetentionScope
from icepuffin.ops.model import MAX_GRACE_HOURS, SnapshotId
from icepuffin.ops.runs import maintenance, snapshot
from icepuffin.ops.runs.refresh_plan import RefreshPlan
from icepuffin.ops.runs.snapshot import RefreshReport
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"versions": "none"}, "versions is 'none'; it is one of all, tagged, newest"),
        ({"last": 0}, "last is 0 and days is None; they are numbers above 0, or left out"),
        ({"days": 0.0}, "last is None and days is 0.0; they"),
        ({"last": 1, "days": float("nan")}, "last is 1 and days is nan; they"),
        ({"grace_hours": -0.1}, "grace_hours is -0.1; it is a number of hours from 0 to"),
        ({"grace_hours": MAX_GRACE_HOURS + 1}, rf"grace_hours is {MAX_GRACE_HOURS + 1}; .* to {MAX_GRACE_HOURS}$"),
        ({"grace_hours": float("nan")}, "grace_hours is nan"),
    ],
)
def test_a_collection_of_garbage_that_nobody_can_mean_is_refused(
    wrong: dict[str, Any], message: str, table_factory: Callable[..., Table]
) -> None:
    with pytest.raises(ValueError, match=message):
        icepuffin.gc(table_factory("t"), **wrong)


def test_a_collection_of_garbage_names_the_table_whose_times_no_clock_has(table_factory: Callable[..., Table]) -> None:
    table = table_factory()
    table.append(make_rows(0, 20))
    icepuffin.refresh(table)
    file = Path(table.refresh().metadata_location.removeprefix("file://"))
    times = re.sub(r'("timestamp-ms": ?)\d+', rf"\g<1>{10**400}", file.read_text(encoding="utf-8"))
    file.write_text(times, encoding="utf-8")
    with pytest.raises(TableFaultError, match=r"its metadata has something that icepuffin cannot use \(Overflow"):
        icepuffin.gc(table)


def test_a_collection_of_garbage_is_what_was_asked_for(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(maintenance, "collect_table_garbage", lambda _, **options: asked.append(options))
    table = table_factory("t")
    icepuffin.gc(table)
    rest = {"last": 1, "days": 0.5, "grace_hours": 0.0, "dry_run": True, "storage": STORAGE, "recall_reports": "here"}
    for scope, hours in (("newest", 0.0), ("tagged", MAX_GRACE_HOURS)):
        icepuffin.gc(table, versions=scope, **{**rest, "grace_hours": hours})
    assert [(options["default"], options["grace_hours"]) for options in asked] == [
        (RetentionPolicy(), 24.0),
        (RetentionPolicy(RetentionScope.NEWEST, 1, 0.5), 0.0),
        (RetentionPolicy(RetentionScope.TAGGED, 1, 0.5), MAX_GRACE_HOURS),
    ]
    assert [(options["dry_run"], options["recall_reports"], options["retentions"]) for options in asked[:2]] == [
        (False, None, {}), (True, "here", {}),
    ]  # fmt: skip
    assert asked[1]["storage"] is STORAGE


def test_a_plan_is_of_the_ref_and_of_what_is_named(table_factory: Callable[..., Table]) -> None:
    table = table_factory("t")
    table.append(make_rows(0, 10))
    before = table.current_snapshot()
    assert before is not None
    icepuffin.create_index(table, DEFINITION)
    table.refresh().manage_snapshots().create_branch(before.snapshot_id, "audit").commit()
    table.append(make_rows(10, 20))
    every, one = icepuffin.plan(table), icepuffin.plan(table, "e", ref="audit")
    head = table.refresh().current_snapshot()
    assert head is not None
    assert (every.snapshot_id, one.snapshot_id) == (head.snapshot_id, before.snapshot_id)
    assert (every.sketches is None, one.sketches is None, [*every.indexes]) == (False, True, ["e"])
    assert icepuffin.plan(table, "e", sketches=True).sketches is not None
    assert icepuffin.plan(table, sketches=False).sketches is None
    assert icepuffin.plan(table, snapshot=before.snapshot_id).snapshot_id == before.snapshot_id
    with pytest.raises(
        IndexUnavailableError,
        match=r"^db\.t has no version at the tag of index e; make one with: icepuffin refresh db\.t --index e$",
    ):
        icepuffin.verify(table)


def test_where_there_is_nothing_to_make_a_plan_and_a_report_say_so() -> None:
    for made in (RefreshPlan("db.t", SnapshotId(1), None, {}), RefreshReport("db.t", SnapshotId(1), None, {})):
        assert made.headline() == "'db.t', snapshot 1, nothing to make"


def test_sketches_that_cannot_be_published_hide_no_error_of_an_index(
    table_factory: Callable[..., Table], caplog: pytest.LogCaptureFixture
) -> None:
    def publish() -> None:
        raise OSError("the disk is full")

    sketches: Any = SimpleNamespace(publish=publish)
    snapshot._publish_alone(table_factory("t"), sketches)
    assert [(entry.levelno, entry.getMessage()) for entry in caplog.records] == [
        (logging.WARNING, "db.t: the sketches were not published either: the disk is full")
    ]
