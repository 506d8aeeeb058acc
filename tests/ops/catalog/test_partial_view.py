"""Catalogs that show a part of a table's snapshots: all are requested, and nothing is deleted on a partial view."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from icepuffin.assets.partitions import partitions_name
from icepuffin.assets.spec import TableSpec
from icepuffin.assets.table_settings import TableSettings
from icepuffin.ops.errors import TableFaultError
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy, RetentionScope
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.runs.maintenance import collect_table_garbage
from icepuffin.ops.table.snapshots import data_snapshots, hides_snapshots
from icepuffin.orchestration.sensor.sensor_definition import evaluate
from icepuffin.orchestration.sensor.sensor_plan import SensorCursor
from tests.conftest import STORAGE, make_rows
from tests.interop.lakes import Lake, open_lake
from tests.ops.index.test_retention import with_versions

pytestmark = pytest.mark.services


@pytest.fixture
def lake(rest_uri: str, tmp_path: Path) -> Iterator[Lake]:
    with open_lake("partial", rest_uri, tmp_path, **{"snapshot-loading-mode": "refs"}) as opened:
        yield opened
        opened.catalog.drop_table(f"{opened.namespace}.t")


def partial(lake: Lake) -> Table:
    """The table as a catalog shows it that ignores what is requested."""
    plain = load_catalog("partial", type="rest", uri=lake.catalog.uri, **{"snapshot-loading-mode": "refs"})
    return plain.load_table(f"{lake.namespace}.t")


def test_all_snapshots_are_loaded_whatever_the_settings_say(lake: Lake) -> None:
    table = with_versions(lake.create("t"), 3)
    assert len(data_snapshots(lake.load("t"))) == 3
    assert len(lake.load("t").metadata.snapshots) == 6
    assert not hides_snapshots(table)


def test_nothing_is_deleted_on_a_partial_view(lake: Lake) -> None:
    whole = lake.create("t")
    for number in range(3):
        whole.append(make_rows(number, number + 1))
    view = partial(lake)
    assert len(view.metadata.snapshots) == 1
    leftover = Path(f"{whole.location()}/metadata/ann-e-left.puffin".removeprefix("file://"))
    leftover.write_bytes(b"left")
    with pytest.raises(TableFaultError, match=r"\.t: catalog 'partial' does not show all snapshots"):
        collect_garbage(view, storage=STORAGE, grace=timedelta(0))
    with pytest.raises(TableFaultError):
        collect_table_garbage(
            view, storage=STORAGE, retentions={}, default=RetentionPolicy(RetentionScope.NEWEST), grace_hours=0
        )
    assert leftover.exists()
    assert collect_garbage(whole, storage=STORAGE, grace=timedelta(0)).deleted == (f"file://{leftover}",)


def test_hidden_snapshots_of_a_branch_are_noticed_although_no_history_names_them(lake: Lake) -> None:
    whole = lake.create("t")
    whole.append(make_rows(0, 100))
    whole.manage_snapshots().create_branch(whole.metadata.current_snapshot_id or 0, "audit").commit()
    for number in range(2):
        whole.append(make_rows(100 + number, 101 + number), branch="audit")
    view = partial(lake)
    assert (len(view.metadata.snapshots), len(whole.metadata.snapshots)) == (2, 3)
    with pytest.raises(TableFaultError, match="does not show all snapshots"):
        collect_garbage(view, storage=STORAGE, grace=timedelta(0))
    assert collect_garbage(whole, storage=STORAGE, grace=timedelta(0)).deleted == ()


@pytest.mark.parametrize("branch", ["main", "audit"])
def test_no_partition_is_dropped_on_a_partial_view(lake: Lake, branch: str) -> None:
    whole = lake.create("t")
    whole.append(make_rows(0, 1))
    whole.manage_snapshots().create_branch(whole.metadata.current_snapshot_id or 0, "audit").commit()
    for number in range(1, 3):
        whole.append(make_rows(number, number + 1), branch=branch)
    name, cursor = f"{lake.namespace}.t", SensorCursor(str(whole.metadata.table_uuid))
    spec = TableSpec(TableSettings(catalog="partial", name=name, watched_refs=("main", "audit")))
    with dg.DagsterInstance.ephemeral() as instance:
        assert len(evaluate(instance, spec, lake.load("t"), cursor).recorded) == 3
        assert evaluate(instance, spec, partial(lake), cursor).dropped == ()
        assert len(instance.get_dynamic_partitions(partitions_name(spec))) == 3
