"""A refresh that is lost at any stage, or done elsewhere, ends after one retry with the bytes of an undisturbed one."""

import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.cache import ShardKey, process_cache
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index import masked_recall, refresh
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning import dead_nodes
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.model import Action, StoredShard
from icepuffin.ops.spark.spark_runner import SparkRunner
from icepuffin.ops.storage import memory_storage as memory
from icepuffin.ops.storage import open_storage
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.storage.memory_storage import MemoryStorage
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.base_shard import relocate
from icepuffin.ops.tasks.delta_rows import scatter_delta
from icepuffin.ops.tasks.matching.dead_node_task import mark_dead_nodes
from icepuffin.ops.tasks.matching.match_hashes import hash_files, match_rows
from icepuffin.ops.tasks.scatter import scatter
from icepuffin.ops.tasks.shard_task import make_shard
from icepuffin.ops.tasks.task_runner import SMALL_WORK, LocalRunner, RunContext, TaskRunner
from tests.conftest import DIMS, ROWS, STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, answer_with_recall, content, index_head
from tests.selection import some

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DriverLostError(Exception):
    """The driver is gone."""


STAGES = {
    change: tuple(function.__name__ for function in functions)
    for change, functions in {
        "append": (scatter, make_shard),
        "update": (mark_dead_nodes, hash_files, match_rows, scatter, make_shard, relocate),
        "compact": (mark_dead_nodes, hash_files, match_rows, scatter, make_shard, relocate),
        "dissolve deltas": (scatter, scatter_delta, make_shard),
    }.items()
}
"""Functions whose tasks a refresh runs, by the change"""
ALL_STAGES = sorted({*chain.from_iterable(STAGES.values())})


class DyingRunner:
    """The driver is lost when all tasks of a stage are done, or all but the last."""

    parallelism = 2
    task_threads = 1

    def __init__(self, stage: str, *, after_all: bool) -> None:
        self._stage = stage
        self._after_all = after_all
        self.died = False

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], *, label: str, progress: Any = None) -> Any:
        dying = function.__name__ == self._stage and len(tasks) > 0
        results = [function(task) for task in (tasks[:-1] if dying and not self._after_all else tasks)]
        if dying:
            self.died = True
            raise DriverLostError(label)
        return results


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task goes to the runner, however few rows it is about."""
    monkeypatch.setattr(refresh, "SMALL_WORK", 0)
    monkeypatch.setattr(dead_nodes, "NODES_AT_ONCE", 0)


@dataclass(frozen=True)
class ChangedTable:
    """A table with an index, a change that it does not know, and what a refresh should make of it."""

    table: Table
    before: frozenset[int]
    """Snapshots of the versions that there are"""
    expected: bytes
    """Bytes of the version's file, as an undisturbed refresh writes it"""
    stages: tuple[str, ...]
    """Functions whose tasks that refresh runs"""


@pytest.fixture(scope="module", params=STAGES)
def prepared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ChangedTable:
    folder = tmp_path_factory.mktemp("lake")
    catalog = open_catalog("t", {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"})
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", ROWS, properties={"format-version": "2"})
    for start in range(0, 600, 120):
        table.append(make_rows(start, start + 120))
    index_head(table)
    table.append(make_rows(600, 660))
    index_head(table)
    table.append(make_rows(660, 760) if request.param == "dissolve deltas" else make_rows(660, 680))
    if request.param == "update":
        table.overwrite(make_rows(590, 640), overwrite_filter="id >= 600 and id < 640")
    if request.param == "compact":
        files = live_files(table.refresh(), table.metadata.current_snapshot_id or 0).files
        old = next(file.path for file in files if file.record_count == 120)  # names are random, and so is their order
        append_position_deletes(table, {old: np.arange(40)})
        table.refresh().overwrite(table.scan().to_arrow())
    before = current_versions(table)
    data = content(refreshed(table, LocalRunner(1)))
    assert answer_with_recall(table)[1] >= 0.96
    undo(table, before)
    return ChangedTable(table, before, data, STAGES[request.param])


@pytest.fixture
def changed(prepared: ChangedTable) -> Iterator[ChangedTable]:
    """The same for each test: the version that it makes is undone."""
    yield prepared
    undo(prepared.table, prepared.before)


def current_versions(table: Table) -> frozenset[int]:
    return frozenset(item.index_snapshot_id for item in index_versions(table.refresh(), "e"))


def refreshed(table: Table, runner: TaskRunner) -> IndexReport:
    head = table.refresh().metadata.current_snapshot_id
    assert head is not None
    report = materialize_index(RunContext(table, STORAGE, runner), DEFINITION, head)
    assert report.action is Action.REFRESHED
    return report


def undo(table: Table, before: frozenset[int]) -> None:
    from icepuffin.ops.binding import bindings  # noqa: PLC0415

    new = [item for item in index_versions(table.refresh(), "e") if item.index_snapshot_id not in before]
    bindings.drop(table, "ann_e")
    table.refresh().maintenance.expire_snapshots().by_ids([item.index_snapshot_id for item in new]).commit()
    for item in new:
        open_storage(item.puffin_path, STORAGE).delete(item.puffin_path)
    table.refresh()


@pytest.mark.parametrize(("stage", "after_all"), some(list(product(ALL_STAGES, [False, True])), 6))
def test_a_refresh_that_is_lost_ends_equal_after_a_retry(changed: ChangedTable, stage: str, after_all: bool) -> None:
    dying = DyingRunner(stage, after_all=after_all)
    try:
        first = refreshed(changed.table, dying)
    except DriverLostError:
        assert current_versions(changed.table) == changed.before
        first = refreshed(changed.table, LocalRunner(1))
    assert dying.died == (stage in changed.stages)
    assert content(first) == changed.expected
    staged = f"{changed.table.location()}/metadata/_icepuffin"
    assert list(open_storage(staged, STORAGE).list(staged)) == []


@pytest.mark.jvm
def test_spark_refreshes_to_the_same_bytes(changed: ChangedTable, spark: "SparkSession") -> None:
    assert content(refreshed(changed.table, SparkRunner(spark))) == changed.expected


def test_shards_in_the_cache_make_the_same_bytes(changed: ChangedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recall of a shard that has lost rows is measured, and is part of a version: it may not tell who had read it
    before.
    """
    base = open_version(index_versions(changed.table, "e")[-1], STORAGE)
    for shard, entry in zip(base.shards, base.routing.shards, strict=True):
        process_cache().shard(ShardKey(shard, entry.sha256), STORAGE)
    reads: list[StoredShard] = []
    monkeypatch.setattr(masked_recall, "open_shard", lambda shard, _: reads.append(shard))
    assert content(refreshed(changed.table, LocalRunner(1))) == changed.expected
    assert reads == [], "the cache has them"


def test_a_small_refresh_waits_for_the_disk_only_for_what_it_publishes(
    changed: ChangedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh, "SMALL_WORK", SMALL_WORK)
    synced: list[int] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(handle), sync(handle)))
    assert content(refreshed(changed.table, LocalRunner(1))) == changed.expected
    assert len(synced) == 2, "the file, and the folder that it is in"


def test_a_small_refresh_in_one_process_stages_no_vector_in_the_store(
    changed: ChangedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh, "SMALL_WORK", SMALL_WORK)
    paths: list[str] = []
    open_output = LocalStorage.open_output

    def noting(store: LocalStorage, path: str, **options: Any) -> Any:
        paths.append(path)
        return open_output(store, path, **options)

    monkeypatch.setattr(LocalStorage, "open_output", noting)
    assert content(refreshed(changed.table, LocalRunner(1))) == changed.expected
    staged = [path.rpartition("/")[2].partition("-")[0] for path in paths if "_icepuffin" in path]
    assert set(staged) <= {"hashes", "lineage", "dead", "moves", "moved"}, "addresses and hashes alone"
    assert not memory._objects, "what was staged in memory is forgotten"


def test_what_is_not_small_is_staged_in_the_store(changed: ChangedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(store: object, path: str, **options: object) -> None:
        raise AssertionError(f"{path} of {options} is in the memory of {store}")

    monkeypatch.setattr(MemoryStorage, "open_output", refuse)
    assert content(refreshed(changed.table, LocalRunner(1))) == changed.expected


@pytest.mark.parametrize(
    ("limit", "memory_gib", "times"),
    [
        (limit, *memory)
        for limit, memory in some(list(product([2_000, 8_000, 55_000, 90_000], [(1, 1), (4, 1), (11, 2)])), 5)
    ],
)
def test_all_that_a_stage_keeps_in_memory_is_bounded(
    changed: ChangedTable, monkeypatch: pytest.MonkeyPatch, limit: int, memory_gib: int, times: int
) -> None:
    """Addresses, hashes and edges count, too: with few dimensions they are most of it. More is kept of more memory."""
    monkeypatch.setattr(refresh, "SMALL_WORK", limit // times)
    monkeypatch.setattr(refresh, "memory_bytes", lambda: memory_gib << 30)
    sizes = Counter[str]()
    open_output = MemoryStorage.open_output

    @contextmanager
    def counting(store: MemoryStorage, path: str, **options: Any) -> Iterator[Any]:
        with open_output(store, path, **options) as sink:
            yield sink
        sizes[path.rpartition("/")[2].partition("-")[0]] += store.size(path)

    monkeypatch.setattr(MemoryStorage, "open_output", counting)
    assert content(refreshed(changed.table, LocalRunner(1))) == changed.expected
    heads = 6_000  # of streams and of shards, which do not grow with the rows
    assert all(size <= limit + heads for size in sizes.values()), sizes
    assert "block" in sizes or limit < 55_000, sizes


class DistantRunner:
    """Its tasks reach what the store has, and not the memory of this process."""

    parallelism = 2
    task_threads = 1

    def __init__(self) -> None:
        self.labels: list[str] = []

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], *, label: str, progress: Any = None) -> Any:
        assert memory.SCHEME.encode() not in pickle.dumps(list(tasks)), f"a task of {label!r} reads this memory"
        self.labels.append(label)
        return [function(task) for task in tasks]


def test_tasks_elsewhere_reach_the_rows_that_the_driver_staged(
    changed: ChangedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new rows are few enough for the driver; the shards that they go into are not."""
    monkeypatch.setattr(refresh, "SMALL_WORK", 4 * DIMS * 200)
    runner = DistantRunner()
    assert content(refreshed(changed.table, runner)) == changed.expected
    if scatter_delta.__name__ in changed.stages:
        assert "write shards" in runner.labels


def test_the_driver_does_small_work_itself(changed: ChangedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh, "SMALL_WORK", SMALL_WORK)
    monkeypatch.setattr(dead_nodes, "NODES_AT_ONCE", 1 << 24)

    def never() -> "SparkSession":
        raise AssertionError("a session was opened")

    assert content(refreshed(changed.table, SparkRunner(never))) == changed.expected


@pytest.mark.parametrize(
    ("memory_bytes", "expected"), [(0, SMALL_WORK), (24 << 30, 6 * SMALL_WORK), (1 << 40, 1 << 30)]
)
def test_a_process_that_does_all_work_keeps_more_where_it_has_more_memory(
    memory_bytes: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But no more than is done again in minutes."""
    monkeypatch.setattr(refresh, "SMALL_WORK", SMALL_WORK)
    monkeypatch.setattr(refresh, "memory_bytes", lambda: memory_bytes)
    assert refresh._small_work(LocalRunner()) == expected
    assert refresh._small_work(DistantRunner()) == SMALL_WORK
