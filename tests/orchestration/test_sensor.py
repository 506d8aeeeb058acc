"""The sensor over a real table and a real instance: what it records, adds, asks for and drops."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.partitions import partitions_name
from assets.spec import TableSpec
from ops.resources import Catalogs
from ops.theta import read_ndv
from orchestration.definitions import build
from orchestration.discovery import table_spec
from orchestration.engines import catalogs_of
from orchestration.settings import Settings, load
from orchestration.ticks import TickedRun, finish, look_at, tick
from tests.orchestration.lake import Lake, make_lake

TABLE = dg.AssetKey(["demo", "demo", "packages"])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(tmp_path, snapshots=3)


def evaluated(settings: Settings, instance: dg.DagsterInstance, cursor: str | None = None) -> dg.SensorResult:
    definitions = build(settings)
    (sensor,) = definitions.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    context = dg.build_sensor_context(
        instance=instance, cursor=cursor, definitions=definitions, resources={"catalogs": catalogs_of(settings)}
    )
    found: Any = sensor(context)
    assert isinstance(found, dg.SensorResult)
    return found


def spec_of(settings: Settings) -> tuple[TableSpec, Catalogs]:
    catalogs = catalogs_of(settings)
    return table_spec(settings.tables["packages"], catalogs), catalogs


def recorded(instance: dg.DagsterInstance) -> list[dg.AssetMaterialization]:
    """What was recorded of the table, in order."""
    found = instance.fetch_materializations(TABLE, limit=1000, ascending=True).records
    return [record.asset_materialization for record in found if record.asset_materialization is not None]


def test_the_sensor_asks_for_each_snapshot_in_commit_order(lake: Lake, instance: dg.DagsterInstance) -> None:
    found = evaluated(load(lake.settings_file), instance)
    ids = [str(snapshot.snapshot_id) for snapshot in lake.table.metadata.snapshots]
    assert [request.partition_key for request in found.run_requests or ()] == ids
    assert [event.partition for event in recorded(instance)] == ids
    assert list(instance.get_dynamic_partitions(partitions_name(spec_of(load(lake.settings_file))[0]))) == ids
    assert evaluated(load(lake.settings_file), instance, found.cursor).run_requests == []


def test_the_table_is_recorded_with_totals_that_plot(lake: Lake, instance: dg.DagsterInstance) -> None:
    evaluated(load(lake.settings_file), instance)
    assert [event.metadata["records"].value for event in recorded(instance)] == [60, 120, 180]
    assert [event.metadata["operation"].value for event in recorded(instance)] == ["append"] * 3


def test_an_unreachable_catalog_is_a_skip_that_says_so_and_loses_nothing(
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
    finish(instance, spec, look_at(instance, spec, settings.tables["packages"], catalogs).found.plan)
    oldest = lake.table.metadata.snapshots[0].snapshot_id
    lake.table.maintenance.expire_snapshots().by_id(oldest).commit()
    assert look_at(instance, spec, settings.tables["packages"], catalogs).found.dropped == (str(oldest),)
    left = instance.get_dynamic_partitions(partitions_name(spec))
    assert list(left) == [str(snapshot.snapshot_id) for snapshot in lake.table.refresh().metadata.snapshots]


def test_a_failed_run_is_told_with_its_cause_and_the_rest_goes_on(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.write_settings(retries=0)
    broken = lake.table.inspect.files()["file_path"][0].as_py().removeprefix("file://")
    Path(broken).unlink()
    runs = [event for event in tick(load(lake.settings_file), instance) if isinstance(event, TickedRun)]
    assert len(runs) == 3
    failed = [run for run in runs if not run.succeeded]
    assert failed
    assert all(Path(broken).name in run.message for run in failed)


def test_a_look_that_is_cut_off_is_made_again(lake: Lake, instance: dg.DagsterInstance) -> None:
    settings = load(lake.settings_file)
    spec, catalogs = spec_of(settings)
    first = look_at(instance, spec, settings.tables["packages"], catalogs).found
    again = look_at(instance, spec, settings.tables["packages"], catalogs).found
    assert first.plan.request == again.plan.request
    assert again.shown == ()
    assert [event.partition for event in recorded(instance)] == list(first.shown)


def test_sketches_that_another_engine_replaced_come_back_with_the_next_look(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    settings = load(lake.settings_file)
    assert all(run.succeeded for run in tick(settings, instance) if isinstance(run, TickedRun))
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
    runs = [run for run in tick(settings, instance) if isinstance(run, TickedRun)]
    assert [(run.snapshot_id, run.succeeded) for run in runs] == [(str(head), True)]
    assert read_ndv(lake.table.refresh(), head).entries == ours
    assert not [run for run in tick(settings, instance) if isinstance(run, TickedRun)]
