"""Reports of live recall: joined over processes, replaced in place, and refused where they are none."""

import json
import os
import time
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import tagged_version
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy, RetentionScope
from icepuffin.ops.model import SnapshotId, StorageConfig, VendedGrants
from icepuffin.ops.recall import recall_reports
from icepuffin.ops.recall.confidence import confidence_interval
from icepuffin.ops.recall.recall_reports import (
    RecallReporter,
    RecallReportError,
    RecallReports,
    ReportedRecall,
)
from icepuffin.ops.runs.maintenance import collect_table_garbage
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.measured.live_recall import RecallSampler
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.storage import ObjectMissingError, StorageError
from icepuffin.ops.storage.credentials import lease_of
from tests.conftest import STORAGE, queries
from tests.ops.index.comparison import DEFINITION, index_head
from tests.patience import until

TABLE = uuid.UUID(int=7)
READER = uuid.UUID(int=8).hex
OLD, NEW = SnapshotId(11), SnapshotId(12)


@pytest.fixture
def reports(tmp_path: Path) -> RecallReports:
    return RecallReports(f"file://{tmp_path}/recall", StorageConfig(), TABLE)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_keys_that_a_store_refuses_for_reports_are_not_refused_for_the_table(tmp_path: Path) -> None:
    table = VendedGrants("lake", "db.t", "ann", (), renew=tuple)
    config = RecallReports(f"file://{tmp_path}/recall", StorageConfig(vended=table), TABLE)._config
    assert config.vended is not None
    assert lease_of(config.vended) is not lease_of(table)


def test_processes_are_joined_and_the_last_report_of_each_counts(reports: RecallReports, tmp_path: Path) -> None:
    first, second = (RecallReporter(reports, "e") for _ in range(2))
    for number in range(1, 12):  # a report 11 is newer than a report 2, whose name is the later text
        first.report(NEW, queries=10 * number, recall_sum=9.0 * number, left_out=number)
    second.report(NEW, queries=40, recall_sum=40.0, left_out=1)
    second.report(OLD, queries=5, recall_sum=1.0, left_out=0)
    RecallReporter(reports, "other").report(NEW, queries=1, recall_sum=0.0, left_out=0)
    recall = (99.0 + 40.0) / 150
    joined = ReportedRecall(NEW, 2, 150, recall, *confidence_interval(recall, 150), 12)
    assert reports.read("e", {NEW}) == {NEW: joined}
    assert set(reports.read("e", {NEW, OLD})) == {NEW, OLD}
    assert len(files(tmp_path)) == 4, "a newer report takes the place of the older one"


def test_reports_are_as_old_as_they_were_written_last(reports: RecallReports, tmp_path: Path) -> None:
    for _ in range(2):
        RecallReporter(reports, "e").report(NEW, queries=1, recall_sum=1.0, left_out=0)
    for path, second in zip(files(tmp_path), (7, 9), strict=True):
        os.utime(path, (second, second))
    for older_than_ms, doomed in ((7_000, []), (7_001, [7_000]), (9_001, [7_000, 9_000])):
        stored = reports.of_other_versions((), older_than_ms=older_than_ms)
        assert sorted(report.modified_ms for report in stored) == doomed


def test_the_newer_of_two_reports_counts_where_a_process_ended_between_them(reports: RecallReports) -> None:
    for number, queries_so_far in ((2, 20), (10, 100), (9, 90)):
        document = {"queries": queries_so_far, "recall_sum": 20.0, "left_out": 0}
        reports.create(f"e/{NEW}/{READER}-{number}.json", document)
    assert reports.read("e", {NEW})[NEW].queries == 100


def test_a_process_with_a_lower_id_than_its_parent_reports_under_a_name_of_its_own(reports: RecallReports) -> None:
    reporter = RecallReporter(reports, "e")
    for _ in range(2):
        reporter.report(NEW, queries=1, recall_sum=1.0, left_out=0)
        reporter._process = os.getpid() + 1
    assert reports.read("e", {NEW})[NEW].readers == 2


def test_a_version_without_a_measured_query_has_no_recall(reports: RecallReports) -> None:
    RecallReporter(reports, "e").report(NEW, queries=0, recall_sum=0.0, left_out=3)
    reported = reports.read("e", {NEW})[NEW]
    assert (reported.queries, reported.recall, reported.low, reported.high, reported.left_out) == (0, None, 0.0, 1.0, 3)


def test_a_report_that_is_replaced_while_others_read_is_looked_for_again(
    reports: RecallReports, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = RecallReporter(reports, "e")
    reporter.report(NEW, queries=1, recall_sum=1.0, left_out=0)
    content, replaced = reports._content, []

    def replaced_meanwhile(report: Any) -> Any:
        if len(replaced) < 4:
            replaced.append(report)
            reporter.report(NEW, queries=2, recall_sum=2.0, left_out=0)
        return content(report)

    monkeypatch.setattr(reports, "_content", replaced_meanwhile)
    assert reports.read("e", {NEW})[NEW].queries == 2


def test_a_folder_is_the_same_with_a_slash_at_its_end(reports: RecallReports, tmp_path: Path) -> None:
    other = RecallReports(f"file://{tmp_path}/recall/", StorageConfig(), TABLE)
    assert other.create(f"e/{NEW}/{READER}-1.json", {}) == f"file://{tmp_path}/recall/{TABLE}/e/{NEW}/{READER}-1.json"


def test_reports_that_are_always_gone_are_an_error(reports: RecallReports, monkeypatch: pytest.MonkeyPatch) -> None:
    RecallReporter(reports, "e").report(NEW, queries=1, recall_sum=1.0, left_out=0)

    def gone(report: object) -> None:
        raise ObjectMissingError(f"{report} does not exist")

    monkeypatch.setattr(reports, "_content", gone)
    with pytest.raises(ObjectMissingError):
        reports.read("e", {NEW})


@pytest.mark.parametrize(
    "document",
    [
        "", "[]", '{"format": 1}', "[" * 100_000,
        '{"format": 2, "queries": 1, "recall_sum": 1, "left_out": 0}',
        '{"format": 1, "queries": 1, "recall_sum": 2, "left_out": 0}',
        '{"format": 1, "queries": 1, "recall_sum": NaN, "left_out": 0}',
        '{"format": 1, "queries": Infinity, "recall_sum": 1, "left_out": 0}',
        '{"format": 1, "queries": "9", "recall_sum": 1, "left_out": 0}',
        '{"format": 1, "queries": 1, "recall_sum": 1, "left_out": -5}',
        '{"format": 1, "queries": 1, "recall_sum": -1, "left_out": 0}',
        '{"format": 1, "queries": true, "recall_sum": 1, "left_out": 0}',
        f'{{"format": 1, "queries": 1, "recall_sum": 1{"0" * 400}, "left_out": 0}}',
    ],
    ids=range(13),
)  # fmt: skip
def test_what_is_no_report_is_an_error_that_names_the_file(reports: RecallReports, document: str) -> None:
    path = Path(reports.create(f"e/{NEW}/{READER}-1.json", {}).removeprefix("file://"))
    path.write_text(document)
    with pytest.raises(RecallReportError, match=r"-1\.json is no report of live recall that this release reads"):
        reports.read("e", {NEW})


@pytest.mark.parametrize(
    "name",
    [f".{READER}-1.json.part", "notes.txt", ".DS_Store", "r-1.json", f"{READER}-1.json/x", f"deeper/{READER}-1.json"],
)
def test_objects_of_others_are_neither_read_nor_deleted(reports: RecallReports, name: str) -> None:
    reports.create(f"e/{NEW}/{name}", {})
    reports.create("readme.txt", {})
    assert reports.read("e", {NEW}) == {}
    assert list(reports.of_other_versions((), older_than_ms=2**62)) == []


@pytest.mark.parametrize("folder", ["recall", "./recall", "", "file:recall"])
def test_a_folder_that_depends_on_the_working_directory_is_refused(folder: str) -> None:
    with pytest.raises(StorageError, match="give a location such as"):
        RecallReports(folder, StorageConfig(), TABLE)


def in_fork(work: Callable[[], None]) -> None:
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_process_measures_and_reports_its_own_queries(reports: RecallReports) -> None:
    """Servers load an index once and fork: the child has neither the thread nor a name of its own."""
    sampler = RecallSampler(1.0, budget=1e6)
    sampler.report_to(RecallReporter(reports, "e", interval=0.01))

    def measure(queries: int) -> None:
        for _ in range(queries):
            sampler.add(NEW, np.ones(1), lambda: np.ones((1, 1)))
            until(lambda: not sampler._waiting)
        until(lambda: not sampler._running)

    measure(3)
    sampler._running = True  # as while it waits to report
    sampler._lock.acquire()  # as another thread of the parent may
    in_fork(lambda: measure(2))
    sampler._lock.release()
    sampler._running = False
    in_fork(lambda: measure(4))
    reported = reports.read("e", {NEW})[NEW]
    assert (reported.readers, reported.queries) == (3, 9)


def test_what_was_measured_of_many_versions_is_reported_once_the_folder_is_there(
    reports: RecallReports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples of 64 versions are kept: an older one is not reported as empty, and none in its place goes."""
    sampler = RecallSampler(1.0, budget=1e6)
    reporter = RecallReporter(reports, "e")
    sampler.report_to(reporter)
    reporter._due = time.monotonic() + 1000
    for number in range(1, 71):
        sampler.add(SnapshotId(number), np.ones(1), lambda: np.ones((1, 1)))
        until(lambda: not sampler._waiting)
    reporter._due = 0.0
    sampler._arrived.set()
    until(lambda: not sampler._running)
    reported = reports.read("e", {SnapshotId(number) for number in range(1, 71)})
    assert {version: recall.queries for version, recall in reported.items()} == dict.fromkeys(range(7, 71), 1)


def test_queries_that_are_left_out_are_reported(reports: RecallReports) -> None:
    def fail() -> np.ndarray:
        raise OSError("the store is away")

    sampler = RecallSampler(1.0, budget=1e6)
    sampler.report_to(RecallReporter(reports, "e"))
    sampler.add(NEW, np.ones(1), fail)
    until(lambda: not sampler._running)
    assert (reports.read("e", {NEW})[NEW].left_out, sampler.recall(NEW).left_out) == (1, 1)


@pytest.mark.parametrize(
    ("interval", "first", "last"), [(60.0, [60, 120, 240], [3600, 60]), (7200.0, [7200, 7200, 7200], [7200, 7200])]
)
def test_a_folder_that_cannot_be_written_to_is_tried_ever_more_rarely(
    reports: RecallReports, monkeypatch: pytest.MonkeyPatch, interval: float, first: list[int], last: list[int]
) -> None:
    """Up to once per hour, or per interval where that is longer."""
    monkeypatch.setattr(recall_reports, "time", SimpleNamespace(monotonic=lambda: 0.0))
    reporter = RecallReporter(reports, "e", interval=interval)
    waits = []
    for written in (True, False, False, *[False] * 10, True):
        reporter.finished(written=written)
        waits.append(round(reporter.seconds_until_due))
    assert (waits[:3], waits[-2:]) == (first, last)


def test_the_sampler_reports_each_version_and_again_what_could_not_be_reported(
    reports: RecallReports, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = RecallSampler(1.0, budget=1e6)
    reporter = RecallReporter(reports, "e", interval=0.02)
    sampler.report_to(reporter)
    create = reports.create
    failures = []

    def once_refused(name: str, document: dict[str, float]) -> str:
        if not failures:
            failures.append(name)
            raise StorageError("the store is away")
        return create(name, document)

    monkeypatch.setattr(reports, "create", once_refused)
    for version, distance in ((OLD, 1.0), (OLD, 2.0), (NEW, 1.0)):
        sampler.add(version, np.array([distance]), lambda: np.array([[1.0]]))
        until(lambda: not sampler._running)  # with what could not be reported, the thread waits for the next query
        time.sleep(0.05)
    assert failures
    assert sampler.recall(NEW).why == ""
    read = reports.read("e", {OLD, NEW})
    assert [(read[version].queries, read[version].recall) for version in (OLD, NEW)] == [(2, 0.5), (1, 1.0)]


def test_a_sampler_whose_reports_are_refused_goes_on_and_gives_the_reason(
    reports: RecallReports, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, document: dict[str, float]) -> str:
        raise StorageError(f"{name}: the store refuses access")

    monkeypatch.setattr(reports, "create", refuse)
    sampler = RecallSampler(1.0, budget=1e6)
    sampler.report_to(RecallReporter(reports, "e"))
    sampler.add(NEW, np.ones(1), lambda: np.ones((1, 1)))
    until(lambda: bool(sampler.recall(NEW).why))
    assert sampler.recall(NEW).queries == 1
    assert sampler.recall(NEW).why.startswith(f"the recall cannot be reported: e/{NEW}/")


def test_a_reader_reports_what_it_measures_of_its_table(table: Table, tmp_path: Path) -> None:
    index_head(table)
    folder = f"file://{tmp_path}/recall"
    reader = open_index(table, DEFINITION, storage=STORAGE, threads=1, recall_sample=1.0, recall_reports=folder)
    sampler = reader._pipeline.sampler
    assert sampler is not None
    reader.search(queries(1), 10)
    until(lambda: not sampler._running)  # it has two names for a moment while it is published
    reports = RecallReports(folder, STORAGE, table.metadata.table_uuid)
    version = tagged_version(table, DEFINITION.name)
    assert version is not None
    key = version.index_snapshot_id
    assert reports.read(DEFINITION.name, {key})[key].recall == reader.stats().recall
    (file,) = files(tmp_path / "recall")
    assert json.loads(file.read_text())["queries"] == 1


def test_reports_without_a_sample_and_of_other_stores_are_refused(table: Table) -> None:
    index_head(table)
    with pytest.raises(QueryError, match="set recall_sample too"):
        open_index(table, DEFINITION, storage=STORAGE, recall_reports="file:///tmp/recall")
    with pytest.raises(StorageError, match="'ftp' is not supported"):
        open_index(table, DEFINITION, storage=STORAGE, recall_sample=1.0, recall_reports="ftp://host/recall")


def test_reports_go_with_their_versions_once_they_are_old(table: Table, tmp_path: Path) -> None:
    create_index(table, DEFINITION)
    index_head(table)
    version = tagged_version(table, DEFINITION.name)
    assert version is not None
    folder = str(tmp_path / "recall")
    reports = RecallReports(folder, STORAGE, table.metadata.table_uuid)
    foreign = RecallReports(folder, STORAGE, TABLE)
    for of_table in (reports, foreign):
        for key in (version.index_snapshot_id, OLD):
            of_table.create(f"e/{key}/{READER}-1.json", {"queries": 1, "recall_sum": 1.0, "left_out": 0})

    def collect(grace_hours: float, *, dry_run: bool = False) -> tuple[str, ...]:
        report = collect_table_garbage(
            table, storage=STORAGE, retentions={}, default=RetentionPolicy(), grace_hours=grace_hours,
            dry_run=dry_run, recall_reports=folder,
        )  # fmt: skip
        return report.deleted

    doomed = (f"file://{folder}/{table.metadata.table_uuid}/e/{OLD}/{READER}-1.json",)
    assert collect(1.0) == ()
    assert collect(-1.0, dry_run=True) == doomed
    assert len(files(tmp_path / "recall")) == 4
    assert collect(-1.0) == doomed
    assert len(files(tmp_path / "recall")) == 3


def test_reports_that_cannot_be_read_hinder_no_garbage_collection(table: Table) -> None:
    index_head(table)
    report = collect_table_garbage(
        table, storage=STORAGE, retentions={}, default=RetentionPolicy(), grace_hours=0, recall_reports="ftp://h/recall"
    )
    assert [reason for reason in report.refused if "reports of live recall" in reason and "'ftp'" in reason]
    assert report.table == "db.t"


def test_a_dry_run_counts_the_reports_of_versions_that_would_expire(table: Table, tmp_path: Path) -> None:
    index_head(table)
    older = tagged_version(table, DEFINITION.name)
    assert older is not None
    table.append(table.scan().to_arrow().slice(0, 50))
    index_head(table)
    folder = str(tmp_path / "recall")
    reports = RecallReports(folder, STORAGE, table.metadata.table_uuid)
    reports.create(f"e/{older.index_snapshot_id}/{READER}-1.json", {"queries": 1, "recall_sum": 1.0, "left_out": 0})

    def deleted_reports(*, dry_run: bool) -> list[str]:
        newest = RetentionPolicy(versions=RetentionScope.NEWEST)
        report = collect_table_garbage(
            table,
            storage=STORAGE,
            retentions={},
            default=newest,
            grace_hours=-1,
            dry_run=dry_run,
            recall_reports=folder,
        )
        return [path for path in report.deleted if path.endswith(".json")]

    foreseen = deleted_reports(dry_run=True)
    assert len(foreseen) == 1
    assert deleted_reports(dry_run=False) == foreseen
