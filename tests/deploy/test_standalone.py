"""The wheel by itself: it searches where nothing but its requirements is installed, and builds on a standalone cluster
whose executors have the project from the wheel that Spark ships, alone.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

import icepuffin
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.definitions.ddl import drop_index
from icepuffin.ops.storage.local_storage import to_path
from tests.conftest import make_rows, queries
from tests.deploy.cluster import Cluster, environment_without_the_project, standalone_cluster
from tests.deploy.driver import SHARD_CACHE
from tests.deploy.wheel import build_wheel, install_alone
from tests.orchestration.lake import Lake, make_lake
from tests.selection import nightly

REPOSITORY = Path(__file__).resolve().parents[2]
SHARDS = 3
SEARCH = """
import json, sys
from importlib.util import find_spec
from pyiceberg.table import StaticTable
import icepuffin

reader = icepuffin.open_index(StaticTable.from_metadata(sys.argv[1]), "embedding")
result = reader.search(json.loads(sys.argv[2]), k=5, where="section = 'section 1'")
packages = ("dagster", "pyspark", "sqlalchemy", "sqlglot", "s3fs", "pandas")
print(json.dumps([result.coverage, result.rows["id"].to_pylist(), [name for name in packages if find_spec(name)]]))
"""

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def archive(wheel: Path) -> Path:
    """The project's wheel under the name by which Spark unpacks it."""
    return Path(shutil.copy(wheel, wheel.with_name("icepuffin.zip")))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = make_lake(tmp_path_factory.mktemp("lake"), snapshots=3)
    index = "[tables.packages.indexes.embedding]\n"
    lake.settings_file.write_text(lake.settings().replace(index, f"{index}shards = {SHARDS}\n"), encoding="utf-8")
    return lake


@dataclass(frozen=True)
class Build:
    """What the driver printed, the published bytes, the workers' folders, and Spark's log of events."""

    report: dict[str, Any]
    published: bytes
    work: tuple[Path, ...]
    events: list[dict[str, Any]]


@pytest.fixture(scope="module")
def built(lake: Lake, archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("cluster")
    python = environment_without_the_project(folder / "environment")
    events = folder / "events"
    events.mkdir()
    with standalone_cluster(folder) as cluster:
        report = drive(lake, "0", on_the_cluster(cluster, archive, python, events))
    (log,) = (file for file in events.rglob("events_*"))
    lines = log.read_text(encoding="utf-8").splitlines()
    return Build(report, to_path(report["path"]).read_bytes(), cluster.work, [json.loads(line) for line in lines])


def on_the_cluster(cluster: Cluster, archive: Path, python: Path, events: Path) -> dict[str, str]:
    conf = {
        "spark.archives": f"{archive}#icepuffin",
        "spark.executorEnv.PYTHONPATH": "icepuffin",
        "spark.executorEnv.NUMBA_DISABLE_JIT": "1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
    }
    return {
        "ICEPUFFIN__SPARK__MASTER": cluster.master,
        "ICEPUFFIN__SPARK__CONF": json.dumps(conf),
        "PYSPARK_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def drive(lake: Lake, driver_only_rows: str, more: dict[str, str]) -> dict[str, Any]:
    """Build the head's version by a driver in a process of its own. The kernels run as Python, here and on executors,
    since each of these would compile them first.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "NUMBA_CACHE_DIR"}},
        "NUMBA_DISABLE_JIT": "1",
        "ICEPUFFIN_SETTINGS": str(lake.settings_file),
        "ICEPUFFIN__SPARK__DRIVER_ONLY_ROWS": driver_only_rows,
        **more,
    }
    command = [sys.executable, "-m", "tests.deploy.driver", str(lake.head())]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def test_the_wheel_alone_searches_without_dagster_spark_or_java(
    wheel: Path, table_factory: Callable[..., Table], tmp_path: Path
) -> None:
    table = table_factory()
    table.append(make_rows(0, 300))
    icepuffin.refresh(table, icepuffin.IndexDefinition(name="embedding", column="embedding", pq_m=4), sketches=False)
    table = table.refresh()
    (query,) = queries(1).tolist()
    here = icepuffin.open_index(table, "embedding").search(query, k=5, where="section = 'section 1'")
    assert wheel.stat().st_size < 2_000_000
    python = install_alone(wheel, tmp_path / "environment")
    # the kernels run as Python: the environment has none that are compiled
    environment = {"NUMBA_DISABLE_JIT": "1", "HOME": str(tmp_path), "PATH": "/nowhere"}
    command = [python, "-c", SEARCH, table.metadata_location, json.dumps(query)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    assert json.loads(done.stdout) == [here.coverage, here.rows["id"].to_pylist(), []]
    for name, extra in {"SqlSession": "sql", "build_defs": "dagster"}.items():
        command = [python, "-c", f"import icepuffin; icepuffin.{name}"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.stderr.splitlines()[-1].endswith(f": pip install 'icepuffin[{extra}]'"), done.stderr
    of_table = (
        '[catalogs.lake]\ntype = "rest"\nuri = "http://127.0.0.1:1"\n[tables.t]\ncatalog = "lake"\nname = "n.t"\n'
    )
    (tmp_path / "icepuffin.toml").write_text(of_table)
    command = [python.with_name("icepuffin"), "ui", "--start"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == "error: this command needs dagster_webserver: pip install 'icepuffin[ui]'\n"


def test_an_executor_has_no_other_way_to_the_project(tmp_path: Path) -> None:
    python = environment_without_the_project(tmp_path / "environment")
    program = "import pyarrow, numba, pyiceberg\nimport icepuffin.ops"
    done = subprocess.run([python, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "No module named 'icepuffin'" in done.stderr


@nightly
def test_the_version_was_built_by_code_from_the_wheel(built: Build) -> None:
    assert (built.report["action"], built.report["shards"]) == ("built", SHARDS)
    unpacked = [path for worker in built.work for path in worker.glob("app-*/*/icepuffin")]
    packages = []
    for source in map(Path, built.report["sources"]):
        (root,) = (path for path in unpacked if path in source.parents)
        packages.append(source.relative_to(root).parts[:2])
    assert packages == [("icepuffin", package) for package in ("ops", "ops", "ann_kernels", "puffin")]


@nightly
def test_both_workers_built_shards(built: Build) -> None:
    jobs = [event for event in built.events if event["Event"] == "SparkListenerJobStart"]
    written = [job for job in jobs if job["Properties"]["spark.job.description"] == "icepuffin: write shards"]
    last = max(stage for job in written for stage in job["Stage IDs"])  # those before it only spread the tasks
    ended = [event for event in built.events if event["Event"] == "SparkListenerTaskEnd"]
    executors = [event["Task Info"]["Executor ID"] for event in ended if event["Stage ID"] == last]
    assert len(built.work) == len(set(executors)) == 2
    assert len(executors) == SHARDS


@nightly
def test_each_shard_is_kept_by_one_executor(built: Build) -> None:
    """It is searched where it was loaded. By chance all searches would find it there once in 64 times."""
    assert built.report["searched"] == SHARDS
    by_worker = [[file.name for file in work.glob(f"app-*/*/{SHARD_CACHE}/**/*.shard")] for work in built.work]
    kept = [name for names in by_worker for name in names]
    assert all(by_worker)
    assert len(kept) == len(set(kept)) == SHARDS, by_worker


@nightly
def test_places_are_spread_anew_after_an_executor_was_lost(built: Build) -> None:
    before, after = map(set, built.report["places"])
    assert len(before) == len(after) == 2
    assert len(before & after) == 1


@nightly
def test_the_bytes_are_those_of_a_build_in_one_process(lake: Lake, built: Build) -> None:
    left = [path for path in (lake.directory / "warehouse").rglob("_icepuffin/**/*") if path.is_file()]
    assert left == [], "the second build would take the first one's shards"
    table = lake.table.refresh()
    drop_index(table, "embedding")
    derived = [version.index_snapshot_id for version in index_versions(table, "embedding")]
    table.refresh().maintenance.expire_snapshots().by_ids(derived).commit()
    report = drive(lake, str(10**9), {})
    assert report["action"] == "built"
    assert report["sources"] == []
    assert to_path(report["path"]).read_bytes() == built.published
