"""Rows of answers by included columns: values that the index version stores, in place of those of the data files.

What a search needs of all files is read in two rounds at most: block indexes that are not in memory, then blocks.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ops.index.versions.version_reader import OpenVersion, location_of, read_included_blob, same_files
from icepuffin.ops.model import FileNumber, FileSlot, LiveFiles, ObjectRange, StorageConfig
from icepuffin.ops.process.lru_cache import LruCache
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.rows.attributes import is_by_name, reading_of, stored_type
from icepuffin.ops.rows.datafile import arrow_schema
from icepuffin.ops.rows.included_columns import values_at
from icepuffin.ops.storage import StorageError, open_storage
from icepuffin.puffin.blobs.included_columns_blob import (
    BlockIndex,
    IncludedEntry,
    ValueBlock,
    block_index,
    decode_block,
)
from icepuffin.puffin.errors import PuffinError

DEFAULT_BUDGET = 32 << 20

Rows = tuple[FileNumber, npt.NDArray[np.int64]]
"""(a live file, positions of some of its rows)"""
_Key = tuple[int, FileNumber]
"""(field id, file number)"""
_BlockKey = tuple[_Key, int]
"""(column and file, number of the block; `_INDEX` is the block index)"""
_INDEX = -1
_Faults = dict[_Key, str]
"""Reasons why values cannot be read"""
_Decoded = TypeVar("_Decoded", BlockIndex, ValueBlock)


@dataclass(slots=True)
class IncludedMeter:
    """What one search has read of included columns. Not shared between threads."""

    bytes: int = 0
    rows: dict[int, int] = field(default_factory=dict)
    """Rows whose values they were, by field id"""
    faults: dict[str, None] = field(default_factory=dict)
    """Reasons why data files were read instead, each once"""


@dataclass(frozen=True, slots=True)
class _StoredValues:
    """The values of one column in one live file."""

    entry: IncludedEntry
    location: ObjectRange

    @property
    def index_location(self) -> ObjectRange:
        """Where the block index lies."""
        length = self.entry.index_length
        return ObjectRange(self.location.path, self.location.offset + self.location.length - length, length)

    def block_location(self, index: BlockIndex, number: int) -> ObjectRange:
        """Where a block lies."""
        start = self.location.offset + int(index.starts[number])
        return ObjectRange(self.location.path, start, int(index.lengths[number]))


class IncludedColumns:
    """The included columns of an index version, for one snapshot. Thread-safe.

    Holds at most `budget_bytes` of decoded blocks and block indexes. Readers share nothing, so nobody is served values
    that their own credentials did not fetch.
    """

    def __init__(
        self,
        opened: OpenVersion,
        live: LiveFiles,
        schema: Schema,
        storage: StorageConfig,
        *,
        budget_bytes: int = DEFAULT_BUDGET,
    ) -> None:
        self._opened = opened
        self._live = live
        self._schema = schema
        self._storage = storage
        self._lock = ProcessLock()
        self._entries: dict[int, dict[FileNumber, IncludedEntry]] = {}
        self._stored: dict[_Key, _StoredValues | None] = {}
        self._types: dict[int, tuple[pa.DataType, pa.DataType]] = {}
        self._kept = LruCache[_BlockKey, Any](budget_bytes)

    def has(self, field_id: int) -> bool:
        """Whether the version stores a column."""
        return field_id in self._opened.included

    def values(
        self, requests: Sequence[Rows], field_ids: Sequence[int], meter: IncludedMeter
    ) -> list[dict[int, pa.Array]]:
        """For each request the values of the columns that the version stores for its file, by field id, in the order of
        the positions. `meter` has what was read, and why a column is missing that should be there.
        """
        faults = _Faults()
        stored = self._stored_values(requests, field_ids, meter)
        indexes = self._indexes(stored, faults, meter)
        blocks = self._blocks(stored, indexes, requests, faults, meter)
        values: list[dict[int, pa.Array]] = [{} for _ in requests]
        for own_values, (number, positions) in zip(values, requests, strict=True):
            for field_id in field_ids:
                key = field_id, number
                if key not in indexes or key in faults:
                    continue
                try:
                    own_values[field_id] = self._column(key, stored[key].entry.block_rows, positions, blocks)
                except PuffinError as error:
                    faults[key] = str(error)
                    continue
                meter.rows[field_id] = meter.rows.get(field_id, 0) + len(positions)
        for (field_id, _), reason in faults.items():
            self._report(field_id, reason, meter)
        return values

    def _stored_values(
        self, requests: Sequence[Rows], field_ids: Sequence[int], meter: IncludedMeter
    ) -> dict[_Key, _StoredValues]:
        """The values that the version has of the columns and files."""
        stored: dict[_Key, _StoredValues] = {}
        for field_id in filter(self.has, field_ids):
            try:
                entries = self._entries_of(field_id)
            except (PuffinError, StorageError) as error:
                self._report(field_id, str(error), meter)
                continue
            for number, positions in requests:
                location = self._stored_of(field_id, number, entries)
                if location is not None and int(positions.max(initial=-1)) < location.entry.rows:
                    stored[field_id, number] = location
        return stored

    def _indexes(
        self, stored: Mapping[_Key, _StoredValues], faults: _Faults, meter: IncludedMeter
    ) -> dict[_Key, BlockIndex]:
        locations = {(key, _INDEX): location.index_location for key, location in stored.items()}
        read = self._read(locations, lambda key, data: block_index(stored[key[0]].entry, data), faults, meter)
        return {key: index for (key, _), index in read.items()}

    def _blocks(
        self,
        stored: Mapping[_Key, _StoredValues],
        indexes: Mapping[_Key, BlockIndex],
        requests: Sequence[Rows],
        faults: _Faults,
        meter: IncludedMeter,
    ) -> dict[_BlockKey, ValueBlock]:
        """The blocks that hold a row of the requests."""
        locations: dict[_BlockKey, ObjectRange] = {}
        positions_of = dict(requests)
        for key, index in indexes.items():
            for number, _ in _runs(positions_of[key[1]], stored[key].entry.block_rows):
                locations[key, number] = stored[key].block_location(index, number)

        def decoded(key: _BlockKey, data: bytes) -> ValueBlock:
            return decode_block(stored[key[0]].entry, indexes[key[0]], key[1], data)

        return self._read(locations, decoded, faults, meter)

    def _column(
        self,
        key: _Key,
        block_rows: int,
        positions: npt.NDArray[np.int64],
        blocks: Mapping[_BlockKey, ValueBlock],
    ) -> pa.Array:
        """The values of rows of one file. Raises BadBlobError."""
        kind, column_type = self._type(key[0])
        values = values_at([(blocks[key, number], rows) for number, rows in _runs(positions, block_rows)], kind)
        return pa.ExtensionArray.from_storage(column_type, values) if column_type != kind else values

    def _read(
        self,
        locations: Mapping[_BlockKey, ObjectRange],
        decode: Callable[[_BlockKey, bytes], _Decoded],
        faults: _Faults,
        meter: IncludedMeter,
    ) -> dict[_BlockKey, _Decoded]:
        """Decoded parts of the values, from memory or from their locations; those that cannot be read are `faults`."""
        with self._lock:
            decoded = {key: kept for key in locations if (kept := self._kept.get(key)) is not None}
        missing: dict[str, list[_BlockKey]] = defaultdict(list)
        for key, location in locations.items():
            if key not in decoded:
                missing[location.path].append(key)
        for path, keys in missing.items():
            ranges = [(locations[key].offset, locations[key].length) for key in keys]
            try:
                read = open_storage(path, self._storage).read_ranges(path, ranges)
            except StorageError as error:
                faults |= {key: str(error) for key, _ in keys}
                continue
            for key, data in zip(keys, read, strict=True):
                try:
                    decoded[key] = decode(key, data)
                except PuffinError as error:
                    faults[key[0]] = str(error)
                    continue
                meter.bytes += len(data)
                self._keep(key, decoded[key])
        return decoded

    def _report(self, field_id: int, reason: str, meter: IncludedMeter) -> None:
        name = self._schema.find_column_name(field_id)
        meter.faults[f"included column {name} cannot be read, data files were: {reason}"] = None

    def _keep(self, key: _BlockKey, block: BlockIndex | ValueBlock) -> None:
        if block.nbytes > self._kept.budget // 4:
            return
        with self._lock:
            if key not in self._kept:
                self._kept.put(key, block, block.nbytes)

    def _entries_of(self, field_id: int) -> dict[FileNumber, IncludedEntry]:
        """The entries of a column, by file number. Raises StorageError, PuffinError."""
        with self._lock:
            if field_id not in self._entries:
                entries = read_included_blob(self._opened, field_id, self._storage).entries
                numbers = ((self._numbers.get(FileSlot(entry.slot)), entry) for entry in entries)
                self._entries[field_id] = {number: entry for number, entry in numbers if number is not None}
            return self._entries[field_id]

    def _stored_of(
        self, field_id: int, number: FileNumber, entries: Mapping[FileNumber, IncludedEntry]
    ) -> _StoredValues | None:
        """The values of a file; None where they are not stored, or the snapshot would read the column otherwise."""
        key = field_id, number
        if key not in self._stored:
            entry, file = entries.get(number), self._live.files[number]
            if entry is not None and (
                entry.left_out
                or entry.reading != reading_of(self._schema, file, field_id, by_name=is_by_name(entry.reading))
            ):
                entry = None
            location = None if entry is None else location_of(self._opened.bound, entry)
            self._stored[key] = _StoredValues(entry, location) if entry and location and location.path else None
        return self._stored[key]

    def _type(self, field_id: int) -> tuple[pa.DataType, pa.DataType]:
        """(type that the values are stored in, type of the column)."""
        if field_id not in self._types:
            field = self._schema.find_field(field_id)
            self._types[field_id] = stored_type(field), arrow_schema(Schema(field)).field(0).type
        return self._types[field_id]

    @cached_property
    def _numbers(self) -> dict[FileSlot, FileNumber]:
        """File number of each file slot whose file is live in the snapshot."""
        same = same_files(self._opened, self._live)
        files = enumerate(self._opened.routing.files)
        return {FileSlot(slot): same[file.path] for slot, file in files if file.present and file.path in same}


def _runs(positions: npt.NDArray[np.int64], block_rows: int) -> list[tuple[int, list[int]]]:
    """(number of a block, its rows) of positions that follow each other in one block, in their order."""
    runs: list[tuple[int, list[int]]] = []
    for position in positions.tolist():
        number, row = divmod(position, block_rows)
        if not runs or runs[-1][0] != number:
            runs.append((number, []))
        runs[-1][1].append(row)
    return runs
