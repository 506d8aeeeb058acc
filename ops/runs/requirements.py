"""What a run for one snapshot needs, from the table's metadata alone: no file is read and nothing is planned."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import ListType

from icepuffin.ann_kernels.sketches.theta_estimates import DEFAULT_K
from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.binding.measurements import measured_versions
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.planning.current_versions import versions_of
from icepuffin.ops.index.planning.dead_nodes import NODES_AT_ONCE
from icepuffin.ops.index.planning.sizes import (
    BALL_BYTES,
    IMBALANCE,
    SHARD_BYTES,
    SMALLEST_SAMPLE,
    choose_shard_count,
    least_shards,
    sample_size,
)
from icepuffin.ops.index.planning.work_bounds import RefreshBounds, earlier_sizes, refresh_bounds
from icepuffin.ops.model import MIB, SnapshotId
from icepuffin.ops.resources import Engine
from icepuffin.ops.rows.element_types import ELEMENT_BITS
from icepuffin.ops.storage import normalize
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.table.snapshots import ancestors_from, commits_since, rows_in_files
from icepuffin.ops.table.summaries import find_count, snapshot_count
from icepuffin.ops.tasks.task_runner import (
    PROCESS_MEMORY,
    SHARD_MEMORY_FACTOR,
    SMALL_WORK,
    UNION_BYTES,
    node_bytes,
    shard_bytes,
)
from icepuffin.ops.theta.file_sketches import BUDGET_BYTES
from icepuffin.ops.theta.requested_statistics import RequestedStatistics
from icepuffin.ops.theta.theta_bounds import parts_to_sketch

_PROCESS_MB = PROCESS_MEMORY // MIB
_WORKER_MB = 256
"""Memory of a Spark task's Python process without rows"""
_SAMPLE_FACTOR = 2
"""Peak memory of making a layout, in bytes of the sample's vectors"""
_SEARCH_FACTOR = 1.5
"""Peak memory of searching a shard, in bytes of its vectors and neighbours"""
_NODE_BYTES = 128
"""Memory per node while its address is compared with the live rows"""
_ROW_BYTES = 64
"""Memory per row that is matched with a node, by its lineage or the hash of its vector"""
_MATCHED_MB = 2048
"""Most memory of that: longer lists are matched in parts"""
_VALUE_BYTES, _LIST_BYTES = 64, 512
"""Memory per row and column for conditions: of plain values, and of lists; four times what versions keep at most"""
_WORDS_BYTES, _INCLUDED_BYTES = 320 * MIB, 64 * MIB
"""Most memory of a task that makes words of columns of texts, and of one that reads included columns"""
_READ_FACTOR = 16
"""Limit of the same, in bytes of a table's data files, where these are few"""
_MAX_SKETCHES = 2 * BUDGET_BYTES + UNION_BYTES
"""Most memory of sketches: of files, those that are made and those of earlier versions, and unions of tasks"""
_FILE_FACTOR = 2
"""Bytes of vectors per byte of a data file, at most, where the dimensions are not known yet"""


@dataclass(frozen=True, slots=True)
class RunRequirements:
    """What the run for one snapshot takes, at most."""

    rows: int
    """Rows of the snapshot's data files, deleted ones among them."""
    bytes: int
    """Bytes of its data files."""
    new_rows: int
    """Rows of the data files that are read."""
    shards: int
    """Shards of all indexes that are written."""
    tasks: int
    """Tasks that can run at a time: files to read, or shards to write."""
    memory_mb: int
    """Memory in MiB of the run's process, its JVM and the Spark tasks on the same machine."""


@dataclass(frozen=True, slots=True)
class _Work:
    """The most that a run has to do for one index, or for the sketches."""

    rows: int = 0
    """Rows that are read"""
    files: int = 0
    """Data files that are read"""
    shards: int = 0
    """Shards that are written"""
    sketched: int = 0
    """Parts of data files that are read for sketches"""
    task: float = 0.0
    """Bytes of memory of its largest task"""
    driver: float = 0.0
    """Bytes of memory of what always happens in the run's own process"""
    in_driver: float = 0.0
    """Bytes of memory of tasks that are small enough for the run's own process"""
    compared: int = 0
    """Shards whose addresses tasks compare, where the nodes are too many for the run's own process"""
    comparing: float = 0.0
    """Bytes of memory of the largest such task"""


def run_requirements(
    table: Table,
    definitions: Sequence[IndexDefinition],
    snapshot_id: SnapshotId,
    *,
    engine: Engine,
    statistics: RequestedStatistics | None = None,
) -> RunRequirements:
    """The requirements of a run for a snapshot, from summaries of snapshots and of versions; nothing is read.

    A refresh counts what the commits since its base version have changed. Where the summaries do not show that shards
    can be kept, it counts as a build, or as a rebuild of every shard where that is more. The dimensions are those of
    the newest version, while rows of its snapshot are left. Otherwise the vectors are taken to be twice as large as
    all data files, which compress them. `statistics`: those that the run makes; of NDVs all that can be made, where
    none are named.
    """
    rows = rows_in_files(table, snapshot_id)
    snapshot = snapshots_by_id(table.metadata).get(snapshot_id)
    if snapshot is None:
        return RunRequirements(rows, 0, 0, 0, 0, _PROCESS_MB)
    file_bytes = snapshot_count(snapshot, "total-files-size")
    parts = [_index_work(table, definition, snapshot, rows, engine) for definition in definitions]
    parts += [_sketch_work(table, snapshot, rows, statistics)] if statistics else []
    shards = sum(work.shards for work in parts)
    large_tasks = max((max(work.files, work.shards) for work in parts), default=0)
    tasks = max((large_tasks, *(max(work.compared, work.sketched) for work in parts)))
    comparing = max((work.comparing for work in parts), default=0.0)
    task = max((work.task for work in parts), default=0.0)
    driver = max((work.driver for work in parts), default=0.0)
    in_driver = max((work.in_driver for work in parts), default=0.0)
    if engine.uses_spark(rows):
        workers = min(engine.local_tasks, max(1, tasks)) * (_WORKER_MB + _mib(comparing))
        workers += min(engine.local_tasks, max(1, large_tasks)) * _mib(task)
        memory_mb = _PROCESS_MB + engine.jvm_mb + _mib(max(driver, in_driver)) + workers
    else:
        memory_mb = _PROCESS_MB + _mib(max(driver, task))
    return RunRequirements(rows, file_bytes, max((work.rows for work in parts), default=0), shards, tasks, memory_mb)


def _mib(size: float) -> int:
    return -int(-size // MIB)


def _index_work(table: Table, definition: IndexDefinition, snapshot: Snapshot, rows: int, engine: Engine) -> _Work:
    if not definition.has_graphs:
        work = _Work(rows, snapshot_count(snapshot, "total-data-files"), driver=2 * BALL_BYTES)
    elif (bounds := refresh_bounds(table, definition, snapshot)) is None:
        work = _build_work(table, definition, snapshot, rows, engine)
    else:
        is_local = normalize(table.metadata.location).startswith("file:")
        work = _refresh_work(definition, bounds, engine, is_local=is_local)
    reading = _WORDS_BYTES if definition.text else _INCLUDED_BYTES if definition.include else 0
    if (size := find_count(snapshot, "total-files-size")) is not None:
        reading = min(reading, _READ_FACTOR * size)
    return replace(
        work,
        driver=work.driver + rows * _attribute_bytes(table, definition),
        task=max(work.task, reading),
        in_driver=max(work.in_driver, reading),
    )


def _attribute_bytes(table: Table, definition: IndexDefinition) -> int:
    """Memory per row of the columns for conditions. A column that is renamed, or gone, counts as one of lists."""
    types = {field.name: field.field_type for field in table.schema().fields}
    is_plain = (name in types and not isinstance(types[name], ListType) for name in definition.filters)
    return sum(_VALUE_BYTES if plain else _LIST_BYTES for plain in is_plain)


def _build_work(table: Table, definition: IndexDefinition, snapshot: Snapshot, rows: int, engine: Engine) -> _Work:
    """Where the summary lacks the numbers, shards count as full. The plan may be to rebuild the shards there are."""
    versions = versions_of(table, definition)
    earlier = earlier_sizes(table, definition)
    vectors = _vector_bytes(table, definition, versions, snapshot, rows)
    has_totals = find_count(snapshot, "total-records") is not None and (vectors or not rows)
    size = vectors + 4 * definition.max_degree * rows if has_totals else SHARD_BYTES
    dims = -(-vectors // (4 * rows)) if rows else 0
    least = least_shards(replace(definition, vectors="f32"), rows, dims)
    chosen = choose_shard_count(rows, dims, definition.max_degree) if has_totals else 1
    count = min(max(definition.shards or chosen, least), rows if has_totals else max(1, rows))
    largest = size if count <= 1 else min(size, IMBALANCE * size / count)
    nodes = largest * rows / size if size else 0
    if has_totals:
        largest = shard_bytes(nodes, dims, definition.max_degree)
    sample = vectors * sample_size(rows) / rows if rows else 0
    rebuilt = max(
        (shard_bytes(max(it.largest, *it.deltas, 0), it.dims, definition.max_degree) for it in earlier), default=0
    )
    return _Work(
        rows=rows,
        files=snapshot_count(snapshot, "total-data-files"),
        shards=max((count, *(it.shards + len(it.deltas) + 1 for it in earlier))),
        task=SHARD_MEMORY_FACTOR * max(largest, rebuilt),
        driver=max(_SAMPLE_FACTOR * sample, _proof_bytes(nodes, count, engine)),
        **_comparison(rows, nodes, count),
    )


def _vector_bytes(
    table: Table, definition: IndexDefinition, versions: Sequence[DerivedVersion], snapshot: Snapshot, rows: int
) -> int:
    """Memory of all vectors: by the dimensions of the newest version, and by the files where the vectors may be others.

    They are the same while rows are left that it has indexed, as the rows of a column have equal dimensions.
    """
    dims = _dimensions(versions)
    widened = 32 // ELEMENT_BITS.get(definition.element_type, 32)
    by_files = _FILE_FACTOR * widened * snapshot_count(snapshot, "total-files-size")
    newest = versions[-1].base_snapshot_id if versions else None
    lineage = ancestors_from(table, snapshot.snapshot_id)
    base, since = commits_since(lineage, lambda it: it.snapshot_id == newest)
    rows_are_left = base is not None and rows > sum(snapshot_count(it, "added-records") for it in since)
    return 4 * dims * rows if dims and rows_are_left else max(4 * dims * rows, by_files)


def _refresh_work(definition: IndexDefinition, bounds: RefreshBounds, engine: Engine, *, is_local: bool) -> _Work:
    """The work of a refresh. One shard that stays is read whole, too: in local files now and then, and wherever it
    lies to measure its recall after deletes. Rows are sampled where searches of all shards are measured again.
    """
    base = bounds.base
    node = node_bytes(base.dims, definition.max_degree)
    task = SHARD_MEMORY_FACTOR * shard_bytes(bounds.largest, base.dims, definition.max_degree)
    matched = min(_MATCHED_MB * MIB, _ROW_BYTES * (bounds.arriving + bounds.removed)) if bounds.removed else 0
    nodes = max(base.largest, *base.deltas, 0)
    reads_shard = bool((is_local and bounds.written) or bounds.removed or base.tombstones)
    proof = _proof_bytes(nodes, base.shards + len(base.deltas), engine)
    live_rows = base.live_rows - bounds.removed + bounds.arriving
    sampled = min(SMALLEST_SAMPLE, live_rows) if base.fit.outdates_recall(live_rows, bounds.arriving) else 0
    searched = _SEARCH_FACTOR * shard_bytes(nodes, base.dims, definition.max_degree) * reads_shard
    return _Work(
        rows=bounds.arriving,
        files=bounds.files,
        shards=bounds.written,
        task=task,
        driver=max(proof, matched, searched, _SAMPLE_FACTOR * 4 * base.dims * sampled),
        in_driver=min(task, SHARD_MEMORY_FACTOR * SMALL_WORK * node / (4 * base.dims)),
        **_comparison(base.shards * nodes + sum(base.deltas) + bounds.arriving, nodes, base.shards + len(base.deltas)),
    )


def _comparison(nodes: float, largest: float, shards: int) -> dict[str, Any]:
    """What tasks do to compare the addresses of all nodes; nothing where there are few."""
    return {} if nodes <= NODES_AT_ONCE else {"compared": shards, "comparing": _NODE_BYTES * largest}


def _proof_bytes(nodes: float, shards: int, engine: Engine) -> float:
    """Memory of comparing the addresses of all nodes with the live rows, a shard per thread."""
    return _NODE_BYTES * nodes * min(engine.threads, shards)


def _sketch_work(table: Table, snapshot: Snapshot, rows: int, statistics: RequestedStatistics) -> _Work:
    """A sketch per data file and statistic, as bytes and in memory, as far as they are there at once."""
    hashes = min(rows, DEFAULT_K * snapshot_count(snapshot, "total-data-files"))
    columns = len(table.schema().fields)
    count = (columns if statistics.ndv is None else len(statistics.ndv)) + statistics.number_of_others(columns)
    driver = min(2 * 8 * hashes * count, _MAX_SKETCHES)
    return _Work(sketched=parts_to_sketch(table, snapshot, statistics), driver=driver)


def _dimensions(versions: Sequence[DerivedVersion]) -> int:
    """Dimensions of the newest version that has a measurement; 0 where there is none."""
    newest = next(measured_versions(reversed(versions)), None)
    return 0 if newest is None else newest[1].amounts.get("dims", 0)
