"""Words of columns of texts that tasks on Spark make."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.versions.version_reader import open_version, read_included_blob
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.spark.spark_runner import SparkRunner
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext, TaskRunner
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.jvm, pytest.mark.usefixtures("no_disk_cache")]


def test_tasks_on_spark_make_the_words_that_this_process_makes(
    session: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icepuffin.ops.tasks.task_runner.SMALL_WORK", 0)
    answers, places = [], []
    for number, runner in enumerate((SparkRunner(session), LocalRunner(1))):
        table = table_of(tmp_path / str(number), runner)
        version = index_versions(table, "e")[-1]
        opened = open_version(version, STORAGE)
        blob = read_included_blob(opened, 2, STORAGE, of_words=True)
        files = [opened.routing.files[entry.slot].rows for entry in blob.entries]
        places.append(sorted(zip(files, ((entry.length, entry.checksum) for entry in blob.entries), strict=True)))
        assert check_integrity(RunContext(table, STORAGE, runner), version).faults == ()
        answers.append(open_index(table, "e", storage=STORAGE).search(text="name 7 17", k=400, columns=["id"]).rows)
    assert places[0] == places[1]
    assert len(places[0]) == 3
    scores = [{row["id"]: row["score"] for row in answer.to_pylist()} for answer in answers]
    assert scores[0] == scores[1]
    assert len(scores[0]) == 300


def table_of(folder: Path, runner: TaskRunner) -> Table:
    """A table of three files, whose index the runner makes."""
    catalog = SqlCatalog("c", uri=f"sqlite:///{folder}.db", warehouse=f"file://{folder}")
    catalog.create_namespace("n")
    rows = [make_rows(100 * part, 100 * (part + 1)) for part in range(3)]
    table = catalog.create_table("n.t", rows[0].schema, properties={"format-version": "2"})
    for part in rows:
        table.append(pa.table(part))
    definition = create_index(table, replace(DEFINITION, text=("name",), target_recall=0.3))
    head = table.refresh().metadata.current_snapshot_id
    assert head is not None
    materialize_index(RunContext(table, STORAGE, runner), definition, head)
    return table.refresh()
