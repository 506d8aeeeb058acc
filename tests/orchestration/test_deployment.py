"""A real daemon evaluates the sensor and launches the runs; a real webserver launches a backfill over old snapshots."""

import itertools
from collections.abc import Iterator

import dagster as dg
import pytest
from dagster import RunsFilter

from icepuffin.orchestration.instance import open_instance
from tests.orchestration.deployment import Deployment, deployed
from tests.orchestration.lake import Lake, make_lake

TABLE = dg.AssetKey(["demo", "demo", "packages"])
THETA = dg.AssetKey(["demo", "demo", "packages", "theta_sketches"])
INDEX = dg.AssetKey(["demo", "demo", "packages", "ann_index", "embedding"])

BACKFILL = """
mutation ($assets: [AssetKeyInput!], $partitions: [String!]) {
  launchPartitionBackfill(backfillParams: {assetSelection: $assets, partitionNames: $partitions}) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""
STATUS = """
query ($id: String!) { partitionBackfillOrError(backfillId: $id) { __typename ... on PartitionBackfill { status } } }
"""
LOCATIONS = """
{ workspaceOrError { ... on Workspace { locationEntries { name } } } }
"""

pytestmark = [pytest.mark.timeout(600), pytest.mark.whole_file]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Three snapshots; the sensor runs, coalesces to the newest, and evaluates the table every second."""
    lake = make_lake(tmp_path_factory.mktemp("lake"), snapshots=3)
    lake.write_settings(snapshots="newest", sensor_running=True, sensor_interval_seconds=1)
    return lake


@pytest.fixture(scope="module")
def deployment(lake: Lake) -> Iterator[Deployment]:
    with deployed(lake.settings_file, lake.directory) as running:
        yield running


@pytest.fixture(scope="module")
def instance(deployment: Deployment) -> Iterator[dg.DagsterInstance]:
    """Opened once: that takes half a second of processor time, and tests that wait read it four times per second."""
    with open_instance(deployment.home) as opened:
        yield opened


def materialized(instance: dg.DagsterInstance, key: dg.AssetKey) -> set[str]:
    return set(instance.get_materialized_partitions(key))


def test_the_code_location_has_the_name_by_which_switches_and_cursors_are_kept(deployment: Deployment) -> None:
    workspace = deployment.graphql(LOCATIONS)["workspaceOrError"]
    assert workspace["locationEntries"] == [{"name": "icepuffin"}]


def test_the_daemon_indexes_the_newest_snapshot(
    lake: Lake, deployment: Deployment, instance: dg.DagsterInstance
) -> None:
    newest = str(lake.head())
    deployment.wait_for("the first run", lambda: newest in materialized(instance, INDEX))
    assert newest in deployment.wait_for("the sketches", lambda: materialized(instance, THETA))
    assert len(materialized(instance, TABLE)) == 3


def test_a_new_snapshot_is_seen_and_indexed(lake: Lake, deployment: Deployment, instance: dg.DagsterInstance) -> None:
    before = materialized(instance, INDEX)
    added = str(lake.append())
    deployment.wait_for("the run of the new snapshot", lambda: added in materialized(instance, INDEX))
    assert materialized(instance, INDEX) == before | {added}


@pytest.fixture(scope="module")
def backfill(lake: Lake, deployment: Deployment, instance: dg.DagsterInstance) -> str:
    """Id of a backfill of all snapshots without an index, the newest first, after the run of the newest one; ended."""
    newest = str(lake.head())
    deployment.wait_for("the run of the newest snapshot", lambda: newest in materialized(instance, INDEX))
    snapshots = [str(snapshot.snapshot_id) for snapshot in lake.table.metadata.snapshots[:3]]
    old = [key for key in snapshots if key not in materialized(instance, INDEX)]
    selection = [{"path": list(key.path)} for key in (THETA, INDEX)]
    launched = deployment.graphql(BACKFILL, assets=selection, partitions=old[::-1])["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched

    def done() -> bool:
        """By its runs: the daemon sees it half a minute later."""
        return set(old) <= materialized(instance, INDEX) & materialized(instance, THETA)

    deployment.wait_for("the backfill", done, 300)
    return str(launched["backfillId"])


def test_a_backfill_makes_old_snapshots_in_any_order(
    lake: Lake, deployment: Deployment, instance: dg.DagsterInstance, backfill: str
) -> None:
    status = deployment.graphql(STATUS, id=backfill)["partitionBackfillOrError"]["status"]
    assert status in {"REQUESTED", "COMPLETED_SUCCESS"}
    runs = instance.get_runs(RunsFilter(tags={"dagster/backfill": backfill}))
    old = {str(snapshot.snapshot_id) for snapshot in lake.table.metadata.snapshots[:2]}
    assert old <= {run.tags["dagster/partition"] for run in runs}


@pytest.mark.usefixtures("backfill")
def test_each_partition_of_the_backfill_has_metadata_of_its_own(instance: dg.DagsterInstance) -> None:
    keys = instance.get_materialized_partitions(INDEX)
    assert len(keys) >= 3
    for key, asset in itertools.product(keys, (INDEX, THETA)):
        records = instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=asset, asset_partitions=[key]), limit=1
        ).records
        event = records[0].asset_materialization
        assert event is not None
        assert event.metadata["details"].value["snapshot_id"] == key
        assert "append, committed " in event.metadata["summary"].value
        assert asset == THETA or isinstance(event.metadata["recall"].value, float)


@pytest.mark.usefixtures("backfill")
def test_no_run_of_the_deployment_failed(instance: dg.DagsterInstance) -> None:
    assert len(instance.get_runs(RunsFilter(statuses=[dg.DagsterRunStatus.SUCCESS]))) >= 3
    assert instance.get_runs(RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE])) == []
