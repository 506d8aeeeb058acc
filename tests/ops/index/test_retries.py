"""What a version's bytes do not depend on: who does the work, and how often it was begun."""

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.model import Action
from icepuffin.ops.spark.spark_runner import SparkRunner
from icepuffin.ops.storage import ObjectMissingError, Storage, open_storage
from icepuffin.ops.tasks import shard_task as shard_module
from icepuffin.ops.tasks.rows import VectorRows
from icepuffin.ops.tasks.shard_task import ShardResult, ShardTask, make_shard
from icepuffin.ops.tasks.staged_blocks import read_blocks
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext, TaskRunner
from tests.conftest import DIMS, ROWS, STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, content
from tests.ops.index.test_index_materialization import drop_everything

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TableFactory = Callable[..., Table]
_DEATH_NOTE = "ICEPUFFIN_TEST_DEATH_NOTE"


class DriverLostError(Exception):
    """The driver is gone."""


class DyingRunner:
    """Runs `healthy` shard tasks, then the driver is lost."""

    parallelism = 1
    task_threads = 1

    def __init__(self, healthy: int) -> None:
        self._healthy = healthy

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], *, label: str, progress: Any = None) -> Any:
        results = []
        for number, task in enumerate(tasks):
            if function is make_shard and number == self._healthy:
                raise DriverLostError(label)
            results.append(function(task))
        return results


class MurderousRunner(SparkRunner):
    """A Spark runner whose first attempt at shard 1 kills its Python worker after the work, before the answer."""

    def __init__(self, session: "SparkSession", note: Path) -> None:
        super().__init__(session)
        self._note = note

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], *, label: str, progress: Any = None) -> Any:
        if function is make_shard:
            wrapped = [(str(self._note), task) for task in tasks]
            return super().run(make_shard_but_die_once, wrapped, label=label, progress=progress)
        return super().run(function, tasks, label=label, progress=progress)


def make_shard_but_die_once(call: tuple[str, ShardTask]) -> ShardResult:
    note, task = Path(call[0]), call[1]
    if task.shard_id == 1 and not note.exists():
        note.touch()
        storage = open_storage(task.staging, task.storage)
        incoming = read_blocks(task.storage, task.blocks, task.dims)
        shard_module._make(task, storage, incoming, ())  # nobody will refer to it
        os.kill(os.getpid(), signal.SIGKILL)
    return make_shard(task)


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    new_table = table_factory()
    for start in range(0, 600, 120):
        new_table.append(make_rows(start, start + 120))
    return new_table


def build(table: Table, runner: TaskRunner, definition: IndexDefinition = DEFINITION) -> IndexReport:
    head = table.metadata.current_snapshot_id
    assert head is not None
    return materialize_index(RunContext(table, STORAGE, runner), definition, head)


@pytest.fixture
def expected(table: Table) -> bytes:
    """The version's bytes as an undisturbed build in this process gives them."""
    data = content(build(table, LocalRunner(1)))
    drop_everything(table)
    return data


class SeveralShards(LocalRunner):
    """Remembers how many shards were made at once."""

    at_once = 0

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], *, label: str, progress: Any = None) -> Any:
        if function is make_shard:
            self.at_once = self._at_once(tasks)
        return super().run(function, tasks, label=label, progress=progress)


def test_shards_that_are_made_at_once_have_the_same_bytes(table: Table) -> None:
    many, runner = replace(DEFINITION, shards=9), SeveralShards(4)
    one_by_one = content(build(table, LocalRunner(1), many))
    drop_everything(table)
    assert content(build(table, runner, many)) == one_by_one
    assert runner.at_once == 2


@pytest.mark.parametrize("staged", ["block-*.arrows", "shard-*.dann", "scatter-*.json", "shard-*.json"])
@pytest.mark.parametrize("harm", [lambda data: data[:-40], lambda data: data[:-40] + bytes(40)], ids=["cut", "zeroed"])
def test_staged_objects_that_were_damaged_are_made_again(
    table: Table, expected: bytes, staged: str, harm: Callable[[bytes], bytes]
) -> None:
    """By the run that takes them, or by the next one."""
    with pytest.raises(DriverLostError):
        build(table, DyingRunner(2))
    folder = Path(table.location().removeprefix("file://")) / "metadata" / "_icepuffin"
    damaged = list(folder.rglob(staged))
    assert len(damaged) >= (1 if "scatter" in staged else 2)
    for path in damaged:
        path.write_bytes(harm(path.read_bytes()))
    try:
        report = build(table, LocalRunner(1))
    except ObjectMissingError:
        report = build(table, LocalRunner(1))
    assert content(report) == expected


@pytest.mark.parametrize("staged", ["block-*.arrows", "shard-*.dann"])
def test_damage_is_made_again_in_a_build_that_follows_a_refresh(table_factory: TableFactory, staged: str) -> None:
    """What is staged for it lies in another folder than that of the refresh, which each run tries first."""
    table, definition = table_factory(), replace(DEFINITION, shards=8, max_deltas=0)
    table.append(make_rows(0, 600))
    build(table, LocalRunner(1), definition)
    near = np.random.default_rng(0).normal(5, 0.01, (500, DIMS)).tolist()
    column = pa.array(near, pa.list_(pa.float32()))
    table.append(make_rows(600, 1_100).set_column(3, ROWS.field("embedding"), column))
    with pytest.raises(DriverLostError):
        build(table, DyingRunner(2), definition)
    damaged = list(Path(table.location().removeprefix("file://")).rglob(staged))
    assert len(damaged) >= 2
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-40])
    with suppress(ObjectMissingError):
        build(table, LocalRunner(1), definition)
    report = build(table, LocalRunner(1), definition)
    assert "out of balance" in report.reason or report.action is Action.REUSED


class SweptRunner(DyingRunner):
    """Each time before shards are written, another run that has met damage sweeps what it had staged with this one."""

    def __init__(self, table: Table) -> None:
        super().__init__(-1)
        self.root = f"{table.location()}/metadata/_icepuffin/e/"
        self.swept: set[str] = set()

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], *, label: str, progress: Any = None) -> Any:
        if function is make_shard:
            store = open_storage(self.root, STORAGE)
            folders = {it.path: it.path.removeprefix(self.root).partition("/")[0] for it in store.list(self.root)}
            self.swept = self.swept or set(folders.values())
            store.delete_all([path for path, folder in folders.items() if folder in self.swept])
        return super().run(function, tasks, label=label, progress=progress)


def test_two_runs_that_sweep_what_both_have_staged_do_not_both_fail(table: Table, expected: bytes) -> None:
    runner = SweptRunner(table)
    report = build(table, runner)
    assert (report.action, content(report)) == (Action.BUILT, expected)
    assert runner.swept
    assert list(open_storage(runner.root, STORAGE).list(runner.root)) == []


@pytest.mark.jvm
def test_spark_gives_the_same_bytes(table: Table, expected: bytes, spark: "SparkSession") -> None:
    assert content(build(table, SparkRunner(spark))) == expected


@pytest.mark.jvm
def test_a_killed_spark_worker_changes_no_byte(
    table: Table, expected: bytes, spark: "SparkSession", tmp_path: Path
) -> None:
    report = build(table, MurderousRunner(spark, tmp_path / "note"))
    assert (tmp_path / "note").exists()
    assert content(report) == expected


class OvertakenRunner(SparkRunner):
    """Before shards are written another run of the same build publishes it, and sweeps what both had staged."""

    def __init__(self, session: "SparkSession", table: Table) -> None:
        super().__init__(session)
        self._other = table.catalog.load_table(table.name())

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], *, label: str, progress: Any = None) -> Any:
        if function is make_shard:
            build(self._other, LocalRunner(1))
        return super().run(function, tasks, label=label, progress=progress)


@pytest.mark.jvm
def test_a_run_on_spark_that_another_has_overtaken_finds_the_version(
    table: Table, expected: bytes, spark: "SparkSession"
) -> None:
    report = build(table, OvertakenRunner(spark, table))
    assert report.action is Action.REUSED
    assert content(report) == expected


@pytest.mark.parametrize("healthy", [0, 2])
def test_a_retry_finds_finished_shards_and_ends_equal(
    table: Table, expected: bytes, healthy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DriverLostError):
        build(table, DyingRunner(healthy))
    assert index_versions(table, "e") == ()
    shard_ids: list[int] = []
    real = shard_module._make

    def count(task: ShardTask, storage: Storage, incoming: VectorRows, addresses: Sequence[VectorRows]) -> ShardResult:
        shard_ids.append(task.shard_id)
        return real(task, storage, incoming, addresses)

    monkeypatch.setattr(shard_module, "_make", count)
    assert content(build(table, LocalRunner(1))) == expected
    assert shard_ids == list(range(healthy, 3))


@pytest.mark.parametrize("left", [0, 1])
def test_a_marker_whose_objects_were_swept_is_not_trusted(table: Table, expected: bytes, left: int) -> None:
    with pytest.raises(DriverLostError):
        build(table, DyingRunner(2))
    root = f"{table.location()}/metadata/_icepuffin"
    store = open_storage(root, STORAGE)
    for path in sorted(item.path for item in store.list(root) if not item.path.endswith(".json"))[left:]:
        store.delete(path)
    assert content(build(table, LocalRunner(1))) == expected


def test_nothing_staged_is_left_after_a_build(table: Table) -> None:
    build(table, LocalRunner(1))
    root = f"{table.location()}/metadata/_icepuffin"
    assert list(open_storage(root, STORAGE).list(root)) == []


def test_a_changed_definition_is_built_anew_and_says_why(table: Table) -> None:
    first = build(table, LocalRunner(1))
    second = build(table, LocalRunner(1), replace(DEFINITION, max_degree=12))
    assert second.build_id != first.build_id
    assert second.puffin_path != first.puffin_path
    assert second.reason == "the definition has changed since the versions there are"


def test_two_definitions_of_an_index_that_take_turns_are_reported(table: Table) -> None:
    """As of a settings file and of a component in code: each moved the tag to its own version, with no word on it."""
    other = replace(DEFINITION, max_degree=12)
    clause = "the tag was on a version with max_degree {}: if that comes again, the index is defined in two places"
    build(table, LocalRunner(1))
    assert "the tag was on" not in build(table, LocalRunner(1), other).reason, "a parameter may be changed"
    again = build(table, LocalRunner(1))
    assert again.action is Action.RETAGGED
    assert clause.format(12) in again.reason
    table.append(make_rows(600, 640))
    assert "the tag was on" not in build(table, LocalRunner(1)).reason
    refreshed = build(table, LocalRunner(1), other)
    assert refreshed.action is Action.REFRESHED
    assert clause.format(DEFINITION.max_degree) in refreshed.reason
    assert "the tag was on" not in build(table, LocalRunner(1), other).reason


def test_a_version_whose_file_is_gone_is_built_anew(table: Table, expected: bytes) -> None:
    first = build(table, LocalRunner(1))
    assert first.puffin_path is not None
    open_storage(first.puffin_path, STORAGE).delete(first.puffin_path)
    table.refresh()
    assert content(build(table, LocalRunner(1))) == expected
