"""Theta sketches of one snapshot: per data file, united over its live files, registered as its standard statistics."""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from ann_kernels.theta import DEFAULT_K, union
from ops.catalog.commit import refresh
from ops.catalog.live import live_files, require_positional_deletes
from ops.catalog.snapshots import find_snapshot, is_derived, table_name
from ops.catalog.statistics import find
from ops.model import LiveFile, LiveFiles, StorageConfig
from ops.steps import Step, reached
from ops.storage import Storage, open_storage
from ops.tasks.theta import FileShare, SketchResult, plan_tasks, sketch_files
from ops.theta.ancestry import Extension, choose_extensions, fields_sketched_before
from ops.theta.columns import SketchedColumn, choose_columns, is_enabled
from ops.theta.errors import ThetaError
from ops.theta.file_sketches import FileKey, FileSketches, file_key
from ops.theta.keep import KeptSketches, keep, open_kept
from ops.theta.model import Outcome, ThetaReport
from ops.theta.publish import publish
from ops.theta.read import read_ndv
from ops.theta.slot import BUILD_PROPERTY, NewSketch, listed_thetas
from puffin.blobs import theta as theta_blob
from puffin.blobs.theta import ThetaSketch

if TYPE_CHECKING:
    from ops.spark.runner import TaskRunner

FORMAT = "theta/1"
"""Part of every build id: raise it when the same rows would give other sketches."""

PART_ROWS = 1 << 20
"""A longer file is cut into shares of about so many rows, at row groups, so that several cores share one file."""

BUDGET_BYTES = 256 << 20
"""What the sketches per data file may take; beyond it the cheapest to recount are not kept."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class _Work:
    """Everything that is known before a row is read."""

    table: Table
    snapshot: Snapshot
    live: LiveFiles
    keys: Mapping[str, FileKey]
    columns: tuple[SketchedColumn, ...]
    build_ids: Mapping[int, str]
    """By field id: what exactly the column's sketch is a sketch of."""

    @property
    def version_id(self) -> str:
        return hashlib.sha256(json.dumps(sorted(self.build_ids.items())).encode()).hexdigest()


def materialize_theta_sketches(
    table: Table,
    snapshot_id: int,
    *,
    runner: "TaskRunner",
    storage: StorageConfig,
    enabled: bool | None = None,
    columns: Collection[str] | None = None,
    budget_bytes: int = BUDGET_BYTES,
    progress: Progress | None = None,
) -> ThetaReport:
    """Give a snapshot its theta sketches: count what is new, unite, register. Idempotent; a re-run writes nothing.

    `enabled` False, or BODO_ENABLE_THETA_SKETCHES=0, switches it off. `columns` names the columns instead of the rules
    of `choose_columns`. `budget_bytes` bounds the sketches that are kept per data file for the next snapshot: more of
    them make removals and deletes cheap to follow, at 32 KiB a file and column at most.

    Raises UnknownSnapshotError, UnknownColumnError, EqualityDeletesError, ThetaError for a derived snapshot or a v3
    table in a catalog that cannot commit it; what the catalog, the storage and the runner raise. Nothing is published
    then. That kept sketches or the old statistics file are lost is no error: `note` tells of it.
    """
    started = time.perf_counter()
    name, snapshot = table_name(table), find_snapshot(table, snapshot_id)
    if is_derived(snapshot):
        raise ThetaError(
            f"{name}: snapshot {snapshot_id} holds derived data of {snapshot.parent_snapshot_id}; name that"
        )

    def report(outcome: Outcome, **found: object) -> ThetaReport:
        statistics = find(table, snapshot_id)
        entries = read_ndv(table, snapshot_id).entries if listed_thetas(statistics) else {}
        known = {"files_sketched": 0, "files_reused": 0, "bytes_written": 0, **found}
        seconds = time.perf_counter() - started
        return ThetaReport(
            name,
            snapshot_id,
            statistics.statistics_path if statistics else None,
            {column: entry.ndv for column, entry in entries.items()},
            bool(entries) and all(entry.fresh for entry in entries.values()),
            seconds=seconds,
            outcome=outcome,
            **known,  # type: ignore[arg-type]
        )

    if not is_enabled(enabled):
        return report(Outcome.OFF)
    _require_writable(table)
    store = open_storage(table.location(), storage)
    live = live_files(table, snapshot_id)
    require_positional_deletes(live)
    keys = {file.path: file_key(file, live.location) for file in live.files}
    with_kept = open_kept(table, store, snapshot)
    before = fields_sketched_before(table, snapshot) | with_kept.field_ids()
    work = _plan(table, snapshot, live, keys, before, columns)
    if not work.columns:
        return report(Outcome.NO_COLUMNS)
    if _is_current(work, store):
        return report(Outcome.CURRENT, files_reused=len(live.files))

    sketched = _sketch(work, store, storage, runner, with_kept, progress)
    reached(Step.SKETCHED)
    new = [NewSketch(i, sketch, work.build_ids[i]) for i, sketch in sketched.united.items()]
    written, carried, note = publish(table, store, snapshot, new)
    reached(Step.STATISTICS_REGISTERED)
    kept = (
        keep(table, store, snapshot, live, sketched.per_file, budget_bytes, work.version_id) if sketched.read else None
    )
    refresh(table)
    merged = (table.schema().find_column_name(b.metadata.fields[0]) for b in carried if b.listed)
    return report(
        Outcome.WRITTEN,
        files_sketched=len(sketched.read),
        files_reused=len(live.files) - len(sketched.read),
        bytes_written=written + (kept.bytes_written if kept else 0),
        merged_columns=tuple(filter(None, merged)),
        extended_columns=tuple(c.name for c in work.columns if c.field_id in sketched.extended),
        file_sketches_path=kept.path if kept else None,
        note="; ".join(filter(None, (with_kept.note, sketched.note, note, kept.note if kept else ""))),
    )


def _require_writable(table: Table) -> None:
    """Before anything is counted: catalogs whose metadata PyIceberg writes itself take no commit on a v3 table."""
    if table.metadata.format_version >= 3 and isinstance(table.catalog, MetastoreCatalog):
        raise ThetaError(
            f"{table_name(table)} is a v3 table in catalog {table.catalog.name}, for which PyIceberg cannot write it; "
            "reach the table through a REST catalog"
        )


def _plan(
    table: Table,
    snapshot: Snapshot,
    live: LiveFiles,
    keys: Mapping[str, FileKey],
    before: Collection[int],
    wanted: Collection[str] | None,
) -> _Work:
    schemas = table.schemas()
    columns = choose_columns(
        schemas.get(live.schema_id, table.schema()),
        table.schema(),
        sketched_before=before,
        wanted=wanted,
    )
    files = sorted((key.path, key.deletes) for key in keys.values())
    build_ids = {
        c.field_id: hashlib.sha256(
            json.dumps([FORMAT, DEFAULT_K, str(table.metadata.table_uuid), c.field_id, c.type, files]).encode()
        ).hexdigest()
        for c in columns
    }
    return _Work(table, snapshot, live, keys, columns, build_ids)


def _is_current(work: _Work, store: Storage) -> bool:
    """Whether the slot already holds these sketches, and the file is there."""
    statistics = find(work.table, work.snapshot.snapshot_id)
    listed = listed_thetas(statistics)
    current = work.table.schema().field_ids
    return (
        statistics is not None
        and all(i in current for i in listed)
        and all(
            i in listed and (listed[i].properties or {}).get(BUILD_PROPERTY) == build_id
            for i, build_id in work.build_ids.items()
        )
        and store.exists(statistics.statistics_path)
    )


@dataclass(frozen=True, slots=True)
class _Sketched:
    united: Mapping[int, ThetaSketch]
    per_file: tuple[FileSketches, ...]
    """Of live files, as far as known."""
    read: frozenset[str]
    extended: frozenset[int]
    note: str


def _sketch(
    work: _Work,
    store: Storage,
    config: StorageConfig,
    runner: "TaskRunner",
    kept: KeptSketches,
    progress: Progress | None,
) -> _Sketched:
    """Read what no kept sketch covers; unite."""
    known = {path: dict(kept.read(key, work.columns)) for path, key in work.keys.items()}
    missing = {
        c.field_id: frozenset(p for p, sketches in known.items() if c.field_id not in sketches) for c in work.columns
    }
    extensions, note = choose_extensions(work.table, store, work.snapshot, work.keys, missing)
    todo: dict[str, list[SketchedColumn]] = {}
    for column in work.columns:
        extension = extensions.get(column.field_id)
        for path in missing[column.field_id] - (extension.covered if extension else frozenset()):
            todo.setdefault(path, []).append(column)
    for result in _run(work, config, runner, todo, progress):
        for column, image in zip(todo[result.path], result.images, strict=True):
            sketch = theta_blob.decode(image)
            other = known[result.path].get(column.field_id)
            known[result.path][column.field_id] = _union([sketch, other] if other else [sketch])
    united = {c.field_id: _united(c, known, extensions.get(c.field_id)) for c in work.columns}
    types = {c.field_id: c.type for c in work.columns}
    per_file = tuple(
        FileSketches(work.keys[path], {(i, types[i]): sketch for i, sketch in sketches.items()})
        for path, sketches in sorted(known.items())
        if sketches
    )
    return _Sketched(united, per_file, frozenset(todo), frozenset(extensions), note)


def _united(
    column: SketchedColumn, known: Mapping[str, Mapping[int, ThetaSketch]], extension: Extension | None
) -> ThetaSketch:
    parts = [extension.sketch] if extension else []
    covered = extension.covered if extension else frozenset()
    parts += [s[column.field_id] for path, s in known.items() if path not in covered and column.field_id in s]
    return _union(parts)


def _union(sketches: Sequence[ThetaSketch]) -> ThetaSketch:
    return ThetaSketch(*union((s.theta, s.hashes) for s in sketches))


def _run(
    work: _Work,
    config: StorageConfig,
    runner: "TaskRunner",
    todo: Mapping[str, Sequence[SketchedColumn]],
    progress: Progress | None,
) -> list[SketchResult]:
    schema = work.table.schemas().get(work.live.schema_id, work.table.schema())
    files: Mapping[str, LiveFile] = work.live.by_path()
    shares = []
    for path in sorted(todo):
        columns = tuple((c.field_id, c.type) for c in todo[path])
        parts = 1 if files[path].deletes else max(1, -(-files[path].record_count // PART_ROWS))
        shares += [FileShare(files[path], columns, part, parts) for part in range(parts)]
    tasks = plan_tasks(shares, config, schema, parallelism=runner.parallelism, threads=runner.task_threads)
    if not tasks:
        return []
    done = runner.run(sketch_files, tasks, label=f"theta sketches of {work.live.table}", progress=progress)
    return [result for results in done for result in results]
