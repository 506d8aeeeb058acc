"""The values of columns for conditions, by data file: as an index version keeps them, and in a reader's memory for the
rows of a freshness tail, which the version lacks.

Those in memory are what the next refresh would store, and mean the same. The first condition on a column reads the data
files that it may match in, as it may be the only one; the second reads the column of all files of the tail.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from weakref import finalize

import numpy as np
from pyiceberg.schema import Schema
from pyiceberg.types import ListType

from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ops.filters.attribute_conditions import Attributes, Condition, Entries
from icepuffin.ops.filters.distinct_values import ColumnTest
from icepuffin.ops.filters.matches import Matches
from icepuffin.ops.filters.predicate import RowPredicate
from icepuffin.ops.index.versions.version_reader import OpenVersion, read_attribute_blob, same_files
from icepuffin.ops.messages import plural
from icepuffin.ops.model import FileNumber, FileSlot, LiveFiles, StorageConfig
from icepuffin.ops.process.process_budget import TAIL_MEMORY
from icepuffin.ops.rows.attributes import is_by_name, reading_of
from icepuffin.ops.rows.datafile import DataFileError
from icepuffin.ops.storage import StorageError
from icepuffin.ops.tasks.attribute_task import AttributesTask, ColumnsOfFile, read_attributes
from icepuffin.puffin.blobs.attributes_blob import AttributeEntry
from icepuffin.puffin.errors import PuffinError

_FIRST = 2
"""Number of the condition on a column that reads the column"""
_LATER = 8
"""Conditions after which a column is read that could not be read or kept before"""
_BYTES_PER_ROW = 12
"""Memory of a row beside its stored values, at most: a wider code, and lists and bitmaps of rows"""
_BYTES_OF_LISTS = 3
"""Bytes of memory per stored byte of lists, at most"""


class VersionValues:
    """The values that an index version keeps."""

    def __init__(self, opened: OpenVersion, live: LiveFiles, schema: Schema, storage: StorageConfig) -> None:
        self._opened = opened
        self._live = live
        self._schema = schema
        self._storage = storage

    @property
    def field_ids(self) -> Collection[int]:
        """See ColumnSource."""
        return self._opened.attributes

    def entries(self, field_id: int) -> Entries:
        """See ColumnSource."""
        missing = {FileNumber(number): "the version lacks them" for number in range(len(self._live.files))}
        entries: dict[FileNumber, AttributeEntry] = {}
        for entry in read_attribute_blob(self._opened, field_id, self._storage).entries:
            number = self._numbers.get(FileSlot(entry.slot))
            if number is None:
                continue
            missing[number] = self._unlike(entry, number, field_id)
            if not missing[number]:
                entries[number] = entry
                del missing[number]
        return entries, missing

    @cached_property
    def lacking(self) -> frozenset[FileNumber]:
        """Live files that the version has no values of, as it does not have the files: they have no node."""
        return frozenset(self._live.numbers).difference(self._numbers.values())

    @cached_property
    def _numbers(self) -> dict[FileSlot, FileNumber]:
        """File number of each file slot whose file is live in the snapshot."""
        same = same_files(self._opened, self._live)
        files = enumerate(self._opened.routing.files)
        return {FileSlot(slot): same[file.path] for slot, file in files if file.present and file.path in same}

    def _unlike(self, entry: AttributeEntry, number: FileNumber, field_id: int) -> str:
        """Reason why an entry cannot be used; empty where it can."""
        file = self._live.files[number]
        if entry.left_out:
            return entry.left_out
        if entry.reading != reading_of(self._schema, file, field_id, by_name=is_by_name(entry.reading)):
            return "the schema has changed since they were read"
        return ""


class _OverBudgetError(Exception):
    """The values of a column take more memory than there is for tails."""


class _ScannedValues:
    """Values of columns as the data files of a tail have them. Their memory is given back with this object."""

    def __init__(self, live: LiveFiles, schema: Schema, storage: StorageConfig, field_ids: Collection[int]) -> None:
        self.field_ids = field_ids
        self._live = live
        self._schema = schema
        self._storage = storage

    def entries(self, field_id: int) -> Entries:
        """See ColumnSource. Raises _OverBudgetError, too."""
        files = [ColumnsOfFile(FileSlot(number), file, (field_id,)) for number, file in enumerate(self._live.files)]
        entries: Entries = {}, {}
        for _, entry in read_attributes(AttributesTask(tuple(files), self._schema, self._storage)):
            if entry.left_out:
                entries[1][FileNumber(entry.slot)] = entry.left_out
            else:
                entries[0][FileNumber(entry.slot)] = entry
        stored = sum(entry.raw_length for entry in entries[0].values())
        of_lists = isinstance(self._schema.find_type(field_id), ListType)
        size = _BYTES_OF_LISTS * stored if of_lists else stored + _BYTES_PER_ROW * self._live.record_count
        if not TAIL_MEMORY.reserve(size):
            raise _OverBudgetError
        finalize(self, TAIL_MEMORY.release, size)
        return entries


class TailValues:
    """Values of the columns that an index version keeps, in the data files that it lacks. Thread-safe."""

    def __init__(self, stored: VersionValues, live: LiveFiles, schema: Schema, storage: StorageConfig) -> None:
        self.files = tuple(sorted(stored.lacking))
        """File numbers of the files, in the order in which `_attributes` numbers them"""
        scanned = replace(live, files=tuple(live.files[number] for number in self.files))
        values = _ScannedValues(scanned, schema, storage, frozenset(stored.field_ids))
        self._attributes = Attributes(values, scanned, schema, storage)
        self._conditions: Counter[int] = Counter()
        """Conditions on each column, by field id"""

    def matches(
        self, condition: Condition, tests: Sequence[ColumnTest], predicate: RowPredicate | None
    ) -> Matches | None:
        """The matches in the files that a condition of the index's values does not decide; None where the data files
        are to be read for them. It is that of `tests`, as of `Condition.from_tests`. Raises FilterError.
        """
        if not condition.missing.keys() <= {*self.files} or not self._are_here(condition.columns):
            return None
        condition_here = Condition.from_tests(tests, self._attributes, predicate)
        if condition_here.missing:
            return None
        positions = {
            number: rows
            for index, number in enumerate(self.files)
            if number in condition.missing and len(rows := np.flatnonzero(condition_here.rows(FileNumber(index))))
        }
        how = f"those in memory of {plural(len(condition.missing), 'data file')} that it lacks"
        return Matches(positions, 0, how, in_tail=True)

    def _are_here(self, field_ids: Collection[int]) -> bool:
        """Whether the values of some columns are in memory; they are read where it is time."""
        if not TAIL_MEMORY.budget:
            return False
        self._conditions.update(list(field_ids))
        if any(self._conditions[field_id] < _FIRST for field_id in field_ids):
            return False
        for field_id in field_ids:
            try:
                self._attributes.column(field_id)
            except (_OverBudgetError, DataFileError, StorageError, PuffinError):
                self._conditions[field_id] = _FIRST - _LATER  # matches may lie in files that are sound
                return False
        return True
