"""Conditions on columns whose values the index version keeps: matching rows, by what was read at the refresh.

A column's distinct values are compared once; its rows and nodes have their codes. So the meaning of a condition is that
of comparing the rows of the data files: the same code compares (`predicate`), but for equal texts and whole numbers,
which are looked up. The rows with some codes are a bitmap, and bitmaps are combined.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    BoundEqualTo,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIn,
    BoundIsNaN,
    BoundIsNull,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundNotNull,
    Or,
)
from pyiceberg.expressions.visitors import extract_field_ids
from pyiceberg.schema import Schema
from pyiceberg.types import ListType

from icepuffin.ann_kernels.arrays import I64, Bool
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from icepuffin.ops.filters.attribute_values import ValueSource
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
from icepuffin.ops.filters.list_predicate import BoundArrayContains
from icepuffin.ops.filters.predicate import RowPredicate, element_truth
from icepuffin.ops.filters.value_codes import ValueCodes
from icepuffin.ops.model import FileNumber, LiveFiles, ShardId, StorageConfig
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.rows.attributes import Codes, code_type, decoded_values, merged, stored_type
from icepuffin.ops.shards.masked_shards import MaskedShard
from icepuffin.ops.storage import StorageError, open_storage
from icepuffin.ops.table.row_deletes import deleted_by_file
from icepuffin.puffin.blobs.attributes_blob import NULL, WHOLE, WITH_NULL, AttributeEntry, lists_of, values_of
from icepuffin.puffin.errors import PuffinError

_FALLING = BoundLessThan | BoundLessThanOrEqual
_RISING = BoundGreaterThan | BoundGreaterThanOrEqual
_MOST_COMPARED = 1_000
"""Values that are all compared: that takes microseconds"""
_PAUSE_SECONDS = 5.0
"""Time until a column is read again after an error of the store: a search may have thousands of conditions on it"""


class AttributeColumn:
    """The values of one column, for one snapshot: the code of each row and of each node."""

    def __init__(self, values: pa.Array, codes: Codes, missing: Mapping[FileNumber, str], *, in_order: bool) -> None:
        self.values = values
        """Distinct values, in order where they have one, and null"""
        self._in_order = in_order
        self.rows = CodedRows(codes, len(values) + 1)
        """All rows, by file number and position. A code is the place of the row's value. Rows that are deleted, or lie
        in a file whose values are missing, have the code `len(values)`"""
        self.missing = missing
        """Live files whose values the version lacks, with the reason"""
        self.nodes: dict[ShardId, CodedRows] = {}
        """Nodes of each shard"""

    @cached_property
    def live_rows(self) -> int:
        """Number of live rows whose values are here."""
        return self.rows.number_within(0, len(self.values) - 1)

    @cached_property
    def _value_codes(self) -> ValueCodes | None:
        return ValueCodes.of(self.values[:-1])

    def look_up(self, look_up: LookUp, field_id: int) -> ColumnPart | None:
        """The part of a condition that compares this column with some values; None where this is no look-up."""
        codes = self.codes_of(look_up)
        return None if codes is None else ColumnPart(field_id, [(code, code) for code in codes])

    def codes_of(self, look_up: LookUp) -> list[int] | None:
        """Codes of the rows for which a look-up is true; None where this column has no such look-ups."""
        return None if look_up.of_lists else _codes_of(look_up.values, self._value_codes)

    def part(self, part: BooleanExpression, field_id: int, predicate: RowPredicate) -> ColumnPart:
        """A part of a predicate that is on this column. Raises FilterError."""
        if self._value_codes and isinstance(part, BoundEqualTo | BoundIn):
            values = part.value_set if isinstance(part, BoundIn) else {part.literal.value}
            return ColumnPart(field_id, [(code, code) for code in self._value_codes.codes(values)])
        if self._in_order and len(self.values) > _MOST_COMPARED:
            if isinstance(part, _FALLING):
                return ColumnPart.of_run(field_id, 0, self._first_codes(part, predicate, are_true=True))
            if self._is_rising(part):
                return ColumnPart.of_run(
                    field_id, self._first_codes(part, predicate, are_true=False), len(self.values) - 1
                )
        return ColumnPart.of(field_id, predicate.truth(part, self.values))

    def _is_rising(self, part: BooleanExpression) -> bool:
        """Whether a part is true for the last values alone; NaN, which is over all others, is among them."""
        if pa.types.is_floating(self.values.type):
            return isinstance(part, Or) and isinstance(part.left, _RISING) and isinstance(part.right, BoundIsNaN)
        return isinstance(part, _RISING)

    def _first_codes(self, part: BooleanExpression, predicate: RowPredicate, *, are_true: bool) -> int:
        """Number of the first values for which a comparison by order is true, or is not.

        Few values are compared: one per block, and those of the block where the comparison may change.
        Raises FilterError.
        """
        count = len(self.values) - 1  # without null
        step = math.isqrt(count)
        of_blocks = predicate.truth(part, self.values.take(np.arange(0, count, step)))
        start = max(0, (int(np.count_nonzero(of_blocks == are_true)) - 1) * step)
        of_values = predicate.truth(part, self.values[start : min(start + step, count)])
        return start + int(np.count_nonzero(of_values == are_true))


class ListColumn:
    """The lists of one column, for one snapshot: those of all rows, and those of the nodes of each shard."""

    def __init__(self, values: pa.Array, rows: Lists, missing: Mapping[FileNumber, str]) -> None:
        self.values = values
        """Distinct elements, in order where they have one"""
        self.rows = rows
        """Lists of all rows, by file number and position"""
        self.missing = missing
        """Live files whose values the version lacks, with the reason"""
        self.nodes: dict[ShardId, Lists] = {}
        """Lists of the nodes of each shard"""

    @cached_property
    def live_rows(self) -> int:
        """Number of live rows whose lists are here."""
        return int(np.count_nonzero(self.rows.states != NO_LIST))

    @cached_property
    def _value_codes(self) -> ValueCodes | None:
        return ValueCodes.of(self.values)

    def look_up(self, look_up: LookUp, field_id: int) -> ListPart | None:
        """The part of a condition that compares elements with a value; None where this is no look-up."""
        codes = self.codes_of(look_up)
        return None if codes is None else ListPart(field_id, tuple(codes), ())

    def codes_of(self, look_up: LookUp) -> list[int] | None:
        """Codes of the elements of which a list has one where a look-up is true; None as of `AttributeColumn`."""
        return _codes_of(look_up.values, self._value_codes) if look_up.of_lists else None


def _codes_of(values: Sequence[str | int], value_codes: ValueCodes | None) -> list[int] | None:
    """Codes, ascending, of those of some values that a column has; None where their type is not the column's."""
    if value_codes is None or isinstance(values[0], str) is not value_codes.are_texts:
        return None
    return value_codes.codes(values)


class Attributes:
    """The columns for conditions of an index version, or of other values, for one snapshot. Thread-safe; a column is
    read once, when a condition is on it.
    """

    def __init__(self, source: ValueSource, live: LiveFiles, schema: Schema, storage: StorageConfig) -> None:
        self._source = source
        self._live = live
        self._schema = schema
        self._storage = storage
        self._lock = ProcessLock()
        self._columns: dict[int, AttributeColumn | ListColumn] = {}
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

    def column(self, field_id: int) -> AttributeColumn | ListColumn:
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

    @cached_property
    def _field_ids(self) -> dict[str, int]:
        """Field ids of the columns that the version keeps, by their names in the snapshot."""
        return {field.name: field.field_id for field in self._schema.fields if self.has(field.field_id)}

    def condition(self, joined: Sequence[LookUp]) -> "Condition | None":
        """The condition that all look-ups are true; None where the version does not keep a column, or another code
        compares its values.
        """
        parts: list[ConditionTree] = []
        columns: dict[int, AttributeColumn | ListColumn] = {}
        for look_up in joined:
            field_id = self._field_ids.get(look_up.column)
            if field_id is None:
                return None
            if field_id not in columns:  # once: read again after an error of the store, it has other codes
                columns[field_id] = self.column(field_id)
            part = columns[field_id].look_up(look_up, field_id)
            if part is None:
                return None
            parts.append(part)
        tree = parts[0] if len(parts) == 1 else Combination(every=True, parts=tuple(parts))
        return Condition(self, tree, dict(sorted(columns.items())))

    def looked_up(self, look_up: LookUp) -> tuple[int, AttributeColumn | ListColumn, list[int]] | None:
        """(field id, column, codes that satisfy it) of a look-up in one column; None as of `condition`."""
        field_id = self._field_ids.get(look_up.column)
        if field_id is None:
            return None
        column = self.column(field_id)
        codes = column.codes_of(look_up)
        return None if codes is None else (field_id, column, codes)

    def node_rows(self, shard: MaskedShard) -> tuple[I64, I64]:
        """(the live nodes of a shard, number among all rows of the row of each)."""
        rows, outside = self._rows_of(shard)
        live = np.flatnonzero(~outside & shard.is_live)
        return live, rows[live]

    def name(self, field_id: int) -> str:
        """The name of a column in the snapshot."""
        return str(self._schema.find_column_name(field_id))

    def node_codes(self, column: AttributeColumn, shard_id: ShardId, shard: MaskedShard) -> CodedRows:
        """A shard's nodes, by their codes; those of nodes without a live row mean nothing."""
        with self._lock:
            if shard_id not in column.nodes:
                rows, outside = self._rows_of(shard)
                of_rows = column.rows.codes
                codes = of_rows[rows] if len(of_rows) else np.empty(0, of_rows.dtype)
                if outside.any():
                    codes[outside] = len(column.values)
                column.nodes[shard_id] = CodedRows(codes, len(column.values) + 1)
            return column.nodes[shard_id]

    def node_lists(self, column: ListColumn, shard_id: ShardId, shard: MaskedShard) -> Lists:
        """The lists of a shard's nodes; those of nodes without a live row have no list."""
        with self._lock:
            if shard_id not in column.nodes:
                rows, outside = self._rows_of(shard)
                live = np.flatnonzero(~outside & shard.is_live)
                states = np.full(len(rows), NO_LIST, np.uint8)
                states[live] = column.rows.states[rows[live]]
                none = len(rows)
                node_of_row = np.full(len(column.rows.states), none, np.uint32)
                node_of_row[rows[live]] = live
                nodes = node_of_row[column.rows.places]
                here = nodes != none
                starts = np.append(0, np.cumsum(here))[column.rows.starts]
                column.nodes[shard_id] = Lists(states, starts, nodes[here])
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

    def _read(self, field_id: int) -> AttributeColumn | ListColumn:
        """Raises StorageError."""
        try:
            return self._column_of(field_id, *self._source.entries(field_id))
        except (PuffinError, pa.ArrowInvalid) as error:  # Arrow's texts of one array end at 2 GiB
            return self._unread(field_id, error)

    def _unread(self, field_id: int, error: Exception) -> AttributeColumn | ListColumn:
        reason = f"they cannot be read: {error}"
        return self._column_of(field_id, {}, {FileNumber(number): reason for number in range(self.files)})

    def _column_of(
        self, field_id: int, entries: Mapping[FileNumber, AttributeEntry], missing: Mapping[FileNumber, str]
    ) -> AttributeColumn | ListColumn:
        field = self._schema.find_field(field_id)
        join = self._joined_lists if isinstance(field.field_type, ListType) else self._joined
        return join(entries, stored_type(field), missing)

    def _joined(
        self, entries: Mapping[FileNumber, AttributeEntry], kind: pa.DataType, missing: Mapping[FileNumber, str]
    ) -> AttributeColumn:
        """The column with one code for equal values of all files. Raises PuffinError."""
        values: dict[FileNumber, tuple[pa.Array, Codes]] = {}
        for number, entry in entries.items():
            file_values = values_of(entry)
            values[number] = decoded_values(file_values, kind), file_values.codes
        distinct, places = merged([pa.array([], kind), *(own for own, _ in values.values())])
        distinct, ranks, in_order = _sorted(distinct)
        null = len(distinct)
        dead = null + 1
        codes = np.full(int(self.starts[-1]), dead, code_type(dead))
        first = 0
        for number, (own, own_codes) in values.items():
            new_codes = np.append(ranks[places[first : first + len(own)]], null).astype(codes.dtype)
            codes[self.starts[number] : self.starts[number + 1]] = new_codes[own_codes]
            first += len(own)
        codes[self._deleted] = dead
        return AttributeColumn(pa.concat_arrays([distinct, pa.nulls(1, kind)]), codes, missing, in_order=in_order)

    def _joined_lists(
        self, entries: Mapping[FileNumber, AttributeEntry], kind: pa.DataType, missing: Mapping[FileNumber, str]
    ) -> ListColumn:
        """The column with one code for equal elements of all files. Raises PuffinError."""
        numbers = sorted(entries)
        files = [lists_of(entries[number]) for number in numbers]
        elements = [decoded_values(file.tokens, kind) for file in files]
        distinct, codes_of = merged([pa.array([], kind), *elements])
        distinct, ranks, _ = _sorted(distinct)
        codes_of = ranks[codes_of]
        count = int(self.starts[-1])
        row_type = np.uint32 if count < 1 << 32 else np.uint64
        states = np.full(count, NO_LIST, np.uint8)
        codes, rows, first = [np.empty(0, np.int64)], [np.empty(0, row_type)], 0
        for number, file, own in zip(numbers, files, elements, strict=True):
            states[self.starts[number] : self.starts[number + 1]] = file.states
            codes.append(np.repeat(codes_of[first : first + len(own)], np.diff(file.starts)))
            rows.append((file.rows + self.starts[number]).astype(row_type))
            first += len(own)
        states[self._deleted] = NO_LIST
        code, row = np.concatenate(codes), np.concatenate(rows)
        live = np.flatnonzero(states[row] != NO_LIST)
        code, row = code[live], row[live]
        order = np.argsort(code, kind="stable")  # files ascend, and so do the rows of each element
        starts = np.searchsorted(code[order], np.arange(len(distinct) + 1))
        return ListColumn(distinct, Lists(states, starts, row[order]), missing)


def _sorted(values: pa.Array) -> tuple[pa.Array, I64, bool]:
    """(the values, the new place of each, whether they are in order), so that ranges are runs; as they are, where Arrow
    has no order.
    """
    try:
        order = pc.array_sort_indices(values)
    except pa.ArrowNotImplementedError:
        return values, np.arange(len(values)), False
    ranks = np.empty(len(values), np.int64)
    ranks[order.to_numpy()] = np.arange(len(values))
    return values.take(order), ranks, True


@dataclass(frozen=True, eq=False)
class Condition:
    """The part of a condition that is on columns of an index version."""

    attributes: Attributes
    tree: ConditionTree
    columns: Mapping[int, AttributeColumn | ListColumn]
    """Columns of the condition, by field id"""

    @classmethod
    def of(cls, parts: Sequence[BooleanExpression], predicate: RowPredicate, attributes: Attributes) -> "Condition":
        """The condition that all parts of a predicate are true. Raises FilterError."""
        field_ids = sorted({field_id for part in parts for field_id in extract_field_ids(part)})
        columns = {field_id: attributes.column(field_id) for field_id in field_ids}

        def tree_of(part: BooleanExpression) -> ConditionTree:
            own = extract_field_ids(part)
            column = columns[min(own)]
            if len(own) == 1 and isinstance(column, AttributeColumn):
                return column.part(part, min(own), predicate)
            if isinstance(part, And | Or):
                return Combination(isinstance(part, And), (tree_of(part.left), tree_of(part.right)))
            if len(own) == 1 and isinstance(column, ListColumn):
                return _list_part(part, min(own), column.values)
            raise TypeError(f"{part} is on several columns")

        trees = _one_run_per_column(map(tree_of, parts))
        return cls(attributes, trees[0] if len(trees) == 1 else Combination(every=True, parts=trees), columns)

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
        own = {
            field_id: self.attributes.node_lists(column, shard_id, shard)
            if isinstance(column, ListColumn)
            else self.attributes.node_codes(column, shard_id, shard)
            for field_id, column in self.columns.items()
        }
        return evaluate(self.tree, own)

    def count(self) -> int:
        """Number of rows that satisfy it, of the files that it decides."""
        column = None if isinstance(self.tree, Combination) else self.columns[self.tree.field_id]
        if isinstance(self.tree, ColumnPart) and isinstance(column, AttributeColumn):
            return self.tree.count(column.rows)
        return self._rows.count() - sum(int(np.count_nonzero(self.rows(number))) for number in self.missing)

    @cached_property
    def _rows(self) -> Bitmap:
        """The rows that satisfy it, of all."""
        return evaluate(self.tree, {field_id: column.rows for field_id, column in self.columns.items()})


def _one_run_per_column(trees: Iterable[ConditionTree]) -> tuple[ConditionTree, ...]:
    """The parts of a conjunction. Those with one run of codes of one column are one, which has fewer rows."""
    runs: dict[int, tuple[int, int]] = {}
    others: list[ConditionTree] = []
    for tree in trees:
        if isinstance(tree, ColumnPart) and len(tree.runs) == 1:
            first, last = tree.runs[0]
            other_first, other_last = runs.get(tree.field_id, (first, last))
            runs[tree.field_id] = max(first, other_first), min(last, other_last)
        else:
            others.append(tree)
    joined = (ColumnPart.of_run(field_id, first, last + 1) for field_id, (first, last) in runs.items())
    return *joined, *others


def _list_part(part: BooleanExpression, field_id: int, elements: pa.Array) -> ListPart:
    """A part of a condition that is on a column of lists. `elements`: the distinct ones. Raises FilterError."""
    match part:
        case BoundArrayContains():
            codes = tuple(np.flatnonzero(element_truth(part, elements).to_numpy(zero_copy_only=False)).tolist())
            return ListPart(field_id, codes, (WHOLE,) if part.negated else ())
        case BoundIsNull():
            return ListPart(field_id, None, (NULL,))
        case BoundNotNull():
            return ListPart(field_id, None, (WHOLE, WITH_NULL))
    raise TypeError(f"{part} is no condition on lists")
