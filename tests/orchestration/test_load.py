"""The sensor under load: bounded evaluations, bounded calls, nothing twice, nothing missed, and a lag that shows.

With ICEPUFFIN_FULL_LOAD=1 in the sizes that were promised (10,000 snapshots, 200 tables): minutes. No test asserts on
seconds; `python -m benchmarks.sensor_load` measures them.
"""

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test
from pyiceberg.table.snapshots import Summary

import icepuffin
from icepuffin.assets.partitions import partitions_name
from icepuffin.ops.binding import bindings
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.planning.version_plan import MAX_BASES
from icepuffin.ops.index.versions.version_sizes import VersionSizes
from icepuffin.ops.resources import AWAY_SECONDS
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.orchestration.engines import catalogs_of
from icepuffin.orchestration.sensor import sensor_definition
from icepuffin.orchestration.sensor.facts import TABLE_TAG
from icepuffin.orchestration.sensor.sensor_plan import TableFacts
from tests.ops.catalog.bindings import binding
from tests.orchestration.backlog import Backlog, Daemon, Tick, make_backlog
from tests.orchestration.evaluation import found_spec
from tests.orchestration.lake import make_rows

FULL = os.environ.get("ICEPUFFIN_FULL_LOAD") == "1"
SNAPSHOTS = 10_000 if FULL else 100
TABLES = 200 if FULL else 12
AHEAD = 1000 if FULL else 30
EVALUATIONS_PER_HOUR = 120 if FULL else 30
WATCH = "watch_demo_demo_t0"


@pytest.fixture
def backlog(tmp_path: Path) -> Backlog:
    return make_backlog(tmp_path, tables=1, snapshots=SNAPSHOTS)


def ids(backlog: Backlog) -> list[str]:
    return [str(item.snapshot_id) for item in backlog.catalog.load_table("demo.t0").metadata.snapshots]


class Clock:
    """Time that a test lets pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._passed, real, monotonic = 0.0, time.time, time.monotonic
        self._stopped: float | None = None
        monkeypatch.setattr(time, "time", lambda: real() + self._passed if self._stopped is None else self._stopped)
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + self._passed)

    def advance(self, seconds: float) -> None:
        self._passed += seconds

    def stop(self, moment: float) -> None:
        """From now on it is this time, in seconds since the epoch."""
        self._stopped = moment


def worked_off(daemon: Daemon) -> list[Tick]:
    """Evaluations of the sensor, until two in a row find nothing."""
    ticks = [daemon.tick(WATCH), daemon.tick(WATCH)]
    while any(tick.shown or tick.launched for tick in ticks[-2:]):
        ticks.append(daemon.tick(WATCH))
    return ticks


def test_a_backlog_is_worked_off_in_bounded_evaluations_and_each_snapshot_is_run_once(
    backlog: Backlog, instance: dg.DagsterInstance
) -> None:
    daemon = Daemon(instance, backlog.settings(runs_ahead=AHEAD))
    ticks = worked_off(daemon)
    assert daemon.launched[WATCH] == ids(backlog)
    assert all(tick.calls <= 1 and len(tick.launched) <= AHEAD for tick in ticks)
    assert max(tick.cursor_bytes for tick in ticks) < 500, "Dagster keeps the cursor with every tick"
    spec = found_spec(daemon.settings.tables["t0"], daemon.catalogs)
    assert list(instance.get_dynamic_partitions(partitions_name(spec))) == ids(backlog)
    assert instance.get_materialized_partitions(spec.key) == set(ids(backlog))


def test_newest_runs_the_head_at_once_and_records_the_rest_in_bounded_evaluations(
    backlog: Backlog, instance: dg.DagsterInstance
) -> None:
    daemon = Daemon(instance, backlog.settings(snapshots="newest"))
    head = ids(backlog)[-1]
    assert daemon.tick(WATCH).launched == (head,)
    daemon.succeed(WATCH, [head])
    (newer,) = backlog.grow("t0", 1)
    ticks = worked_off(daemon)
    assert daemon.launched[WATCH] == [head, newer]
    spec = found_spec(daemon.settings.tables["t0"], daemon.catalogs)
    assert instance.get_materialized_partitions(spec.key) == set(ids(backlog))
    assert max(tick.cursor_bytes for tick in ticks) < 500


def slow_writes(instance: dg.DagsterInstance, clock: Clock, seconds: float, patch: pytest.MonkeyPatch) -> list[str]:
    """Let every write into Dagster take so long by the clock. Returns the list of writes."""
    written: list[str] = []
    for name in ("report_runless_asset_event", "delete_dynamic_partition"):
        through = getattr(instance, name)

        def write(*arguments: object, name: str = name, through: Callable[..., None] = through) -> None:
            clock.advance(seconds)
            written.append(name)
            through(*arguments)

        patch.setattr(instance, name, write)
    return written


def test_an_evaluation_says_how_many_expired_partitions_it_left(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_backlog(tmp_path, tables=1, snapshots=1).settings()
    daemon = Daemon(instance, settings)
    daemon.succeed(WATCH, daemon.tick(WATCH).launched)
    name = partitions_name(found_spec(settings.tables["t0"], daemon.catalogs))
    instance.add_dynamic_partitions(name, [f"expired-{number}" for number in range(9)])
    slow_writes(instance, Clock(monkeypatch), sensor_definition.WRITING_SECONDS / 4, monkeypatch)
    assert daemon.tick(WATCH).skipped == "recorded 0 snapshots; 5 left for the next evaluation"


def test_an_evaluation_ends_when_its_time_is_up_however_slow_dagster_writes(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog = make_backlog(tmp_path, tables=1, snapshots=30)
    settings = backlog.settings()
    spec = found_spec(settings.tables["t0"], catalogs_of(settings))
    expired = [f"expired-{number}" for number in range(9)]
    instance.add_dynamic_partitions(partitions_name(spec), expired)
    daemon = Daemon(instance, settings)
    written = slow_writes(instance, Clock(monkeypatch), sensor_definition.WRITING_SECONDS / 4, monkeypatch)
    first = daemon.tick(WATCH)
    assert first.launched == tuple(ids(backlog)[:4])
    assert written == ["report_runless_asset_event"] * 4 + ["delete_dynamic_partition", "report_runless_asset_event"]
    rest = worked_off(daemon)
    assert all(len(tick.launched) <= 4 for tick in rest)
    assert daemon.launched[WATCH] == ids(backlog)
    assert list(instance.get_dynamic_partitions(partitions_name(spec))) == ids(backlog)
    assert written.count("delete_dynamic_partition") == len(expired)
    assert written.count("report_runless_asset_event") == 30 + len(daemon.checks)


def test_the_time_to_gather_facts_leaves_time_to_write(
    backlog: Backlog, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, gather = Clock(monkeypatch), sensor_definition.gather_facts

    def slowly(*arguments: Any) -> TableFacts:
        clock.advance(10 * sensor_definition.WRITING_SECONDS)
        return gather(*arguments)

    monkeypatch.setattr(sensor_definition, "gather_facts", slowly)
    assert Daemon(instance, backlog.settings(runs_ahead=AHEAD)).tick(WATCH).shown > 1


def test_the_work_of_an_evaluation_grows_with_the_history_and_not_with_its_runs_times_the_history(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, runs, versions = 200, 20, 50
    backlog = make_backlog(tmp_path, tables=1, snapshots=1)
    definition = IndexDefinition(name="e", column="embedding", target_recall=0.0)
    icepuffin.refresh(backlog.catalog.load_table("demo.t0"), definition)
    backlog.with_history("t0", snapshots=history, versions=versions, summary={})
    reads = Counter[str]()

    def properties(summary: Summary) -> dict[str, str]:
        reads["summaries"] += 1
        return summary._additional_properties

    def parse(text: str, parse: Callable[[str], VersionSizes | None] = VersionSizes.parse) -> VersionSizes | None:
        reads["sizes"] += 1
        return parse(text)

    daemon = Daemon(instance, backlog.settings(runs_ahead=runs))
    monkeypatch.setattr(Summary, "additional_properties", property(properties))
    monkeypatch.setattr(VersionSizes, "parse", parse)
    assert len(daemon.tick(WATCH).launched) == runs
    assert reads["summaries"] < 10 * history
    assert reads["sizes"] <= versions + runs * MAX_BASES


def test_a_snapshot_of_which_only_the_sketches_are_made_has_its_run(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    backlog = make_backlog(tmp_path, tables=1, snapshots=2)
    daemon = Daemon(instance, backlog.settings())
    spec = found_spec(daemon.settings.tables["t0"], daemon.catalogs)
    sketched, other = ids(backlog)
    instance.report_runless_asset_event(dg.AssetMaterialization(spec.theta_key, partition=sketched))
    assert daemon.tick(WATCH).launched == (sketched, other)


def test_a_write_that_takes_longer_than_an_evaluation_still_gets_on(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog = make_backlog(tmp_path, tables=1, snapshots=3)
    daemon = Daemon(instance, backlog.settings())
    slow_writes(instance, Clock(monkeypatch), 10 * sensor_definition.WRITING_SECONDS, monkeypatch)
    assert [daemon.tick(WATCH).shown for _ in range(4)] == [1, 1, 1, 0]
    assert daemon.launched[WATCH] == ids(backlog)


def test_more_runs_are_requested_as_others_end(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    backlog = make_backlog(tmp_path, tables=1, snapshots=8)
    daemon = Daemon(instance, backlog.settings(runs_ahead=3))
    queued = [queue_run(instance) for _ in range(2)]
    assert len(daemon.tick(WATCH).launched) == 1
    queued.append(queue_run(instance))
    assert daemon.tick(WATCH).launched == ()
    for run in queued[:2]:
        instance.report_run_canceled(run)
    assert len(daemon.tick(WATCH).launched) == 2
    instance.report_run_canceled(queued[2])
    assert [len(daemon.tick(WATCH).launched) for _ in range(3)] == [3, 2, 0]
    assert daemon.launched[WATCH] == ids(backlog)


def queue_run(instance: dg.DagsterInstance, status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED) -> dg.DagsterRun:
    """A run of the table that does not end."""
    return create_run_for_test(instance, status=status, tags={TABLE_TAG: "demo/demo/t0"}, job_name="refresh")


@pytest.mark.parametrize("status", ["NOT_STARTED", "STARTING", "STARTED", "CANCELING"])
def test_newest_skips_what_comes_while_a_run_is_in_flight(
    tmp_path: Path, instance: dg.DagsterInstance, status: str
) -> None:
    backlog = make_backlog(tmp_path, tables=1, snapshots=3)
    daemon = Daemon(instance, backlog.settings(snapshots="newest"))
    daemon.tick(WATCH)
    run = queue_run(instance, dg.DagsterRunStatus(status))
    for _ in range(4):
        backlog.grow("t0", 2)
        assert daemon.tick(WATCH).launched == ()
    instance.report_run_canceled(run)
    daemon.tick(WATCH)
    assert daemon.launched[WATCH] == [ids(backlog)[2], ids(backlog)[-1]]


def test_many_tables_cost_a_call_each_and_do_not_mix(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    backlog = make_backlog(tmp_path, tables=TABLES, snapshots=3)
    daemon = Daemon(instance, backlog.settings(indexes_from_table=False))
    before = daemon.calls
    ticks = [daemon.tick(name) for name in daemon.sensors]
    assert daemon.calls - before <= TABLES
    assert len(daemon.sensors) == TABLES
    assert all(len(tick.launched) == 3 for tick in ticks)
    grown = backlog.grow("t5", 1)
    again = {name: daemon.tick(name).launched for name in daemon.sensors}
    assert {name: keys for name, keys in again.items() if keys} == {"watch_demo_demo_t5": tuple(grown)}


def test_a_catalog_that_is_down_for_an_hour_costs_few_calls_and_nothing_else(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog = make_backlog(tmp_path, tables=3, snapshots=2)
    daemon = Daemon(instance, backlog.settings(indexes_from_table=False))
    for name in daemon.sensors:
        daemon.tick(name)
    clock = Clock(monkeypatch)
    tries = count_openings(monkeypatch)
    quiet_minutes = 0.0
    with backlog.down(daemon.catalogs):
        for _ in range(EVALUATIONS_PER_HOUR):
            clock.advance(3600 / EVALUATIONS_PER_HOUR)
            ticks = [daemon.tick(name) for name in daemon.sensors]
            assert all("catalog 'demo'" in tick.skipped for tick in ticks)
            assert not any(tick.launched or tick.shown for tick in ticks)
            quiet_minutes += 0.0 if "catalog away since" in daemon.checks[-1].metadata else 60 / EVALUATIONS_PER_HOUR
    assert 15 <= quiet_minutes < 15 + 60 / EVALUATIONS_PER_HOUR, "then the checks warn"
    assert AWAY_SECONDS < 30
    assert len(tries) <= EVALUATIONS_PER_HOUR + 1, "one table reads the catalog for all"
    unknown = [event for event in daemon.checks if "catalog away since" in event.metadata]
    assert [event.passed for event in unknown] == [False] * 3, "each check reports it once"
    for name in backlog.names:
        backlog.grow(name, 5)
    clock.advance(30)
    for name in daemon.sensors:
        assert len(daemon.tick(name).launched) == 5
        assert len(daemon.launched[name]) == len(set(daemon.launched[name])) == 7
    assert daemon.checks[-1].metadata["lag (snapshots)"].value == 7


def test_a_table_that_cannot_be_read_holds_up_no_other(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    backlog = make_backlog(tmp_path, tables=2, snapshots=1)
    for name in backlog.names:
        backlog.grow(name, 1)  # a metadata file of its own
    to_path(backlog.catalog.load_table("demo.t0").metadata_location).unlink()
    daemon = Daemon(instance, backlog.settings())
    for _ in range(2):
        assert "catalog 'demo' has demo.t0, and its metadata file cannot be read" in daemon.tick(WATCH).skipped
        daemon.tick("watch_demo_demo_t1")
    assert len(daemon.launched["watch_demo_demo_t1"]) == 2


def count_openings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the catalogs that are opened from now on."""
    from icepuffin.ops import resources  # noqa: PLC0415

    opened: list[str] = []
    through = resources.open_catalog

    def open_catalog(name: str, properties: dict[str, str]) -> object:
        opened.append(name)
        return through(name, properties)

    monkeypatch.setattr(resources, "open_catalog", open_catalog)
    return opened


def test_the_lag_goes_red_with_the_evaluation_that_sees_it_and_green_with_the_version(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog = make_backlog(tmp_path, tables=1, snapshots=1)
    daemon = Daemon(instance, backlog.settings(max_freshness_lag=1, max_freshness_minutes=10))
    clock = Clock(monkeypatch)

    def observed() -> list[tuple[bool, object]]:
        daemon.checks.clear()
        daemon.tick(WATCH)
        return [(event.passed, event.metadata["lag (snapshots)"].value) for event in daemon.checks]

    first = backlog.catalog.load_table("demo.t0").metadata.snapshots[0].timestamp_ms / 1000
    assert observed() == [(True, 1)]
    assert observed() == []
    backlog.grow("t0", 2)
    clock.stop(first + 10 * 60 - 1)
    assert observed() == [], "late by three, but for less than ten minutes"
    clock.stop(first + 10 * 60)
    assert observed() == [(False, 3)]
    assert observed() == [], "nothing new"
    backlog.grow("t0", 4, after=10 * 60)
    assert observed() == [(False, 7)], "the oldest counts, however new the others are"
    table = backlog.catalog.load_table("demo.t0")
    bindings.publish(table, binding(table))
    assert observed() == [(True, 0)]


def test_an_index_that_was_late_is_reported_to_be_well_and_then_complete(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    backlog = make_backlog(tmp_path, tables=1, snapshots=3)
    daemon = Daemon(instance, backlog.settings(max_freshness_lag=1))

    def observed() -> list[tuple[bool, object]]:
        daemon.checks.clear()
        daemon.tick(WATCH)
        return [(event.passed, event.metadata["lag (snapshots)"].value) for event in daemon.checks]

    def append() -> None:
        backlog.catalog.load_table("demo.t0").append(make_rows(0, 1))

    def publish(number: int) -> None:
        table = backlog.catalog.load_table("demo.t0")
        tagged = table.metadata.refs.get("ann_e")
        bindings.publish(table, binding(table, number, expected=tagged and tagged.snapshot_id))

    assert observed() == [(False, 3)]
    publish(0)
    append()
    assert observed() == [(True, 1)]
    assert observed() == []
    publish(1)
    assert observed() == [(True, 0)]
    append()
    assert observed() == [], "its run will report"
    publish(2)
    assert observed() == []


def test_an_evaluation_that_is_cut_off_is_repeated_by_the_next(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    backlog = make_backlog(tmp_path, tables=1, snapshots=6)
    daemon = Daemon(instance, backlog.settings(runs_ahead=2))
    daemon.tick(WATCH)
    cursor = dict(daemon._cursors)
    daemon.tick(WATCH)
    daemon._cursors = cursor  # the daemon was killed before it kept the new one
    for _ in range(3):
        daemon.tick(WATCH)
    assert daemon.launched[WATCH] == ids(backlog)
