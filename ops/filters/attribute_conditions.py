"""Conditions on columns whose values are kept by data file: the rows and nodes that satisfy one.

A column's distinct values are compared once; its rows and nodes have their codes. The rows with some codes are a
bitmap, and bitmaps are combined.
"""

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import And, BoundIsNull, BoundNotNull, Or
from pyiceberg.expressions.visitors import extract_field_ids
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, LongType, StringType

from icepuffin.ann_kernels.arrays import I64, Bool
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from icepuffin.ops.filters.coded_rows import (
    NO_LIST,
    CodedRows,
    ColumnPart,
    Combination,
    ConditionTree,
    ListPart,
    Lists,
    evaluate,
)
from icepuffin.ops.filters.condition_parser import LookUp
from icepuffin.ops.filters.distinct_values import ColumnTest, DistinctValues
from icepuffin.ops.filters.list_predicate import BoundArrayContains
from icepuffin.ops.filters.predicate import RowPredicate
from icepuffin.ops.model import FileNumber, LiveFiles, ShardId, StorageConfig
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.rows.attributes import code_type, decoded_values, stored_type
from icepuffin.ops.shards.masked_shards import MaskedShard
from icepuffin.ops.storage import StorageError, open_storage
from icepuffin.ops.table.row_deletes import deleted_by_file
from icepuffin.puffin.blobs.attributes_blob import NULL, WHOLE, WITH_NULL, AttributeEntry, lists_of, values_of
from icepuffin.puffin.errors import PuffinError

_PAUSE_SECONDS = 5.0
"""Time until a column is read again after an error of the store: a search may have thousands of conditions on it"""
Entries = tuple[dict[FileNumber, AttributeEntry], dict[FileNumber, str]]
"""Entries of one column by live file, and the live files without one, with the reason"""


class ColumnSource(Protocol):
    """Where the values of some columns come from, for the live files of a snapshot."""

    @property
    def field_ids(self) -> Collection[int]:
        """Field ids of the columns."""

    def entries(self, field_id: int) -> Entries:
        """The values of one column: distinct values, and a code a row. Raises PuffinError, StorageError,
        DataFileError.
        """


class AttributeColumn:
    """One column of a source, for one snapshot: its distinct values, and the rows that have each."""

    def __init__(self, values: DistinctValues, rows: CodedRows | Lists, missing: Mapping[FileNumber, str]) -> None:
        self.values = values
        """Distinct values, or distinct elements of lists"""
        self.rows = rows
        """All rows, by file number and position: codes, the indices of values, or lists. Rows that are deleted, or lie
        in a file whose values are missing, have neither"""
        self.missing = missing
        """Live files whose values the source lacks, with the reason"""
        self.nodes: dict[ShardId, CodedRows | Lists] = {}
        """Nodes of each shard"""

    @property
    def is_of_lists(self) -> bool:
        return isinstance(self.rows, Lists)

    @cached_property
    def live_rows(self) -> int:
        """Number of live rows whose values are here."""
        return self.rows.live_count

    def part(self, field_id: int, test: ColumnTest, predicate: RowPredicate | None) -> ColumnPart | ListPart:
        """A test of this column, by codes, or by states of lists. Raises FilterError.

        `predicate`: what the test is a part of; None for a look-up.
        """
        if not self.is_of_lists:
            return self.values.part(field_id, test, predicate)
        match test:
            case LookUp() | BoundArrayContains():
                is_negated = isinstance(test, BoundArrayContains) and test.negated
                return ListPart(field_id, tuple(self.values.elements(test)), (WHOLE,) if is_negated else ())
            case BoundIsNull():
                return ListPart(field_id, None, (NULL,))
            case BoundNotNull():
                return ListPart(field_id, None, (WHOLE, WITH_NULL))
        raise TypeError(f"{test} is no condition on lists")


class Attributes:
    """The columns of a source, for one snapshot. Thread-safe; a column is read once, when a condition is on it."""

    def __init__(self, source: ColumnSource, live: LiveFiles, schema: Schema, storage: StorageConfig) -> None:
        self._source = source
        self._live = live
        self._schema = schema
        self._storage = storage
        self._lock = ProcessLock()
        self._columns: dict[int, AttributeColumn] = {}
        self._read_again: dict[int, float] = {}
        """Times from which columns that the store did not give are read again, by field id"""
        counts = np.array([file.record_count for file in live.files], np.int64)
        self._counts = counts
        self.starts: I64 = np.concatenate([[0], np.cumsum(counts)])
        """int64[files + 1]: rows before each file"""

    @property
    def files(self) -> int:
        """Number of live files."""
        return len(self._live.files)

    def has(self, field_id: int) -> bool:
        """Whether there are values of a column."""
        return field_id in self._source.field_ids

    def column(self, field_id: int) -> AttributeColumn:
        """One column. Where it cannot be read, the values of all files are missing; after an error of the store, which
        may pass, it is read again, if not by each of the conditions that come until then.
        """
        with self._lock:
            if time.monotonic() >= self._read_again.get(field_id, math.inf):
                del self._columns[field_id], self._read_again[field_id]
            if field_id not in self._columns:
                try:
                    self._columns[field_id] = self._read(field_id)
                except StorageError as error:
                    self._columns[field_id] = self._unread(field_id, error)
                    self._read_again[field_id] = time.monotonic() + _PAUSE_SECONDS
            return self._columns[field_id]

    def has_look_up(self, look_up: LookUp) -> bool:
        """Whether the values of a look-up are looked up in a column here; else another code compares them."""
        return _kind_of(look_up) in self._look_ups

    def look_up_column(self, look_up: LookUp) -> int:
        """The field id of the column of a look-up that there is."""
        return self._look_ups[_kind_of(look_up)]

    @cached_property
    def _look_ups(self) -> dict[tuple[str, bool, type], int]:
        """Field ids of the columns of texts and whole numbers, by name, whether they are lists, and type."""
        columns: dict[tuple[str, bool, type], int] = {}
        for field in self._schema.fields:
            kind = field.field_type
            value_kind = kind.element_type if isinstance(kind, ListType) else kind
            if self.has(field.field_id) and isinstance(value_kind, StringType | IntegerType | LongType):
                value_type = str if isinstance(value_kind, StringType) else int
                columns[field.name, isinstance(kind, ListType), value_type] = field.field_id
        return columns

    def node_rows(self, shard: MaskedShard) -> tuple[I64, I64]:
        """(the live nodes of a shard, number among all rows of the row of each)."""
        rows, outside = self._rows_of(shard)
        live = np.flatnonzero(~outside & shard.is_live)
        return live, rows[live]

    def name(self, field_id: int) -> str:
        """The name of a column in the snapshot."""
        return str(self._schema.find_column_name(field_id))

    def nodes(self, column: AttributeColumn, shard_id: ShardId, shard: MaskedShard) -> CodedRows | Lists:
        """A shard's nodes, by their codes or lists; those of nodes without a live row mean nothing."""
        with self._lock:
            if shard_id not in column.nodes:
                column.nodes[shard_id] = column.rows.of_nodes(*self._rows_of(shard), shard.is_live)
            return column.nodes[shard_id]

    def _rows_of(self, shard: MaskedShard) -> tuple[I64, Bool]:
        """(number among all rows of each node's row, whether it is of no live file)."""
        numbers, positions = shard.file_numbers, shard.positions
        outside = (numbers < 0) | (positions >= self._counts[numbers])
        return np.where(outside, 0, self.starts[numbers] + positions), outside

    @cached_property
    def _deleted(self) -> I64:
        """Numbers of the deleted rows among all rows, by file number and position."""
        deleted = deleted_by_file(lambda path: open_storage(path, self._storage), self._live.files)
        rows = [np.empty(0, np.int64)]
        for start, file in zip(self.starts, self._live.files, strict=False):
            positions = deleted[file.path]
            rows.append(start + positions[positions < file.record_count])  # others would be rows of the next file
        return np.concatenate(rows).astype(np.int64)

    def _read(self, field_id: int) -> AttributeColumn:
        """Raises StorageError."""
        try:
            return self._column_of(field_id, *self._source.entries(field_id))
        except (PuffinError, pa.ArrowInvalid) as error:  # Arrow's texts of one array end at 2 GiB
            return self._unread(field_id, error)

    def _unread(self, field_id: int, error: Exception) -> AttributeColumn:
        reason = f"they cannot be read: {error}"
        return self._column_of(field_id, {}, {FileNumber(number): reason for number in range(self.files)})

    def _column_of(
        self, field_id: int, entries: Mapping[FileNumber, AttributeEntry], missing: Mapping[FileNumber, str]
    ) -> AttributeColumn:
        """The column with one code for equal values, or elements, of all files. Raises PuffinError."""
        field = self._schema.find_field(field_id)
        if isinstance(field.field_type, ListType):
            return AttributeColumn(*self._lists(entries, stored_type(field)), missing)
        return AttributeColumn(*self._codes(entries, stored_type(field)), missing)

    def _codes(
        self, entries: Mapping[FileNumber, AttributeEntry], kind: pa.DataType
    ) -> tuple[DistinctValues, CodedRows]:
        files = {number: values_of(entry) for number, entry in entries.items()}
        distinct, new_codes = DistinctValues.from_arrays([decoded_values(file, kind) for file in files.values()], kind)
        null = len(distinct)
        absent = null + 1
        codes = np.full(int(self.starts[-1]), absent, code_type(absent))
        for (number, file), new in zip(files.items(), new_codes, strict=True):
            codes[self.starts[number] : self.starts[number + 1]] = np.append(new, null).astype(codes.dtype)[file.codes]
        codes[self._deleted] = absent
        return distinct, CodedRows(codes, absent + 1)

    def _lists(self, entries: Mapping[FileNumber, AttributeEntry], kind: pa.DataType) -> tuple[DistinctValues, Lists]:
        files = {number: lists_of(entries[number]) for number in sorted(entries)}
        distinct, new_codes = DistinctValues.from_arrays(
            [decoded_values(file.tokens, kind) for file in files.values()], kind
        )
        count = int(self.starts[-1])
        row_type = np.uint32 if count < 1 << 32 else np.uint64
        states = np.full(count, NO_LIST, np.uint8)
        codes, rows = [np.empty(0, np.int64)], [np.empty(0, row_type)]
        for (number, file), new in zip(files.items(), new_codes, strict=True):
            states[self.starts[number] : self.starts[number + 1]] = file.states
            codes.append(np.repeat(new, np.diff(file.starts)))
            rows.append((file.rows + self.starts[number]).astype(row_type))
        states[self._deleted] = NO_LIST
        code, row = np.concatenate(codes), np.concatenate(rows)
        live = np.flatnonzero(states[row] != NO_LIST)
        code, row = code[live], row[live]
        order = np.argsort(code, kind="stable")  # files ascend, and so do the rows of each element
        starts = np.searchsorted(code[order], np.arange(len(distinct) + 1))
        return distinct, Lists(states, starts, row[order])


def _kind_of(look_up: LookUp) -> tuple[str, bool, type]:
    return look_up.column, look_up.of_lists, type(look_up.values[0])


@dataclass(frozen=True, eq=False)
class Condition:
    """The part of a condition that is on columns of a source."""

    attributes: Attributes
    tree: ConditionTree
    columns: Mapping[int, AttributeColumn]
    """Columns of the condition, by field id"""

    @classmethod
    def from_tests(
        cls, tests: Sequence[ColumnTest], attributes: Attributes, predicate: RowPredicate | None = None
    ) -> "Condition":
        """The condition that all tests are true: look-ups, or parts of a predicate. Raises FilterError."""

        columns: dict[int, AttributeColumn] = {}

        def column_of(field_id: int) -> AttributeColumn:
            if field_id not in columns:  # once: read again after an error of the store, it has other codes
                columns[field_id] = attributes.column(field_id)
            return columns[field_id]

        def tree_of(test: ColumnTest) -> ConditionTree:
            if isinstance(test, LookUp):
                field_id = attributes.look_up_column(test)
                return column_of(field_id).part(field_id, test, predicate)
            field_ids = extract_field_ids(test)
            column = column_of(min(field_ids))
            if isinstance(test, And | Or) and (len(field_ids) > 1 or column.is_of_lists):
                return Combination(isinstance(test, And), (tree_of(test.left), tree_of(test.right)))
            return column.part(min(field_ids), test, predicate)

        trees = (tree_of(tests[0]),) if len(tests) == 1 else _one_run_per_column(map(tree_of, tests))
        tree = trees[0] if len(trees) == 1 else Combination(every=True, parts=trees)
        return cls(attributes, tree, dict(sorted(columns.items())))

    @property
    def live_rows(self) -> int:
        """Number of live rows, where it decides all files."""
        return min(column.live_rows for column in self.columns.values())

    @cached_property
    def missing(self) -> dict[FileNumber, str]:
        """Live files that it does not decide, with the reason."""
        reasons: dict[FileNumber, str] = {}
        for field_id, column in self.columns.items():
            name = self.attributes.name(field_id)
            reasons |= {number: f"values of {name}: {why}" for number, why in column.missing.items()}
        return reasons

    def rows(self, number: FileNumber) -> Bool:
        """bool[rows]: which rows of a file satisfy it."""
        return self._rows.marked(int(self.attributes.starts[number]), int(self.attributes.starts[number + 1]))

    def nodes(self, shard_id: ShardId, shard: MaskedShard) -> Bitmap:
        """The nodes of a shard that satisfy it, of those with a live row."""
        values = {field_id: self.attributes.nodes(column, shard_id, shard) for field_id, column in self.columns.items()}
        return evaluate(self.tree, values)

    def count(self) -> int:
        """Number of rows that satisfy it, of the files that it decides."""
        if isinstance(self.tree, ColumnPart):
            return self.tree.count(self._own_rows[self.tree.field_id])
        return self._rows.count() - sum(int(np.count_nonzero(self.rows(number))) for number in self.missing)

    @cached_property
    def _rows(self) -> Bitmap:
        """The rows that satisfy it, of all."""
        return evaluate(self.tree, self._own_rows)

    @property
    def _own_rows(self) -> dict[int, Any]:
        return {field_id: column.rows for field_id, column in self.columns.items()}


def _one_run_per_column(trees: Iterable[ConditionTree]) -> tuple[ConditionTree, ...]:
    """The parts of a conjunction. Those with one run of codes of one column are one, which has fewer rows."""
    one_run: dict[int, ColumnPart] = {}
    others: list[ConditionTree] = []
    for tree in trees:
        if isinstance(tree, ColumnPart) and len(tree.runs) == 1:
            before = one_run.get(tree.field_id, tree)
            one_run[tree.field_id] = tree if before is tree else _common_run(before, tree)
        else:
            others.append(tree)
    return *one_run.values(), *others


def _common_run(part: ColumnPart, other: ColumnPart) -> ColumnPart:
    """The codes that two parts on one column have in common, each of one run; the first may have none left."""
    if not part.runs:
        return part
    (first, last), (other_first, other_last) = part.runs[0], other.runs[0]
    return ColumnPart.of_run(part.field_id, max(first, other_first), min(last, other_last) + 1)
