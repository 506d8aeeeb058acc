"""Sketches per data file that earlier runs published."""

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from icepuffin.ops.catalog.bound_versions import sketch_versions
from icepuffin.ops.catalog.snapshots import table_name
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.storage import Storage
from icepuffin.ops.storage.prefetch import PrefetchedSource
from icepuffin.ops.theta.columns import SketchedColumn
from icepuffin.ops.theta.file_sketches import (
    ColumnKey,
    FileKey,
    FileSketchesReader,
)
from icepuffin.puffin import PuffinReader
from icepuffin.puffin.blobs.theta import ThetaSketch
from icepuffin.puffin.errors import PuffinError

_log = logging.getLogger(__name__)

_MAX_VERSIONS = 16
"""Number of versions whose footers are read in search of a file"""


class EarlierSketches:
    """The file sketches of earlier versions, nearest version first."""

    def __init__(self, readers: Sequence[FileSketchesReader], fields: Collection[int], notes: list[str]) -> None:
        self._readers = readers
        self._fields = frozenset(fields)
        self._notes = notes

    def field_ids(self) -> frozenset[int]:
        """Columns that had a sketch at this snapshot or before it."""
        return self._fields

    def read(self, keys: Iterable[FileKey], columns: Sequence[SketchedColumn]) -> dict[FileKey, dict[int, ThetaSketch]]:
        """The sketches of files, by field id, of the columns whose type is still the same."""
        sketches_by_key: dict[FileKey, dict[int, ThetaSketch]] = {key: {} for key in keys}
        types = {c.field_id: c.counted_as for c in columns}

        def missing_columns(key: FileKey, stored: Iterable[ColumnKey]) -> list[ColumnKey]:
            return [(i, text) for i, text in stored if types.get(i) == text and i not in sketches_by_key[key]]

        for reader in self._readers:
            keys_to_read = []
            for key in (key for key, sketches in sketches_by_key.items() if len(sketches) < len(types)):
                with self._noting_damage(key):
                    if missing_columns(key, reader.columns(key)):
                        keys_to_read.append(key)
            for group in reader.in_order(keys_to_read):
                with suppress(IcepuffinError, PuffinError):  # each file's own read raises it again
                    reader.fetch(group)
                for key in group:
                    with self._noting_damage(key):
                        sketches = reader.read(key).columns
                        sketches_by_key[key] |= {i: sketches[i, text] for i, text in missing_columns(key, sketches)}
        return sketches_by_key

    @contextmanager
    def _noting_damage(self, key: FileKey) -> Iterator[None]:
        """Turn the error of a broken blob into a note: its file is counted again."""
        try:
            yield
        except (IcepuffinError, PuffinError) as error:
            self._notes.append(f"the file sketches of {key.path} are broken: {error}")
            _log.warning("%s", self._notes[-1])

    def fields_of(self, key: FileKey, columns: Sequence[SketchedColumn]) -> frozenset[int]:
        """Field ids of the columns whose sketches `read` would return, if no blob is broken. Reads nothing."""
        stored_columns = {column for reader in self._readers for column in reader.columns(key)}
        return frozenset(c.field_id for c in columns if (c.field_id, c.counted_as) in stored_columns)

    @property
    def note(self) -> str:
        """Sketches that were lost, in words; empty where there are none."""
        return "; ".join(self._notes)


def open_earlier_sketches(table: Table, store: Storage, snapshot: Snapshot) -> EarlierSketches:
    """The file sketches that can serve one snapshot; a note says which versions are lost or broken."""
    readers, fields, notes = [], set[int](), []
    here = snapshot.sequence_number or 0
    nearest_first = sorted(
        sketch_versions(table), key=lambda v: (abs(v.base_sequence_number - here), -v.sequence_number)
    )
    for version in nearest_first[:_MAX_VERSIONS]:
        try:
            source = PrefetchedSource(store, version.puffin_path)
            reader = FileSketchesReader(PuffinReader(source), source.fetch)
        except (IcepuffinError, PuffinError) as error:
            notes.append(f"the file sketches of snapshot {version.base_snapshot_id} are lost: {error}")
            _log.warning("%s: %s", table_name(table), notes[-1])
            continue
        readers.append(reader)
        if version.base_sequence_number <= here:
            fields |= reader.field_ids()
    return EarlierSketches(readers, fields, notes)
