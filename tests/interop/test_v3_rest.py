"""Format v3 tables through a REST catalog: rows and deletion vectors by Spark, index and sketches by us."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.model import Action, DeleteKind
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.row_deletes import deleted_positions
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import make_rows
from tests.interop.lakes import Lake, open_lake
from tests.ops.index.comparison import DEFINITION, answer_with_recall

pytestmark = [pytest.mark.jvm, pytest.mark.services]
RUNNER = LocalRunner(1)


@pytest.fixture
def lake(rest_uri: str, spark: Any, tmp_path: Path) -> Iterator[Lake]:
    with open_lake("v3", rest_uri, tmp_path, spark=spark) as opened:
        yield opened


def create(lake: Lake) -> None:
    lake.sql(
        f"CREATE TABLE {lake.sql_name('t')} (id bigint, name string, section string, embedding array<float>) "
        f"USING iceberg LOCATION '{lake.root}/t' "
        "TBLPROPERTIES ('format-version'='3', 'write.delete.mode'='merge-on-read')"
    )


def insert(lake: Lake, rows: pa.Table) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(rows, f"{folder}/rows.parquet")
        lake.spark.read.parquet(f"{folder}/rows.parquet").writeTo(lake.sql_name("t")).append()


def index_head(lake: Lake, table: Table) -> IndexReport:
    head = table.refresh().metadata.current_snapshot_id
    assert head is not None
    return materialize_index(RunContext(table, lake.storage, RUNNER), DEFINITION, head)


def row_ids(lake: Lake) -> dict[int, int]:
    return {row[0]: row[1] for row in lake.sql(f"SELECT id, _row_id FROM {lake.sql_name('t')}")}


def test_a_v3_table_is_indexed_and_stays_whole(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """With packs of the first version's shards, and a delta in the second version's own file."""
    monkeypatch.setattr(index_packs, "PACK_BYTES", 10_000)
    monkeypatch.setattr(index_packs, "MAX_PACK_BYTES", 1)
    create(lake)
    insert(lake, make_rows(0, 200))
    table = lake.load("t")
    assert index_head(lake, table).action is Action.BUILT
    assert len(index_versions(table.refresh(), "e")[0].packs) > 1
    ids = row_ids(lake)
    lake.sql(f"DELETE FROM {lake.sql_name('t')} WHERE id < 30")
    insert(lake, make_rows(200, 240))
    report = index_head(lake, table)
    live = live_files(table, report.snapshot_id)
    vectors = [file for file in live.files if file.deletes]
    assert {delete.kind for file in vectors for delete in file.deletes} == {DeleteKind.DELETION_VECTOR}
    assert sum(len(deleted_positions(open_storage(file.path, lake.storage), file)) for file in vectors) == 30
    assert (report.action, report.inserted, report.tombstones) == (Action.REFRESHED, 40, 30)
    assert report.bytes_shared
    _, recall = answer_with_recall(table, storage=lake.storage)
    assert recall >= 0.95
    sketches = count_theta_sketches(RunContext(table, lake.storage, RUNNER), report.snapshot_id).publish()
    assert sketches.ndv["id"] == 210

    insert(lake, make_rows(240, 250))
    assert lake.count("t") == 220
    assert lake.count("t", "VERSION AS OF 'ann_e'") == 210
    now = row_ids(lake)
    assert len(set(now.values())) == 220, "our commits must not take row ids"
    assert all(now[key] == value for key, value in ids.items() if key >= 30)
    assert [path for path in lake.delete_orphans("t") if not path.endswith(".metadata.json")] == []
    lake.expire("t")
    lake.delete_orphans("t")
    assert lake.count("t") == 220
    assert index_head(lake, table).inserted == 10
