"""Conditions on other columns: which live rows of a snapshot satisfy one, and what that means for a search.

A condition is an Iceberg row filter. Partitions and column statistics exclude files first; of the other files
only the columns of the condition are read.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain

import numpy as np
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import ManifestGroupPlanner, Table
from pyiceberg.types import UUIDType

from icepuffin.ann_kernels.arrays import I64, Bool
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from icepuffin.ops.catalog.stored_file_io import current_io
from icepuffin.ops.filters.condition_text import condition_key
from icepuffin.ops.filters.predicate import RowPredicate
from icepuffin.ops.model import FileNumber, LiveFiles, ShardId, StorageConfig
from icepuffin.ops.process.lru_cache import LruCache
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.shards.masked_shards import MaskedShard
from icepuffin.ops.storage import normalize, open_storage
from icepuffin.ops.table.live_files import reading_manifests
from icepuffin.ops.table.live_rows import read_live
from icepuffin.ops.table.manifests import read_manifests
from icepuffin.ops.table.row_deletes import deleted_of_scanned
from icepuffin.ops.table.snapshots import find_snapshot
from icepuffin.ops.tasks.rows import by_file

_LOWER, _UPPER = 2, 3
"""Indices of the bounds in the summary of a partition field"""
_ALL_UUIDS = bytes(16), b"\xff" * 16
_MAX_WEIGHT = 4_000_000
"""Numbers of 8 bytes that a cache keeps"""
_MIN_WEIGHT = _MAX_WEIGHT // 64
"""Weight of a condition's matches at least, so that a cache keeps 64 at most"""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Matches:
    """The live rows that satisfy a condition."""

    positions: Mapping[FileNumber, I64]
    """Ascending row positions, by file number. Files without a match are absent"""
    files_read: int
    """Files that partitions and statistics could not exclude"""
    how: str = "by the data files"
    """How the condition was evaluated, in words"""
    in_tail: bool = False
    """Whether all lie in files that the index version does not cover: no node is one"""
    warnings: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return sum(len(positions) for positions in self.positions.values())

    @property
    def weight(self) -> int:
        """Memory that they take while they are kept, in numbers of 8 bytes."""
        return self.count

    def count_by_nodes(self, matching: int, live: int) -> int:
        """`count`, of which less work may be left where an index version has so many `matching` nodes among `live`."""
        return self.count

    def in_files(self, files: Iterable[FileNumber]) -> "Matches":
        """The matches in some of the files."""
        positions = {number: self.positions[number] for number in files if number in self.positions}
        return Matches(positions, self.files_read)

    def mask(self, files: I64, positions: I64) -> Bool:
        """bool[N]: whether the row at each (file number, position) matches."""
        mask = np.zeros(len(files), np.bool_)
        in_files = np.flatnonzero(files >= 0)
        for number, of_file in by_file(files[in_files]):
            if (matching := self.positions.get(FileNumber(number))) is not None:
                rows = in_files[of_file]
                mask[rows] = np.isin(positions[rows], matching)
        return mask

    def nodes(self, shard_id: ShardId, shard: MaskedShard) -> Bitmap:
        """The nodes of a shard that match, of those with a live row."""
        return Bitmap.from_mask(self.mask(shard.file_numbers, shard.positions))


def in_all(parts: Sequence[Matches]) -> Matches:
    """The rows that satisfy several conditions."""
    numbers = [number for number in parts[0].positions if all(number in part.positions for part in parts[1:])]
    found = {number: reduce(np.intersect1d, [part.positions[number] for part in parts]) for number in numbers}
    positions = {number: rows for number, rows in found.items() if len(rows)}
    warnings = tuple(dict.fromkeys(warning for part in parts for warning in part.warnings))
    how = "; ".join(dict.fromkeys(part.how for part in parts))
    return Matches(positions, sum(part.files_read for part in parts), how, warnings=warnings)


class _FilePlanner(ManifestGroupPlanner):
    """PyIceberg's choice of the data files that may match; never by bounds of uuids, nor by days off Python's calendar.

    Writers in Java compared uuids as signed numbers (apache/iceberg#14216), so their bounds enclose other values.
    """

    def _build_partition_projection(self, spec_id: int) -> BooleanExpression:
        try:
            return super()._build_partition_projection(spec_id)
        except OverflowError:  # a literal next to the last day of the calendar, or the first
            return AlwaysTrue()

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        evaluate = super()._build_manifest_evaluator(spec_id)
        fields = self.table_metadata.specs()[spec_id].partition_type(self.table_metadata.schema()).fields
        indices = [index for index, field in enumerate(fields) if isinstance(field.field_type, UUIDType)]

        def may_match(manifest: ManifestFile) -> bool:
            summaries = manifest.partitions or []
            for summary in (summaries[index] for index in indices if summaries):
                if summary.lower_bound is not None:  # else all values are null
                    summary[_LOWER], summary[_UPPER] = _ALL_UUIDS
            return evaluate(manifest)

        return may_match

    def _build_metrics_evaluator(self) -> Callable[[DataFile], bool]:
        evaluate = super()._build_metrics_evaluator()
        fields = self.table_metadata.schema().fields
        uuids = [field.field_id for field in fields if isinstance(field.field_type, UUIDType)]

        def may_match(file: DataFile) -> bool:
            for bounds in (file.lower_bounds, file.upper_bounds):
                for field_id in uuids if bounds else ():
                    bounds.pop(field_id, None)
            return evaluate(file)

        return may_match


class MatchCache:
    """The matches of recent conditions in one snapshot, which never changes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._matches = LruCache[str, Matches](_MAX_WEIGHT)

    def get(self, where: str | BooleanExpression, find: Callable[[], Matches]) -> Matches:
        """The matches of a condition: kept from an earlier call, or made by `find`. Raises FilterError."""
        key = condition_key(where)
        with self._lock:
            kept = self._matches.get(key)
        if kept is not None:
            return kept
        new_matches = find()
        with self._lock:
            if key not in self._matches:  # else another thread was faster
                self._matches.put(key, new_matches, max(new_matches.weight, _MIN_WEIGHT))
        return new_matches


ConditionReader = Callable[[RowPredicate, Sequence[FileNumber]], tuple[Mapping[FileNumber, I64], str]]
"""Function from a predicate and some live files to (row positions of matches by file number, how they were read)"""


def find_matches(
    table: Table,
    live: LiveFiles,
    schema: Schema,
    where: str | BooleanExpression | RowPredicate,
    storage: StorageConfig,
    read: ConditionReader | None = None,
    *,
    files: Collection[FileNumber] | None = None,
) -> Matches:
    """The live rows of the snapshot, or of some of its files, for which `where` is true (not false, not unknown).

    `schema` is the snapshot's. `read` reads the files that are not excluded; this process does without it. Memory: one
    batch of the condition's columns, and 8 bytes per match. Raises FilterError, ManifestError.
    """
    predicate = where if isinstance(where, RowPredicate) else RowPredicate(where, schema)
    numbers = defaultdict[str, list[int]](list)  # a snapshot may list a file twice, which has each of its rows twice
    for number, file in enumerate(live.files):
        numbers[normalize(file.path)].append(number)
    # planned by the snapshot's own schema: columns may have been renamed or dropped since
    metadata = table.metadata.model_copy(update={"current_schema_id": schema.schema_id})
    snapshot, io = find_snapshot(table, live.snapshot_id), current_io(table, storage)
    with reading_manifests(table, live.snapshot_id):
        manifests = [file for file in read_manifests(io, snapshot) if file.content == ManifestContent.DATA]
        for manifest in manifests:
            manifest.columns = predicate.planned_fields
        # DataScan.plan_files also computes residual filters, and fails at a partition that is null
        entries = _FilePlanner(metadata, io, predicate.planned).plan_manifest_entries(manifests)
        paths = {normalize(entry.data_file.file_path) for entry in chain.from_iterable(entries)}
    listed = (FileNumber(number) for path in paths for number in numbers[path])
    planned = sorted(number for number in listed if files is None or number in files)
    if read is not None:
        positions, how = read(predicate, planned)
        return Matches(positions, len(planned), how)
    return Matches(read_matches(live, schema, predicate, storage, planned), len(planned))


def read_matches(
    live: LiveFiles, schema: Schema, predicate: RowPredicate, storage: StorageConfig, planned: Sequence[FileNumber]
) -> dict[FileNumber, I64]:
    """Ascending positions of the live rows that satisfy a predicate, by file number, of the `planned` files."""
    field_ids = [schema.find_field(name).field_id for name in predicate.columns]
    planned_files = deleted_of_scanned(
        lambda path: open_storage(path, storage), [live.files[number] for number in planned]
    )
    matches: dict[FileNumber, I64] = {}
    for number, (file, deleted) in zip(planned, planned_files, strict=True):
        parts = [
            predicate.satisfied(batch.columns, batch.positions)
            for batch in read_live(open_storage(file.path, storage), file, schema, field_ids, deleted=deleted)
        ]
        if positions := [part for part in parts if len(part)]:
            matches[number] = np.concatenate(positions)
    return matches
