"""Tags of runs: what a run needs, as numbers and as the settings map them to a platform's own tags."""

import json
import re
from copy import copy
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import dagster as dg
import numpy as np
import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from examples.demo.local_sensor import tick
from icepuffin.assets.table_settings import HIDDEN_TAGS, RUN_NUMBERS
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.binding.measurements import Measurement
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.planning.sizes import SHARD_BYTES
from icepuffin.ops.index.planning.work_bounds import RefreshBounds
from icepuffin.ops.index.versions.layout_fit import LayoutFit
from icepuffin.ops.index.versions.version_sizes import VersionSizes
from icepuffin.ops.model import MIB, SnapshotId
from icepuffin.ops.resources import Engine
from icepuffin.ops.runs import requirements as requirements_module
from icepuffin.ops.runs.requirements import RunRequirements, _refresh_work, run_requirements
from icepuffin.ops.runs.snapshot import refresh
from icepuffin.ops.table.blob_kind import SIZES_KEY
from icepuffin.ops.table.snapshots import head_of, snapshot_rows
from icepuffin.ops.tasks.task_runner import shard_bytes
from icepuffin.ops.theta import theta_bounds
from icepuffin.ops.theta.requested_statistics import KEPT_UP, RequestedStatistics
from icepuffin.orchestration.engines import catalogs_of
from icepuffin.orchestration.factory import build
from icepuffin.orchestration.overrides import SettingsError
from icepuffin.orchestration.sensor.facts import TABLE_TAG
from icepuffin.orchestration.settings import load
from tests.orchestration.lake import DIMS, Lake, make_lake
from tests.repository import REPOSITORY

Totals: TypeAlias = dict[str, int]
"""Totals of a snapshot's summary, by their names without `total-`."""
KUBERNETES = REPOSITORY / "deploy" / "kubernetes" / "icepuffin.toml"
NUMBERS = tuple(f"{HIDDEN_TAGS}{name}" for name in RUN_NUMBERS)
K8S_CONFIG = {
    "container_config": {"args", "command", "env", "env_from", "image_pull_policy", "resources", "volume_mounts"},
    "pod_template_spec_metadata": {"annotations", "labels"},
    "pod_spec_config": {"affinity", "node_selector", "priority_class_name", "service_account_name", "tolerations"},
    "job_config": {"ttl_seconds_after_finished"},
    "job_metadata": {"annotations", "labels"},
    "job_spec_config": {"active_deadline_seconds", "backoff_limit", "ttl_seconds_after_finished"},
    "merge_behavior": set(),
}
"""Keys that dagster-k8s 0.29 takes in the tag, and of those below them the ones that are of use here."""
QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
LOCAL = Engine(spark_conf={}, threads=2, driver_only_rows=0)
DEFINITION = IndexDefinition(name="embedding", column="embedding", pq_m=4)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return make_lake(tmp_path_factory.mktemp("tags"), snapshots=2)


def requested(lake: Lake, instance: dg.DagsterInstance, **table: object) -> list[dg.RunRequest]:
    lake.write_settings(**table)
    settings = load(lake.settings_file)
    (sensor,) = build(settings).sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    resources = {"icepuffin_catalogs": catalogs_of(settings)}
    result: Any = sensor(dg.build_sensor_context(instance=instance, definitions=build(settings), resources=resources))
    return list(result.run_requests)


def test_requests_of_the_sensor_say_what_their_runs_need(lake: Lake, instance: dg.DagsterInstance) -> None:
    first, second = requested(lake, instance)
    assert [run.tags[f"{HIDDEN_TAGS}rows"] for run in (first, second)] == ["60", "120"]
    snapshot = lake.table.metadata.snapshot_by_id(int(first.partition_key or 0))
    assert snapshot is not None
    assert snapshot.summary is not None
    assert first.tags[f"{HIDDEN_TAGS}bytes"] == snapshot.summary.additional_properties["total-files-size"]
    others = [first.tags[f"{HIDDEN_TAGS}{name}"] for name in ("new_rows", "shards", "tasks", "memory_mb")]
    assert others == ["60", "1", "1", "513"]
    shown = {key for key in first.tags if not key.startswith((".dagster/", "dagster/"))}
    assert shown == {TABLE_TAG}, "each that is shown makes a line of the list of runs higher"


def test_tags_of_the_settings_have_the_numbers_of_each_run(lake: Lake, instance: dg.DagsterInstance) -> None:
    tags = {"team": "search", "size": "{rows} rows of {shards}", "nested": {"a": ["{memory_mb}Mi", 2], "plain": True}}
    first, second = requested(lake, instance, run_tags=tags)
    assert [run.tags["size"] for run in (first, second)] == ["60 rows of 1", "120 rows of 1"]
    assert json.loads(second.tags["nested"]) == {"a": ["513Mi", 2], "plain": True}
    jobs = [job for job in build(load(lake.settings_file)).resolve_all_job_defs() if not job.name.startswith("__")]
    assert {job.name.partition("_")[0] for job in jobs} == {"refresh", "verify", "maintain"}
    for job in jobs:
        assert job.run_tags["team"] == "search"
        assert not {"size", "nested", *NUMBERS} & job.run_tags.keys(), "a job has no snapshot"


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ({"size": "{row}"}, r"run_tags: \{row\} is no number of a run; there are \{rows\}, \{bytes\}"),
        ({"deep": {"x": ["{Rows} {time}"]}}, r"\{time\} is no number"),
        ({"icepuffin/table": "mine"}, "is a tag that icepuffin writes itself"),
        ({"dagster/max_runtime": "9"}, "max_runtime_seconds sets the runtime"),
        ("text", "run_tags: takes a table of settings"),
    ],
)
def test_tags_that_cannot_be_made_are_refused_when_settings_load(lake: Lake, tags: object, message: str) -> None:
    lake.write_settings(run_tags=tags)
    with pytest.raises(SettingsError, match=message):
        load(lake.settings_file)


def requirements(
    lake: Lake, engine: Engine = LOCAL, totals: Totals | None = None, **parameters: Any
) -> RunRequirements:
    """Requirements of the last snapshot, by these totals of its summary."""
    table = lake.catalog.load_table("demo.packages")
    snapshots = [
        snapshot.model_copy(update={"summary": summary_with(snapshot, totals)}) for snapshot in table.metadata.snapshots
    ]
    if totals is not None:
        table.metadata = table.metadata.model_copy(update={"snapshots": snapshots})
    definition = IndexDefinition(name="embedding", column="embedding", **parameters)
    return run_requirements(table, [definition], SnapshotId(lake.head()), engine=engine)


def summary_with(snapshot: Snapshot, totals: Totals | None) -> Summary:
    assert snapshot.summary is not None
    kept = {key: value for key, value in snapshot.summary.additional_properties.items() if not key.startswith("total-")}
    return Summary(
        snapshot.summary.operation, **{**kept, **{f"total-{key}": str(n) for key, n in (totals or {}).items()}}
    )


def test_memory_is_that_of_one_shard_at_a_time(lake: Lake) -> None:
    rows, file_bytes = 1_000_000, 300_000_000
    totals = {"records": rows, "files-size": file_bytes}
    vectors, neighbours = 2 * file_bytes, 4 * 64 * rows
    whole = requirements(lake, totals=totals, shards=1)
    memory_mb = 512 + int(np.ceil(2 * (vectors + neighbours) / MIB))
    assert whole == RunRequirements(rows, file_bytes, rows, 1, 1, memory_mb)
    parts = requirements(lake, totals=totals, shards=10)
    assert parts.memory_mb - 512 == pytest.approx(1.5 * (memory_mb - 512) / 10, abs=1), "shards differ in size"
    chosen = requirements(lake, totals=totals)
    assert chosen.shards == chosen.tasks == -(-(vectors + neighbours) // SHARD_BYTES)
    assert 512 + 512 < chosen.memory_mb <= 512 + 1.5 * 2 * SHARD_BYTES // MIB


@pytest.mark.parametrize("method", ["diskann", "centroid"])
def test_memory_is_that_of_the_largest_task_and_texts_and_included_columns_make_tasks(lake: Lake, method: str) -> None:
    def memory(file_bytes: int, rows: int = 1000, **columns: Any) -> int:
        totals = {"records": rows, "files-size": file_bytes}
        return requirements(lake, totals=totals, method=method, **columns).memory_mb

    few = memory(100_000)
    assert memory(100_000, text=("name",)) == max(few, 512 + 2)
    many = memory(40 << 20)
    assert memory(40 << 20, text=("name",), include=("name",)) == max(many, 512 + 320)
    assert memory(40 << 20, include=("name",)) == max(many, 512 + 64)
    cluster = Engine(spark_conf={"spark.master": "spark://spark:7077"}, threads=1, driver_only_rows=0)
    of_cluster = requirements(
        lake, totals={"records": 1000, "files-size": 40 << 20}, engine=cluster, method="centroid", text=("name",)
    )
    assert of_cluster.memory_mb == 512 + cluster.jvm_mb + 320, "what is small is done in the run's own process"


def test_known_dimensions_replace_the_size_of_the_files(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    lake = make_lake(tmp_path / "lake", snapshots=1)
    lake.write_settings(run_tags={"memory": "{memory_mb}"})
    (run,) = tick(load(lake.settings_file), instance)
    (stored,) = instance.get_runs()
    assert run.succeeded
    assert {stored.tags["memory"], stored.tags[f"{HIDDEN_TAGS}memory_mb"]} == {"513"}, "a local run has the tags too"
    size = 4 * (DIMS + 64) * 1_000_000
    totals = {"records": 1_000_000, "files-size": 900_000_000}
    assert requirements(lake, totals=totals, shards=1).memory_mb == 512 + int(np.ceil(2 * size / MIB))


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A table with an index, as if both had a million rows, and an append of 1 %, in a bucket."""
    lake = make_lake(tmp_path_factory.mktemp("indexed") / "lake", snapshots=1)
    refresh(lake.table, DEFINITION, sketches=False)
    lake.append()
    table = with_counts(lake.table.refresh(), {"total-records": "1000000", "added-records": "1000000"})
    table = with_counts(table, {"total-records": "1010000", "added-records": "10000"}, of=lake.head())
    table.metadata = table.metadata.model_copy(update={"location": "s3://lake/packages"})
    return with_sizes(table, rows=1_000_000, largest=1_000_000)


def with_counts(table: Table, counts: dict[str, str], of: int | None = None) -> Table:
    """A copy with other counts in the summary of one snapshot, or of all with rows of their own."""
    snapshots = []
    for snapshot in table.metadata.snapshots:
        assert snapshot.summary is not None
        changed = Summary(snapshot.summary.operation, **{**snapshot.summary.additional_properties, **counts})
        chosen = snapshot.snapshot_id == of if of else snapshot.summary.operation is not Operation.REPLACE
        snapshots.append(snapshot.model_copy(update={"summary": changed}) if chosen else snapshot)
    changed_table = copy(table)
    changed_table.metadata = table.metadata.model_copy(update={"snapshots": snapshots})
    return changed_table


def with_sizes(table: Table, **counts: Any) -> Table:
    """A copy whose index has other sizes."""
    (version,) = index_versions(table, DEFINITION.name)
    sizes = VersionSizes.parse(version.sizes) or pytest.fail("none")
    return with_counts(table, {SIZES_KEY: replace(sizes, **counts).text()}, of=version.index_snapshot_id)


def needs(table: Table, definition: IndexDefinition = DEFINITION, engine: Engine = LOCAL) -> RunRequirements:
    return run_requirements(table, [definition], head_of(table, "main") or SnapshotId(0), engine=engine)


def test_an_append_of_1_percent_needs_less_than_a_build(indexed: Table) -> None:
    append = needs(indexed)
    build = needs(indexed, replace(DEFINITION, max_degree=63))
    assert (append.new_rows, append.shards, append.tasks) == (10_000, 1, 1)
    assert (build.new_rows, build.shards, build.tasks) == (1_010_000, 1, 2)
    nodes = 4 * (DIMS + 64)
    assert append.memory_mb == 512 + int(np.ceil(128 * 1_000_000 / MIB)), "each row's address is compared"
    assert build.memory_mb == 512 + int(np.ceil(2 * (nodes - 4) * 1_010_000 / MIB))
    assert 512 + 2 * nodes * 10_000 / MIB < append.memory_mb < build.memory_mb


def test_of_two_indexes_each_writes_its_shards_and_one_at_a_time_reads_the_rows(indexed: Table) -> None:
    two = [replace(DEFINITION, name="other", max_degree=degree) for degree in (62, 63)]
    needed = run_requirements(indexed, two, head_of(indexed, "main") or SnapshotId(0), engine=LOCAL)
    assert (needed.new_rows, needed.shards, needed.memory_mb) == (1_010_000, 2, needs(indexed, two[1]).memory_mb)


@pytest.mark.parametrize(("largest", "deltas"), [(2_000_000, [5, 5]), (5, [5, 2_000_000])])
def test_where_all_shards_may_be_rebuilt_each_counts_with_its_deltas(
    indexed: Table, largest: int, deltas: list[int]
) -> None:
    table = with_sizes(indexed, shards=3, largest=largest, deltas=deltas)
    table = with_counts(table, {"added-equality-deletes": "1"}, of=head_of(table, "main"))
    needed = needs(table)
    assert (needed.new_rows, needed.shards, needed.tasks) == (1_010_000, 3 + 2 + 1, 6)
    assert needed.memory_mb == 512 + int(np.ceil(2 * 4 * (DIMS + 64) * 2_000_000 / MIB))


def test_deletes_of_rows_that_are_gone_take_nothing_off(indexed: Table) -> None:
    """Engines leave them behind where they rewrite files."""
    table = with_counts(indexed, {"total-position-deletes": "5000000"})
    assert needs(table, replace(DEFINITION, max_degree=63)) == needs(indexed, replace(DEFINITION, max_degree=63))
    assert snapshot_rows(table, head_of(table, "main") or SnapshotId(0)) == 0


def test_where_all_rows_are_new_their_dimensions_may_be_others(indexed: Table) -> None:
    head = head_of(indexed, "main")
    table = with_counts(indexed, {"total-files-size": "900000000"}, of=head)
    one = replace(DEFINITION, shards=1)
    few = needs(with_counts(table, {"added-records": "1009999"}, of=head), one)
    assert few.memory_mb == 512 + int(np.ceil(2 * 4 * (DIMS + 64) * 1_010_000 / MIB)), "one row is left"
    all_new = needs(with_counts(table, {"added-records": "1010000"}, of=head), one)
    assert all_new.memory_mb == 512 + int(np.ceil(2 * (2**30 + 4 * 64 * 1_010_000) / MIB)), "vectors lie in a file"
    small = with_counts(table, {"added-records": "1010000", "total-files-size": "1"}, of=head)
    assert needs(small, one) == replace(few, bytes=1), "as large as those of before, at least"


def test_dimensions_are_those_of_the_newest_version(indexed: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two versions one was of other vectors, and rows of the newest one alone are left."""
    head, one = head_of(indexed, "main"), replace(DEFINITION, shards=1)
    table = with_counts(indexed, {"total-files-size": "900000000"}, of=head)
    (newest,) = index_versions(table, DEFINITION.name)
    text = Measurement("LocalRunner", 1, 1.0, {"dims": 7 * DIMS}).text()
    older = replace(newest, base_snapshot_id=SnapshotId(5), measurement=text)
    monkeypatch.setattr(requirements_module, "versions_of", lambda *_: (older, newest))
    assert needs(table, one).memory_mb == 512 + int(np.ceil(2 * 4 * (DIMS + 64) * 1_010_000 / MIB))


def test_vectors_of_bits_take_a_number_each_in_memory(lake: Lake) -> None:
    """Where their dimensions are not known yet, they may be all that the files have."""
    totals = {"records": 1_000_000, "files-size": 10_000_000}
    plain, bits = (requirements(lake, totals=totals, element_type=kind, shards=1) for kind in ("column", "bit"))
    assert bits.memory_mb - plain.memory_mb == pytest.approx(2 * 31 * 20_000_000 / MIB, abs=1)


def test_a_snapshot_that_is_gone_needs_the_process_alone(indexed: Table) -> None:
    needed = run_requirements(indexed, [DEFINITION], SnapshotId(5), engine=LOCAL)
    assert needed == RunRequirements(0, 0, 0, 0, 0, 512)


def test_a_build_makes_more_shards_than_named_where_one_might_be_too_large(lake: Lake) -> None:
    totals = {"records": 100_000_000, "files-size": 10_000_000_000}
    nodes = (2**31 - 4097) // (33 + 4 * 65)
    assert requirements(lake, totals=totals, shards=1).shards == int(np.ceil(150_000_000 / nodes)) == 21


def test_a_refresh_that_may_rebuild_a_shard_needs_the_memory_of_it(indexed: Table) -> None:
    table = with_sizes(indexed, tombstones=0.21)
    needed = needs(table)
    assert needed.memory_mb == 512 + int(np.ceil(2 * 4 * (DIMS + 64) * 1_010_000 / MIB))
    assert needed.new_rows == 10_000


@pytest.mark.parametrize("location", ["file:///lake/packages", "/lake/packages"])
def test_in_local_files_a_shard_that_stays_is_read_now_and_then(indexed: Table, location: str) -> None:
    table = copy(indexed)
    table.metadata = table.metadata.model_copy(update={"location": location})
    assert needs(table).memory_mb == 512 + int(np.ceil(1.5 * 4 * (DIMS + 64) * 1_000_000 / MIB))


def test_on_a_cluster_small_work_of_a_refresh_is_in_the_runs_own_process(indexed: Table) -> None:
    cluster = Engine(spark_conf={"spark.master": "spark://spark:7077"}, threads=1, driver_only_rows=0)
    fewer = needs(indexed, engine=cluster).memory_mb
    assert fewer == 512 + 1024 + 384 + int(np.ceil(128 * 1_000_000 / MIB))
    small = needs(with_sizes(indexed, shards=1_000, largest=1_000), engine=cluster).memory_mb
    assert small == 512 + 1024 + 384 + int(np.ceil(2 * 4 * (DIMS + 64) * 10_000 / MIB)), "the new shard alone"
    three = Engine(spark_conf={"spark.master": "local[3]"}, threads=1, driver_only_rows=0)
    assert needs(indexed, engine=three).memory_mb == fewer + 256 + int(np.ceil(2 * 4 * (DIMS + 64) * 10_000 / MIB))


def test_tasks_that_compare_the_addresses_of_all_shards_count(indexed: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    three = Engine(spark_conf={"spark.master": "local[3]"}, threads=1, driver_only_rows=0)
    before = needs(indexed, engine=three)
    monkeypatch.setattr("icepuffin.ops.runs.requirements.NODES_AT_ONCE", 1_000)
    after = needs(indexed, engine=three)
    assert after.tasks >= before.tasks
    assert after.memory_mb >= before.memory_mb + int(128 * 1_000_000 / MIB)


def test_lists_of_rows_that_are_matched_take_two_gibibytes_at_most() -> None:
    """Longer ones are matched in parts. Without rows that are gone none is matched."""
    base = VersionSizes("x", dims=1, shards=1, rows=1, largest=1, deltas=(), tombstones=0.0)
    engine: Any = SimpleNamespace(threads=1)

    def driver(
        arriving: int, removed: int, its: VersionSizes = base, *, is_local: bool = False, written: int = 1
    ) -> float:
        bounds = RefreshBounds(its, arriving, removed, files=1, largest=1, written=written)
        return _refresh_work(IndexDefinition(name="e", column="v"), bounds, engine, is_local=is_local).driver

    assert driver(10_000_000, 10_000_000) == 64 * 20_000_000
    assert driver(10**9, 10**9) == 2 << 30
    assert driver(10**9, 0) < 1 << 20
    assert driver(1, 0, replace(base, deltas=(1, 10**7))) == 128 * 10**7, "the largest shard may be of later rows"
    large = replace(base, dims=100, rows=100_000, largest=100_000)
    whole = [driver(1, 0, replace(large, tombstones=share)) for share in (0.0, 0.1)]
    assert whole[1] == 1.5 * shard_bytes(100_000, 100, 64) > whole[0], "one with tombstones is read whole, and measured"
    assert driver(0, 1, large) == whole[1], "so is one that rows leave"
    kept, changed = (driver(0, 0, large, is_local=True, written=written) for written in (0, 1))
    assert changed == whole[1] > kept


def test_the_sample_by_which_a_refresh_measures_searches_of_all_shards_counts() -> None:
    """Once over a tenth of the rows has come since they were measured."""
    base = VersionSizes("x", dims=3_000, shards=8, rows=100_000, largest=1, deltas=(), tombstones=0.0)

    def driver(arriving: int, its: VersionSizes = base) -> float:
        bounds = RefreshBounds(its, arriving, 0, files=1, largest=1, written=1)
        return _refresh_work(IndexDefinition(name="e", column="v"), bounds, LOCAL, is_local=False).driver

    assert driver(5_000) < 2 * 4 * 3_000 < driver(20_000) == 2 * 4 * 3_000 * 20_000
    assert driver(5_000, replace(base, fit=LayoutFit(arrived=8_000))) == driver(20_000)
    assert driver(100, replace(base, rows=500)) == 2 * 4 * 3_000 * 600


def test_what_a_refresh_does_in_its_own_process_beside_a_cluster_is_small() -> None:
    base = VersionSizes("x", dims=100, shards=1, rows=1, largest=1, deltas=(), tombstones=0.0)
    bounds = RefreshBounds(base, 10**6, 0, files=1, largest=10**6, written=1)
    work = _refresh_work(IndexDefinition(name="e", column="v"), bounds, LOCAL, is_local=False)
    assert work.in_driver == 2 * 64 * MIB * (100 + 64) / 100 < work.task, "64 MiB of vectors, with their neighbours"


def test_sketches_and_columns_for_conditions_count(lake: Lake, indexed: Table) -> None:
    table, snapshot_id = lake.catalog.load_table("demo.packages"), SnapshotId(lake.head())

    def sketching(columns: int) -> int:
        requested = RequestedStatistics(ndv=("id",) * columns)
        return run_requirements(table, [], snapshot_id, engine=LOCAL, statistics=requested).memory_mb

    assert sketching(100_000) == 512 + int(np.ceil(16 * 120 * 100_000 / MIB))
    assert sketching(2_000_000) == 512 + 640, "more are not in memory at once"
    filtered = needs(indexed, replace(DEFINITION, filters=("id", "embedding")))
    assert filtered.new_rows == 1_010_000, "columns that the version lacks are read from all files"
    assert filtered.memory_mb >= 512 + int(np.ceil((128 * 1_000_000 + (64 + 512) * 1_010_000) / MIB))
    assert needs(indexed, replace(DEFINITION, filters=("id", "gone"))) == filtered, "as lists, which take most"


def test_sketches_read_the_files_that_are_new_since_the_last_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake(tmp_path, snapshots=3)
    three = Engine(spark_conf={"spark.master": "local[3]"}, threads=1, driver_only_rows=0)

    def sketching(of: tuple[str, ...] | None = None) -> RunRequirements:
        head = SnapshotId(lake.head())
        return run_requirements(lake.table, [], head, engine=three, statistics=RequestedStatistics(ndv=of))

    jvm = 512 + 1024 + 384
    assert (sketching().tasks, sketching().memory_mb) == (3, jvm + 3 * 256 + 1), "all files; their sketches take 1 MiB"
    refresh(lake.table, sketches=True)
    lake.append()
    assert sketching().tasks == 4, "few small files may have no kept sketches yet"
    monkeypatch.setattr(theta_bounds, "FEW_FILES", 0)
    assert (sketching().tasks, sketching().memory_mb) == (1, jvm + 256 + 1)
    assert sketching(of=("id",)).tasks == 1
    assert sketching(of=("embedding",)).tasks == 4, "no file has a sketch of it yet"
    lake.table.delete("id < 5")
    assert sketching().tasks == 4


def test_an_index_without_graphs_needs_room_for_its_balls(lake: Lake) -> None:
    needed = requirements(lake, method="centroid")
    assert (needed.new_rows, needed.shards, needed.tasks, needed.memory_mb) == (120, 0, 2, 512 + 96)


@pytest.mark.parametrize("totals", [{}, {"files-size": 10}, {"records": 10}], ids=" ".join)
def test_a_snapshot_without_its_totals_counts_as_full_shards(lake: Lake, totals: Totals) -> None:
    assert requirements(lake, totals=totals).memory_mb == 512 + 2 * SHARD_BYTES // MIB


def test_an_empty_table_needs_the_process_alone(lake: Lake) -> None:
    nothing = RunRequirements(0, 0, 0, 0, 0, 512)
    assert requirements(lake, totals={"records": 0, "files-size": 0}) == nothing
    names = ("total-records", "total-data-files", "total-files-size")
    table = with_counts(lake.catalog.load_table("demo.packages"), dict.fromkeys(names, "0"))
    assert run_requirements(table, [], SnapshotId(lake.head()), engine=LOCAL, statistics=KEPT_UP) == nothing


@pytest.mark.parametrize(
    ("conf", "memory"),
    [
        ({}, 512),
        ({"spark.master": "local"}, 512 + 1024 + 384 + 256),
        ({"spark.master": "local[3]"}, 512 + 1024 + 384 + 3 * 256),
        ({"spark.master": "local[64,4]"}, 512 + 1024 + 384 + 10 * 256),
        ({"spark.master": "local[1]", "spark.driver.memory": "8g"}, 512 + 8192 + 819 + 256),
        ({"spark.master": "local[1]", "spark.driver.memory": "512M"}, 512 + 512 + 384 + 256),
        ({"spark.master": "spark://spark:7077"}, 512 + 1024 + 384),
        ({"spark.remote": "sc://spark:15002"}, 512),
    ],
    ids=lambda value: " ".join(value.values()) or "no Spark" if isinstance(value, dict) else "",
)
def test_memory_counts_what_runs_beside_the_run(lake: Lake, conf: dict[str, str], memory: int) -> None:
    engine = Engine(spark_conf=conf, threads=2, driver_only_rows=0)
    tasks = 0 if memory == 512 else engine.local_tasks
    assert requirements(lake, engine, shards=10).memory_mb == memory + 1 + min(10, tasks), "a sample is in the process"


def kubernetes_tag(lake: Lake, instance: dg.DagsterInstance) -> str:
    """The tag of the example, as a run of the last snapshot has it."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("POD_IP", "POD_NAME"):
            patch.setenv(variable, "10.0.0.1")
        example = load(KUBERNETES).tables["docs"]
    return requested(lake, instance, run_tags=example.run_tags)[-1].tags["dagster-k8s/config"]


def test_the_kubernetes_example_has_the_keys_of_dagster_k8s(lake: Lake, instance: dg.DagsterInstance) -> None:
    config = json.loads(kubernetes_tag(lake, instance))
    assert config.keys() <= K8S_CONFIG.keys()
    for part, value in config.items():
        assert value.keys() <= K8S_CONFIG[part], part
    resources = config["container_config"]["resources"]
    assert resources.keys() <= {"requests", "limits"}
    amounts = [amount for kind in resources.values() for amount in kind.values()]
    assert all(QUANTITY.fullmatch(amount) for amount in amounts)
    assert resources["limits"]["memory"] == resources["requests"]["memory"] == "513Mi"


@pytest.mark.skipif(find_spec("dagster_k8s") is None, reason="dagster-k8s checks it, where that is installed")
def test_dagster_k8s_takes_the_example(lake: Lake, instance: dg.DagsterInstance) -> None:
    from dagster_k8s.job import (  # type: ignore[import-not-found]  # noqa: PLC0415
        DagsterK8sJobConfig,
        construct_dagster_k8s_job,
        get_user_defined_k8s_config,
    )

    config = get_user_defined_k8s_config({"dagster-k8s/config": kubernetes_tag(lake, instance)})
    image = DagsterK8sJobConfig(
        job_image="icepuffin",
        dagster_home="/home",
        image_pull_policy=None,
        image_pull_secrets=None,
        service_account_name=None,
        instance_config_map=None,
        postgres_password_secret=None,
        env_config_maps=None,
        env_secrets=None,
    )
    job = construct_dagster_k8s_job(image, ["dagster"], "run", user_defined_k8s_config=config).to_dict()
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "2", "memory": "513Mi"}
    assert job["spec"]["template"]["spec"]["node_selector"] == {"kubernetes.io/arch": "amd64"}
