"""Every catalog with every store: build, refresh, search, then other engines read and maintain what is there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding.bound_versions import tag_target
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.model import Action, StorageConfig
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.ndv import read_ndv
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import make_rows, queries
from tests.interop.lakes import Lake, open_lake
from tests.ops.index.comparison import DEFINITION, ids_by_query
from tests.selection import some

pytestmark = [pytest.mark.jvm, pytest.mark.services]
RUNNER = LocalRunner(2)
ARROW, FSSPEC = "pyiceberg.io.pyarrow.PyArrowFileIO", "pyiceberg.io.fsspec.FsspecFileIO"


LAKES = [(catalog, store) for catalog in ("sqlite", "postgres", "rest") for store in ("local", "s3")]


@pytest.fixture(params=some(LAKES, 1), ids="-".join)
def lake(request: pytest.FixtureRequest, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    kind, store = request.param
    is_sqlite = kind == "sqlite"
    uri = f"sqlite:///{tmp_path}/catalog.db" if is_sqlite else request.getfixturevalue(f"{kind}_uri")
    s3: StorageConfig | None = request.getfixturevalue("s3") if store == "s3" else None
    files = FSSPEC if is_sqlite else ARROW
    with open_lake(f"{kind}_{store}", uri, tmp_path, s3=s3, spark=spark, **{"py-io-impl": files}) as it:
        yield it


def bring_up_to_date(lake: Lake, table: Table) -> Any:
    """Index and sketches of main's head."""
    table.refresh()
    head = table.metadata.current_snapshot_id
    assert head is not None
    report = materialize_index(RunContext(table, lake.storage, RUNNER), DEFINITION, head)
    count_theta_sketches(RunContext(table, lake.storage, RUNNER), head).publish()
    return report


def assert_answers(lake: Lake, table: Table, rows: int, coverage: Coverage = Coverage.EXACT_VERSION) -> None:
    """The index is used, and finds what exact search over all `rows` rows finds."""
    query_vectors, metric = queries(), Metric.parse(DEFINITION.metric)
    result = open_index(table, DEFINITION, storage=lake.storage).search(query_vectors, 10, columns=["id"])
    true = open_exact(table, "embedding", metric, storage=lake.storage).search(query_vectors, 10, columns=["id"])
    answers, wanted = ids_by_query(result.rows), ids_by_query(true.rows)
    recall = np.mean([len(set(answers[query]) & set(wanted[query])) / 10 for query in wanted])
    assert result.coverage is coverage
    assert recall >= 0.95
    assert table.scan(selected_fields=("id",)).to_arrow().num_rows == rows


def test_an_index_lives_through_writes_reads_and_maintenance(lake: Lake) -> None:
    table = lake.create("t")
    table.append(make_rows(0, 150))
    table.append(make_rows(150, 300))
    bring_up_to_date(lake, table)
    first = live_files(table, table.metadata.current_snapshot_id or 0).files[0]
    append_position_deletes(table, {first.path: np.arange(20)})
    table.append(make_rows(300, 350))
    report = bring_up_to_date(lake, table)
    assert (report.action, report.inserted, report.tombstones) == (Action.REFRESHED, 50, 20)
    assert read_ndv(table, report.snapshot_id).entries["id"].ndv == 330
    assert_answers(lake, table, 330)
    table.append(make_rows(350, 360))

    assert lake.count("t") == lake.duckdb_count(table) == lake.polars_count(table) == 340
    assert lake.count("t", "VERSION AS OF 'ann_e'") == 330
    assert lake.duckdb_count(table, report.index_snapshot_id) == 330
    assert lake.polars_count(table, report.index_snapshot_id) == 330

    # SeaweedFS leaves some metadata files of its own out of the table's metadata log
    assert [path for path in lake.delete_orphans("t") if not path.endswith(".metadata.json")] == []
    lake.compute_statistics("t")
    lake.expire("t")
    lake.delete_orphans("t")
    table = lake.load("t")
    assert tag_target(table, "ann_e") == report.index_snapshot_id
    assert table.metadata.snapshot_by_id(report.snapshot_id) is None
    assert lake.count("t") == 340
    assert lake.count("t", "VERSION AS OF 'ann_e'") == 330
    assert_answers(lake, table, 340, Coverage.NEAREST_VERSION_AND_TAIL)
    assert bring_up_to_date(lake, table).inserted == 10
    assert_answers(lake, table, 340)
