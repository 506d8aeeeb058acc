"""Near pairs of each snapshot in a table of their own: settings, a run in Dagster, a real catalog."""

from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import ancestors_of

from icepuffin.assets.partitions import partitions_name
from icepuffin.assets.spec import is_within
from icepuffin.orchestration.discovery import list_tables, listed_tables, shown_spec
from icepuffin.orchestration.engines import catalogs_of
from icepuffin.orchestration.factory import build
from icepuffin.orchestration.settings import load
from tests.orchestration.lake import Lake, make_lake, make_rows

NAME = "demo.near"
KEY = ["demo", "demo", "packages", "near_pairs", "embedding"]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Two snapshots: in the second one rows 0 to 3 are there twice, row 3 nearly so."""
    lake = make_lake(tmp_path, snapshots=1)
    again = make_rows(0, 60).slice(0, 4)
    vectors = np.array(again["embedding"].to_pylist(), np.float32)
    vectors[3, 0] += 0.01
    again = again.set_column(2, "embedding", pa.array(list(vectors), pa.list_(pa.float32())))
    lake.table.append(again.set_column(0, "id", pa.array(range(100, 104), pa.int64())))
    write_settings(lake)
    return lake


def write_settings(lake: Lake, **changes: Any) -> None:
    chosen = {"table": NAME, "within": 0.1, "columns": ["id"], **changes}
    lines = "".join(f"{name} = {value!r}\n" for name, value in chosen.items())
    with lake.write_settings(retries=0).open("a", encoding="utf-8") as file:
        file.write(f'metric = "l2"\n[tables.packages.indexes.embedding.near_pairs]\n{lines}')


def run(lake: Lake, snapshot_id: int) -> dg.ExecuteInProcessResult:
    """A run of the job that the sensor requests."""
    settings = load(lake.settings_file)
    ((_, table, indexes),) = listed_tables(settings.tables, list_tables(settings.tables, catalogs_of(settings)))
    spec = shown_spec(table, indexes)
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(partitions_name(spec), [str(snapshot_id)])
        job = build(settings).resolve_job_def(f"refresh_{spec.slug}")
        return job.execute_in_process(partition_key=str(snapshot_id), instance=instance, raise_on_error=False)


def metadata_of(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    assert result.success
    events = {event.asset_key: event for event in result.get_asset_materialization_events()}
    return {name: value.value for name, value in events[dg.AssetKey(KEY)].materialization.metadata.items()}


def why_failed(result: dg.ExecuteInProcessResult) -> str:
    (failure,) = (event for event in result.all_events if event.is_step_failure)
    assert str(failure.step_key).endswith("near_pairs__embedding")
    data: Any = failure.event_specific_data
    return str(data.user_failure_data.description)


def pairs(table: Table) -> list[tuple[int, ...]]:
    """(snapshot, ids of both rows): which of them is the left one goes by their files."""
    rows = table.refresh().scan().to_arrow().to_pylist()
    return sorted((row["snapshot_id"], *sorted((row["left_id"], row["right_id"]))) for row in rows)


def test_each_run_replaces_the_rows_of_its_snapshot(lake: Lake) -> None:
    head, first = (it.snapshot_id for it in ancestors_of(lake.table.refresh().current_snapshot(), lake.table.metadata))
    metadata = metadata_of(run(lake, head))
    assert (metadata["table"], metadata["pairs"], metadata["missed (share)"]) == (NAME, 4, 0.0)
    assert metadata["pairs compared"] == 4
    table = lake.catalog.load_table(NAME)
    assert table.schema().column_names == ["snapshot_id", "distance", "left_id", "right_id"]
    expected = [(head, number, 100 + number) for number in range(4)]
    assert pairs(table) == expected
    metadata_of(run(lake, head))
    assert pairs(table) == expected, "a run that is repeated doubles nothing"
    assert metadata_of(run(lake, first))["pairs"] == 0
    assert pairs(table) == expected, "another snapshot has rows of its own"
    lake.table.delete("id >= 102")
    metadata_of(run(lake, lake.head()))
    assert pairs(table) == sorted([*expected, *((lake.head(), number, 100 + number) for number in range(2))])
    assert lake.table.refresh().scan().to_arrow().num_rows == 62


def test_rows_that_are_pairs_no_more_go(lake: Lake) -> None:
    head = lake.head()
    assert metadata_of(run(lake, head))["pairs"] == 4
    write_settings(lake, within=0.001)
    assert metadata_of(run(lake, head))["pairs"] == 3
    assert pairs(lake.catalog.load_table(NAME)) == [(head, number, 100 + number) for number in range(3)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"table": "demo.packages"}, "demo.packages was not made for near pairs of this index: name another table"),
        ({"table": "nowhere.near"}, "nowhere.near, for near pairs: there is no such namespace; create it"),
        ({"columns": ["name"]}, f"{NAME} has near pairs with other columns: drop it"),
        ({"limit": 3}, "over 3 pairs are within"),
        ({"columns": ["nothing"]}, "nothing"),
    ],
)
def test_what_cannot_be_written_fails_and_changes_nothing(lake: Lake, changes: dict[str, Any], message: str) -> None:
    head = lake.head()
    metadata_of(run(lake, head))
    written = pairs(lake.catalog.load_table(NAME))
    write_settings(lake, **changes)
    assert message in why_failed(run(lake, head))
    assert pairs(lake.catalog.load_table(NAME)) == written
    assert lake.table.refresh().scan().to_arrow().num_rows == 64


def test_pairs_are_written_after_the_version_of_their_snapshot(lake: Lake) -> None:
    graph = build(load(lake.settings_file)).resolve_asset_graph()
    assert graph.get(dg.AssetKey(KEY)).parent_keys == {dg.AssetKey([*KEY[:3], "ann_index", "embedding"])}


def test_no_other_table_has_the_name_of_the_asset() -> None:
    assert is_within("demo__demo__packages__near_pairs__a", "demo__demo__packages")
    assert not is_within("demo__demo__packages__near", "demo__demo__packages")
