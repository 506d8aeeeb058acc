"""The sensor over a real table and a real instance: what it records, adds, requests and drops."""

import json
import re
import time
from dataclasses import asdict, replace
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.test_utils import create_run_for_test

from examples.demo.local_sensor import tick
from icepuffin.assets.newest_snapshots import newest_snapshots
from icepuffin.assets.partitions import partitions_name
from icepuffin.assets.spec import TableSpec
from icepuffin.assets.table_settings import StatisticsSettings
from icepuffin.ops.binding.bindings import publish
from icepuffin.ops.resources import Catalogs
from icepuffin.ops.table.snapshots import base_snapshot_id
from icepuffin.ops.theta.ndv import read_ndv
from icepuffin.orchestration.cli import main
from icepuffin.orchestration.engines import catalogs_of
from icepuffin.orchestration.factory import build
from icepuffin.orchestration.processes import PROCESS_TAG, this_process
from icepuffin.orchestration.sensor import facts
from icepuffin.orchestration.sensor.facts import (
    TABLE_TAG,
    _freshness_state,
    _highest_return,
    _made_again_for,
    gather_facts,
)
from icepuffin.orchestration.sensor.sensor_definition import SensorEvaluation, evaluate
from icepuffin.orchestration.sensor.sensor_plan import SensorCursor
from icepuffin.orchestration.settings import Settings, load
from tests.ops.catalog.bindings import bind_as_before, binding
from tests.orchestration.evaluation import evaluated, found_spec
from tests.orchestration.lake import Lake, make_lake, make_rows

TABLE = dg.AssetKey(["demo", "demo", "packages"])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(tmp_path, snapshots=3)


def evaluate_once(
    instance: dg.DagsterInstance, spec: TableSpec, catalogs: Catalogs, cursor: SensorCursor | None = None
) -> SensorEvaluation:
    table = catalogs.table(spec.catalog, spec.identifier)
    return evaluate(instance, spec, table, cursor or SensorCursor(str(table.metadata.table_uuid)))


def spec_of(settings: Settings) -> tuple[TableSpec, Catalogs]:
    catalogs = catalogs_of(settings)
    return found_spec(settings.tables["packages"], catalogs), catalogs


def recorded(instance: dg.DagsterInstance) -> list[dg.AssetMaterialization]:
    """What was recorded of the table, in order."""
    found = instance.fetch_materializations(TABLE, limit=1000, ascending=True).records
    return [record.asset_materialization for record in found if record.asset_materialization is not None]


def test_the_sensor_requests_each_snapshot_in_commit_order(lake: Lake, instance: dg.DagsterInstance) -> None:
    result = evaluated(load(lake.settings_file), instance)
    ids = [str(snapshot.snapshot_id) for snapshot in lake.table.metadata.snapshots]
    assert [request.partition_key for request in result.run_requests or ()] == ids
    assert [event.partition for event in recorded(instance)] == ids
    assert list(instance.get_dynamic_partitions(partitions_name(spec_of(load(lake.settings_file))[0]))) == ids
    assert evaluated(load(lake.settings_file), instance, result.cursor).run_requests == []


def test_a_head_whose_layout_was_given_up_is_requested_once_more(
    lake: Lake, instance: dg.DagsterInstance, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = load(lake.settings_file)
    spec, _ = spec_of(settings)
    cursor = evaluated(settings, instance).cursor
    head = str(lake.head())
    for key in spec.derived_keys:
        instance.report_runless_asset_event(dg.AssetMaterialization(key, partition=head))
    assert evaluated(settings, instance, cursor).run_requests == []
    bind_as_before(lake.table, "embedding")
    found = evaluated(settings, instance, cursor)
    (request,) = found.run_requests or ()
    assert (request.partition_key, (request.run_key or "").split(":")[1:]) == (head, [head, "format 3"])
    assert evaluated(settings, instance, found.cursor).run_requests == []
    publish(lake.table, replace(binding(lake.table.refresh(), name="second"), build_id="f" * 64))
    both = replace(spec, indexes=(*spec.indexes, replace(spec.indexes[0], name="second")))
    texts = {_made_again_for(one, lake.table, lake.head()) for one in (both, spec)}
    assert len(texts) == 1, "the run that makes both has made one so far"
    newest, *others = newest_snapshots(lake.table, spec)
    assert (newest.missing, newest.given_up) == (("theta_sketches", "embedding"), ("embedding",))
    assert not any(entry.given_up for entry in others)
    capsys.readouterr()
    main(["snapshots", "demo.packages", "--dir", str(lake.directory), "--json"])
    assert [item["given_up"] for item in json.loads(capsys.readouterr().out)["snapshots"]] == [["embedding"], [], []]


def test_the_table_is_recorded_with_totals_that_plot(lake: Lake, instance: dg.DagsterInstance) -> None:
    evaluated(load(lake.settings_file), instance)
    assert [event.metadata["rows"].value for event in recorded(instance)] == [60, 120, 180]
    assert [event.metadata["operation"].value for event in recorded(instance)] == ["append"] * 3


def test_the_newest_snapshot_lists_the_snapshots_by_time_and_operation(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    """So that a partition, whose key is an id, can be found. One event has the time line, however many are recorded."""
    evaluated(load(lake.settings_file), instance)
    *others, newest = recorded(instance)
    assert not any("time line" in event.metadata for event in others)
    assert next(iter(newest.metadata)) == "time line", "the picture first"
    drawn = str(newest.metadata["time line"].value)
    rows = re.findall(r"(\w+), (\d+) rows.*\n│ (\d+)", drawn)
    assert [row[2] for row in rows] == [event.partition for event in (newest, *reversed(others))]
    assert [row[:2] for row in rows] == [("append", "180"), ("append", "120"), ("append", "60")]


def test_an_unreachable_catalog_is_a_skip_with_a_reason_and_loses_nothing(
    lake: Lake, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    settings = load(lake.settings_file)
    (tmp_path / "catalog.db").rename(tmp_path / "away.db")
    (tmp_path / "catalog.db").mkdir()
    skipped = evaluated(settings, instance)
    assert skipped.skip_reason is not None
    assert "catalog 'demo'" in (skipped.skip_reason.skip_message or "")
    (tmp_path / "catalog.db").rmdir()
    (tmp_path / "away.db").rename(tmp_path / "catalog.db")
    found = evaluated(settings, instance)
    assert len(found.run_requests or ()) == 3


def test_a_branch_is_followed_once_it_is_watched(lake: Lake, instance: dg.DagsterInstance) -> None:
    first = lake.table.metadata.snapshots[0].snapshot_id
    lake.table.manage_snapshots().create_branch(first, "audit").commit()
    lake.write_settings(watched_refs=("audit", "not-there-yet"))
    found = evaluated(load(lake.settings_file), instance)
    assert [request.partition_key for request in found.run_requests or ()] == [str(first)]


def test_expired_snapshots_lose_their_partition(lake: Lake, instance: dg.DagsterInstance) -> None:
    settings = load(lake.settings_file)
    spec, catalogs = spec_of(settings)
    cursor = evaluate_once(instance, spec, catalogs).plan.cursor
    oldest = lake.table.metadata.snapshots[0].snapshot_id
    lake.table.maintenance.expire_snapshots().by_id(oldest).commit()
    assert evaluate_once(instance, spec, catalogs, cursor).dropped == (str(oldest),)
    left = instance.get_dynamic_partitions(partitions_name(spec))
    assert list(left) == [str(snapshot.snapshot_id) for snapshot in lake.table.refresh().metadata.snapshots]


def test_two_tables_of_one_name_in_an_instance_do_not_drop_the_partitions_of_each_other(
    lake: Lake, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """As by two settings files, in two code locations."""
    settings, other = load(lake.settings_file), load(make_lake(tmp_path / "other", snapshots=2).settings_file)
    partitions = partitions_name(spec_of(settings)[0])
    cursor = evaluated(settings, instance).cursor
    ids = set(instance.get_dynamic_partitions(partitions))
    assert evaluated(other, instance).run_requests
    for both in (settings, other, settings):
        result = evaluated(both, instance, cursor)
        assert (result.run_requests, result.cursor) == ([], cursor)
        assert "another table of this name has the partitions 'snapshots/demo/demo/packages'" in str(result.skip_reason)
        assert "Give each of the two an instance (dagster_home), or the catalog of one another name" in str(
            result.skip_reason
        )
    assert evaluated(other, instance).run_requests == []
    assert ids < set(instance.get_dynamic_partitions(partitions))
    evaluated(settings, instance, cursor)
    added = str(lake.append())  # the other one is switched off by now
    requests = evaluated(settings, instance, cursor).run_requests
    assert [request.partition_key for request in requests or ()] == [added]
    assert set(instance.get_dynamic_partitions(partitions)) == {*ids, added}


def test_a_table_that_was_made_again_under_its_name_loses_the_partitions_of_before(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    settings = load(lake.settings_file)
    cursor = evaluated(settings, instance).cursor
    lake.catalog.drop_table("demo.packages")
    again = lake.catalog.create_table("demo.packages", make_rows(0, 1).schema)
    again.append(make_rows(0, 60))
    result = evaluated(settings, instance, cursor)
    evaluated(settings, instance, result.cursor)
    ids = [str(snapshot.snapshot_id) for snapshot in again.metadata.snapshots]
    assert [request.partition_key for request in result.run_requests or ()] == ids
    assert list(instance.get_dynamic_partitions(partitions_name(spec_of(settings)[0]))) == ids


def test_a_first_ref_that_does_not_exist_is_reported_until_it_does(lake: Lake, instance: dg.DagsterInstance) -> None:
    settings = load(lake.write_settings(watched_refs=("prod",)))
    before = evaluated(settings, instance)
    assert before.skip_reason is not None
    assert before.skip_reason.skip_message == "no new snapshot; there is no branch or tag prod yet"
    (event,) = before.asset_events
    assert isinstance(event, dg.AssetCheckEvaluation)
    assert not event.passed
    assert event.metadata["why"].value.startswith("the table has no branch or tag 'prod', the first of watched_refs")
    again = evaluated(settings, instance, before.cursor)
    assert not again.asset_events
    lake.table.manage_snapshots().create_branch(lake.head(), "prod").commit()
    after = evaluated(settings, instance, again.cursor)
    assert len(after.run_requests or ()) == 3
    assert [event.metadata["lag (snapshots)"].value for event in after.asset_events] == [3]


@pytest.mark.filterwarnings("ignore:Function `AssetSelection.sources`:DeprecationWarning")  # Dagster's own call
@pytest.mark.parametrize("whole", [False, True])
def test_a_partition_of_an_unfinished_backfill_stays_until_it_ends(
    lake: Lake, instance: dg.DagsterInstance, *, whole: bool
) -> None:
    settings = load(lake.settings_file)
    spec, catalogs = spec_of(settings)
    cursor = evaluate_once(instance, spec, catalogs).plan.cursor
    oldest, second = (str(snapshot.snapshot_id) for snapshot in lake.table.metadata.snapshots[:2])
    backfill = PartitionBackfill.from_asset_partitions(
        backfill_id="one",
        asset_graph=build(settings).resolve_asset_graph(),
        partition_names=None if whole else [oldest],
        asset_selection=list(spec.derived_keys),
        backfill_timestamp=time.time(),
        tags={},
        dynamic_partitions_store=instance,
        all_partitions=whole,
        title=None,
        description=None,
        run_config=None,
    )
    instance.add_backfill(backfill)
    lake.table.maintenance.expire_snapshots().by_ids([int(oldest), int(second)]).commit()
    dropped = () if whole else (second,)
    assert evaluate_once(instance, spec, catalogs, cursor).dropped == dropped
    assert oldest in instance.get_dynamic_partitions(partitions_name(spec))
    assert evaluate_once(instance, spec, catalogs, cursor).dropped == ()
    instance.update_backfill(backfill.with_status(BulkActionStatus.COMPLETED_FAILED))
    assert oldest in evaluate_once(instance, spec, catalogs, cursor).dropped
    assert instance.get_dynamic_partitions(partitions_name(spec)) == [str(lake.head())]


def test_a_failed_run_is_reported_with_its_cause_and_the_others_go_on(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.write_settings(retries=0)
    broken = lake.table.inspect.files()["file_path"][0].as_py().removeprefix("file://")
    Path(broken).unlink()
    runs = tick(load(lake.settings_file), instance)
    assert len(runs) == 3
    failed = [run for run in runs if not run.succeeded]
    assert failed
    assert all(Path(broken).name in run.message for run in failed)


def test_an_evaluation_that_is_cut_off_is_made_again(lake: Lake, instance: dg.DagsterInstance) -> None:
    settings = load(lake.settings_file)
    spec, catalogs = spec_of(settings)
    first = evaluate_once(instance, spec, catalogs)
    again = evaluate_once(instance, spec, catalogs)
    assert first.plan.request == again.plan.request
    assert again.recorded == ()
    assert [event.partition for event in recorded(instance)] == list(first.recorded)


def test_sketches_that_another_engine_replaced_come_back_with_the_next_evaluation(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    settings = load(lake.settings_file)
    assert all(run.succeeded for run in tick(settings, instance))
    table, head = lake.table.refresh(), lake.head()
    ours = read_ndv(table, head).entries
    foreign = table.metadata.statistics[-1].model_copy(
        update={
            "snapshot_id": head,
            "blob_metadata": [
                blob.model_copy(update={"properties": {"ndv": "7"}})
                for entry in table.metadata.statistics
                if entry.snapshot_id == head
                for blob in entry.blob_metadata
                if blob.fields == [2]
            ],
        }
    )
    with table.update_statistics() as update:
        update.set_statistics(foreign)
    assert set(read_ndv(table.refresh(), head).entries) == {"name"}
    runs = tick(settings, instance)
    assert [(run.partition_key, run.succeeded) for run in runs] == [(str(head), True)]
    assert read_ndv(lake.table.refresh(), head).entries == ours
    assert not tick(settings, instance)


def rolled_back_and_expired(lake: Lake) -> tuple[str, str]:
    """(the snapshot that main is at again, the one that it left and that expired)."""
    before, after = lake.table.refresh().metadata.snapshots[0].snapshot_id, lake.head()
    lake.table.manage_snapshots().rollback_to_snapshot(before).commit()
    lake.table.refresh().maintenance.expire_snapshots().by_id(after).commit()
    lake.table.refresh()
    return str(before), str(after)


def tagged(lake: Lake) -> int | None:
    """The data snapshot whose version the index's tag is on."""
    table = lake.table.refresh()
    version = table.metadata.snapshot_by_id(table.metadata.refs["ann_embedding"].snapshot_id)
    assert version is not None
    return base_snapshot_id(version)


def test_after_a_rollback_and_an_expiry_between_two_evaluations_the_tag_comes_back(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    lake = make_lake(tmp_path, snapshots=2)
    settings = load(lake.settings_file)
    assert len([run for run in tick(settings, instance) if run.succeeded]) == 2
    before, after = rolled_back_and_expired(lake)
    assert tagged(lake) == int(after), "it pins what the owner took back"
    runs = tick(settings, instance)
    assert [(run.partition_key, run.succeeded) for run in runs] == [(before, True)]
    assert tagged(lake) == int(before)
    assert not tick(settings, instance)


def test_a_rollback_to_a_snapshot_whose_run_failed_has_a_run_key_of_its_own(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    lake = make_lake(tmp_path, snapshots=2)
    settings = load(lake.settings_file)
    first = evaluated(settings, instance)
    for request in first.run_requests or ():
        tags = {**request.tags, "dagster/run_key": request.run_key or ""}
        create_run_for_test(instance, job_name="refresh", status=dg.DagsterRunStatus.FAILURE, tags=tags)
    before, _ = rolled_back_and_expired(lake)
    (request,) = evaluated(settings, instance, first.cursor).run_requests or ()
    assert request.partition_key == before
    assert request.run_key not in {item.run_key for item in first.run_requests or ()}


def test_an_invalid_cursor_starts_the_sensor_anew(lake: Lake, instance: dg.DagsterInstance) -> None:
    found = evaluated(load(lake.settings_file), instance, "somebody's hand")
    assert len(found.run_requests or ()) == 3
    assert SensorCursor.parse(found.cursor).head == str(lake.head())


def test_returns_are_counted_on_from_the_highest_of_the_table(instance: dg.DagsterInstance) -> None:
    assert _highest_return(instance, "u") == 0
    for key in ("u:77:2", "u:77:10", "u:78:9", "u:79", "u:80:x", "other:77:99"):
        create_run_for_test(instance, tags={"dagster/run_key": key})
    assert _highest_return(instance, "u") == 10


@pytest.mark.parametrize(
    ("reported", "behind", "late", "state"),
    [
        (None, 3, False, "behind"),
        ("late by 9", 3, False, "behind"),
        ("late by 9", 0, False, "fresh"),
        ("fresh", 3, False, "fresh"),
        ("fresh", 3, True, "late by 3"),
    ],
)
def test_an_index_that_was_fresh_is_no_news_until_it_is_late(
    reported: str | None, behind: int, late: bool, state: str
) -> None:
    assert _freshness_state(reported, behind, late=late) == state


def test_a_return_after_the_cursor_was_reset_has_a_run_key_of_its_own(lake: Lake, instance: dg.DagsterInstance) -> None:
    settings, after = load(lake.settings_file), lake.head()
    before = lake.table.refresh().metadata.snapshots[0].snapshot_id
    keys: list[str] = []

    def round_of(cursor: str | None) -> tuple[str | None, list[str]]:
        result = evaluated(settings, instance, cursor)
        new = [request.run_key or "" for request in result.run_requests or () if request.run_key not in keys]
        for request in result.run_requests or ():
            tags = {**request.tags, "dagster/run_key": request.run_key or ""}
            create_run_for_test(instance, job_name="refresh", status=dg.DagsterRunStatus.SUCCESS, tags=tags)
        keys.extend(new)
        return result.cursor, new

    cursor, _ = round_of(None)
    for reset in (False, True):
        lake.table.manage_snapshots().set_current_snapshot(before).commit()
        lake.table.refresh()
        cursor, new = round_of(cursor)
        assert len(new) == 1, "there is a run for the return"
        lake.table.manage_snapshots().set_current_snapshot(after).commit()
        lake.table.refresh()
        cursor, _ = round_of(None if not reset else cursor)


def test_a_head_whose_run_was_killed_is_requested_once_more_and_its_failed_run_is_named(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.write_settings(snapshots="newest")
    settings = load(lake.settings_file)
    first = evaluated(settings, instance)
    cursor, (request,) = first.cursor, first.run_requests or ()

    def fail(**tags: str) -> tuple[str, dg.SensorResult]:
        """(id of a run that failed, as the one requested last; what the sensor does then). It has the tags that runs of
        every release have.
        """
        partition = {"dagster/partition": request.partition_key or "", "dagster/run_key": request.run_key or ""}
        tags = {TABLE_TAG: request.tags[TABLE_TAG], **partition, **tags}
        run = create_run_for_test(instance, job_name="refresh", status=dg.DagsterRunStatus.FAILURE, tags=tags)
        return run.run_id, evaluated(settings, instance, cursor)

    _, result = fail(**{"dagster/will_retry": "true"})
    assert not result.run_requests, "Dagster itself tries it again"
    run_id, result = fail(**{"dagster/failure_reason": "STEP_FAILURE"})
    assert not result.run_requests
    assert result.skip_reason
    assert f"run {run_id} of the newest one failed" in (result.skip_reason.skip_message or "")
    run_id, result = fail()
    (again,) = result.run_requests or ()
    assert (again.partition_key, again.run_key) == (request.partition_key, f"{request.run_key}:{run_id}")
    run_id, result = fail()
    assert not result.run_requests, "one more is enough"
    assert result.skip_reason
    assert run_id in (result.skip_reason.skip_message or "")
    assert all(run.succeeded for run in tick(settings, instance))
    for most_named in (facts._MAX_NAMED_PARTITIONS, 0):
        monkeypatch.setattr(facts, "_MAX_NAMED_PARTITIONS", most_named)
        for done in (evaluated(settings, instance, cursor), fail()[1]):
            assert done.skip_reason
            assert done.skip_reason.skip_message == "no new snapshot", "all is made, whichever run failed since"


def test_an_evaluation_that_waits_names_the_run_that_it_waits_for(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.write_settings(snapshots="newest")
    run = create_run_for_test(
        instance, job_name="refresh", status=dg.DagsterRunStatus.STARTED, tags={TABLE_TAG: "demo/demo/packages"}
    )
    create_run_for_test(
        instance, job_name="refresh", status=dg.DagsterRunStatus.STARTING, tags={TABLE_TAG: "demo/demo/packages"}
    )
    end = f"for run {run.run_id} (started) of this table to end"

    def skipped() -> str:
        reason = evaluated(load(lake.settings_file), instance).skip_reason
        assert reason is not None
        return reason.skip_message or ""

    assert skipped() == f"1 snapshot waits {end}", "the newest"
    lake.write_settings(runs_ahead=2)
    assert skipped() == f"3 snapshots wait {end}"
    lake.write_settings(runs_ahead=9)
    cursor = evaluated(load(lake.settings_file), instance).cursor
    later = evaluated(load(lake.settings_file), instance, cursor).skip_reason
    assert later is not None
    assert later.skip_message == "no new snapshot"


def test_an_evaluation_limits_the_pool_and_frees_it_of_runs_that_have_ended(lake: Lake, tmp_path: Path) -> None:
    spec, catalogs = spec_of(load(lake.settings_file))
    with dg.DagsterInstance.local_temp(str(tmp_path)) as stored:
        evaluate_once(stored, spec, catalogs)
        storage = stored.event_log_storage
        assert [(limit.name, limit.limit) for limit in storage.get_pool_limits()] == [(spec.pool, 1)]
        killed = create_run_for_test(stored, status=dg.DagsterRunStatus.FAILURE).run_id
        assert storage.claim_concurrency_slot(spec.pool, killed, "step").is_claimed
        evaluate_once(stored, spec, catalogs)
        assert storage.get_concurrency_info(spec.pool).claimed_slots == []


def test_a_head_is_tagged_where_each_index_has_its_version(lake: Lake, instance: dg.DagsterInstance) -> None:
    spec, _ = spec_of(load(lake.settings_file))
    (first,) = spec.indexes
    both = replace(spec, indexes=(first, replace(first, name="other")))
    publish(lake.table, binding(lake.table, name=first.name))
    table, cursor = lake.table.refresh(), SensorCursor(str(lake.table.metadata.table_uuid))
    tagged = [gather_facts(instance, each, table, cursor).index_tags_at_head for each in (spec, both)]
    assert tagged == [True, False]


def test_snapshots_are_in_commit_order_whatever_the_clocks_of_their_writers_say(lake: Lake) -> None:
    first, *rest = lake.table.metadata.snapshots
    late = first.model_copy(update={"timestamp_ms": rest[-1].timestamp_ms + 1})
    lake.table.metadata = lake.table.metadata.model_copy(update={"snapshots": [late, *rest]})
    ids = [snapshot.snapshot_id for snapshot in (first, *rest)]
    assert [snapshot.snapshot_id for snapshot in facts.watched_snapshots(lake.table, ["main"])] == ids
    assert [*facts._parents(lake.table)] == [*map(str, ids)]


def test_many_partitions_are_looked_up_all_at_once(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, catalogs = spec_of(load(lake.settings_file))
    keys = set(evaluate_once(instance, spec, catalogs).recorded)
    monkeypatch.setattr(facts, "_MAX_NAMED_PARTITIONS", 1)
    some = {min(keys), max(keys)}
    assert facts._materialized(instance, spec.key, {*some, "unknown"}) == some


def test_an_evaluation_ends_a_run_whose_process_is_gone_and_goes_on(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.write_settings(snapshots="newest")
    run = create_run_for_test(
        instance, job_name="refresh", status=dg.DagsterRunStatus.STARTED, tags={TABLE_TAG: "demo/demo/packages"}
    )
    process = this_process()
    assert process is not None
    noted = {"run": run.run_id, **asdict(replace(process, boot="the boot before"))}
    instance.add_run_tags(run.run_id, {PROCESS_TAG: json.dumps(noted)})
    found = evaluated(load(lake.settings_file), instance)
    assert [request.partition_key for request in found.run_requests or ()] == [str(lake.head())]
    ended = instance.get_run_by_id(run.run_id)
    assert ended is not None
    assert ended.status == dg.DagsterRunStatus.FAILURE


def test_an_evaluation_queries_dagster_for_what_is_new_and_not_for_all_history(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(lake.settings_file)
    assert all(run.succeeded for run in tick(settings, instance))

    def all_history(*_: object, **__: object) -> set[str]:
        raise AssertionError("all of history was queried")

    monkeypatch.setattr(instance, "get_materialized_partitions", all_history)
    added = str(lake.append())
    runs = tick(settings, instance)
    assert [(run.partition_key, run.succeeded) for run in runs] == [(added, True)]


def test_statistics_that_others_replaced_are_made_again_only_where_the_table_keeps_any(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, _ = spec_of(load(lake.settings_file))
    monkeypatch.setattr(facts, "outdated_statistics", lambda *_: "theirs.stats")
    off = replace(spec, settings=spec.settings.model_copy(update={"statistics": StatisticsSettings(ndv="off")}))
    assert [_made_again_for(one, lake.table, lake.head()) for one in (spec, off)] == ["theirs.stats", ""]
