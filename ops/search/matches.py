"""Conditions on other columns: which live rows of a snapshot satisfy one, and what that means for a search.

A condition is an Iceberg row filter. Partitions and column statistics exclude files first; of the others only the
condition's own columns are read.
"""

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import ManifestGroupPlanner, Table

from icepuffin.ops.catalog.file_io import current_io
from icepuffin.ops.catalog.snapshots import find_snapshot
from icepuffin.ops.datafile import read_live
from icepuffin.ops.model import LiveFiles, StorageConfig
from icepuffin.ops.search.predicate import RowPredicate
from icepuffin.ops.storage import normalize, open_storage
from icepuffin.ops.tasks.rows import by_slot

_HELD = 64
_ROWS_HELD = 4_000_000
"""8 bytes each"""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Matches:
    """The live rows that satisfy a condition."""

    positions: Mapping[int, npt.NDArray[np.int64]]
    """By number of the live file: ascending row positions. Files without a match are absent."""
    files_read: int
    """Files that partitions and statistics could not exclude"""

    @property
    def count(self) -> int:
        return sum(len(positions) for positions in self.positions.values())

    def mask(self, files: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """bool[N]: whether the row at each (file number, position) matches."""
        mask = np.zeros(len(files), np.bool_)
        some = np.flatnonzero(files >= 0)
        for number, places in by_slot(files[some]):
            if (matching := self.positions.get(number)) is not None:
                nodes = some[places]
                mask[nodes] = np.isin(positions[nodes], matching)
        return mask


class MatchCache:
    """The matches of the conditions asked last, of one snapshot: snapshots do not change. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: OrderedDict[str, Matches] = OrderedDict()

    def get(self, where: str | BooleanExpression, find: Callable[[], Matches]) -> Matches:
        """What `find` gives for the condition, perhaps from an earlier time."""
        key = repr(where)
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        found = find()
        with self._lock:
            self._held[key] = found
            while sum(matches.count for matches in self._held.values()) > _ROWS_HELD or len(self._held) > _HELD:
                self._held.popitem(last=False)
        return found


def find_matches(
    table: Table, live: LiveFiles, schema: Schema, where: str | BooleanExpression, storage: StorageConfig
) -> Matches:
    """The live rows of the snapshot for which `where` is true (not false, not unknown).

    `schema` is the snapshot's. Memory: one batch of the condition's columns, and 8 bytes a match. Raises FilterError.
    """
    condition = RowPredicate(where, schema)
    field_ids = [schema.find_field(name).field_id for name in condition.columns]
    numbers = defaultdict[str, list[int]](list)  # a snapshot may list a file twice, which has each of its rows twice
    for number, file in enumerate(live.files):
        numbers[normalize(file.path)].append(number)
    # as the snapshot's own schema has the columns: some may have been renamed or dropped since
    metadata = table.metadata.model_copy(update={"current_schema_id": schema.schema_id})
    snapshot, io = find_snapshot(table, live.snapshot_id), current_io(table, storage)
    manifests = [file for file in snapshot.manifests(io) if file.content == ManifestContent.DATA]
    # not DataScan.plan_files: on the way to what rows are still to be tested it fails over a partition that is null
    entries = ManifestGroupPlanner(metadata, io, condition.planned).plan_manifest_entries(manifests)
    paths = {normalize(entry.data_file.file_path) for entry in chain.from_iterable(entries)}
    planned = sorted(number for path in paths for number in numbers[path])
    found = {}
    for number in planned:
        file = live.files[number]
        parts = [
            condition.satisfied(batch.columns, batch.positions)
            for batch in read_live(open_storage(file.path, storage), file, schema, field_ids)
        ]
        if positions := [part for part in parts if len(part)]:
            found[number] = np.concatenate(positions)
    return Matches(found, len(planned))
