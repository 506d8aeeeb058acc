"""Runs stay under the memory that their tags say: with ICEPUFFIN_RUN_MEMORY=1, and minutes.

Each step is a process of its own, as a run is. It prints the memory that its tag says, and its peak.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.definitions.index_definition import IndexDefinition

pytestmark = pytest.mark.skipif(os.environ.get("ICEPUFFIN_RUN_MEMORY") != "1", reason="ICEPUFFIN_RUN_MEMORY is not 1")
ROWS, DIMS = 150_000, 192
RUN = """
import json, sys
from pathlib import Path
import dagster
import icepuffin
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.table.snapshots import head_of
from icepuffin.ops.index.definitions.ddl import list_definitions
from icepuffin.ops.resources import Engine
from icepuffin.ops.runs.requirements import run_requirements
from icepuffin.ops.theta.requested_statistics import KEPT_UP

table = open_catalog("m", json.loads(sys.argv[1])).load_table("db.t")
engine = Engine(spark_conf={}, threads=2, driver_only_rows=0)
needed = run_requirements(table, list_definitions(table), head_of(table, "main"), engine=engine, statistics=KEPT_UP)
report = icepuffin.refresh(table, threads=2).indexes["e"]
peak_kb = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(report.action, needed.memory_mb, int(peak_kb) // 1024)
"""


def rows(first: int, count: int) -> pa.Table:
    rng = np.random.default_rng(first)
    plane = np.random.default_rng(7).standard_normal((12, DIMS), dtype=np.float32)
    vectors = rng.standard_normal((count, 12), dtype=np.float32) @ plane
    vectors += 0.05 * rng.standard_normal(vectors.shape, dtype=np.float32)
    column = pa.FixedSizeListArray.from_arrays(vectors.ravel(), DIMS).cast(pa.list_(pa.float32()))
    return pa.table({"id": np.arange(first, first + count), "embedding": column})


def delete_every_fourth(table: Table) -> None:
    (largest,) = (task.file for task in table.scan().plan_files() if task.file.record_count == ROWS)
    append_position_deletes(table, {largest.file_path: np.arange(0, ROWS, 4)})


def test_the_peak_of_each_run_is_under_its_tag(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    catalog = open_catalog("m", properties)
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", rows(0, 1).schema, properties={"format-version": "2"})
    table.append(rows(0, ROWS))
    create_index(table, IndexDefinition(name="e", column="embedding", metric="l2"))
    steps = {
        "build": lambda: None,
        "append of 1 %": lambda: table.append(rows(ROWS, ROWS // 100)),
        "append of a tenth": lambda: table.append(rows(2 * ROWS, ROWS // 10)),
        "a quarter deleted": lambda: delete_every_fourth(table),
        "written anew": lambda: table.overwrite(table.scan().to_arrow()),
    }
    tags = {}
    for name, step in steps.items():
        table.refresh()
        step()
        done = subprocess.run(
            [sys.executable, "-c", RUN, json.dumps(properties)], capture_output=True, text=True, check=True
        )
        action, tag, peak = done.stdout.split()
        print(f"{name}: {action}, {peak} MiB of {tag}")  # noqa: T201  docs/operations.md has the figures
        assert int(peak) < int(tag), name
        tags[name] = int(tag)
    assert tags["append of 1 %"] < tags["build"]
