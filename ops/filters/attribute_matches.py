"""Which live rows satisfy a condition, by values of columns that an index version keeps, or a reader's memory.

Of the data files only what these values do not decide is read.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from pyiceberg.expressions import And, BooleanExpression
from pyiceberg.expressions.visitors import extract_field_ids
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from icepuffin.ann_kernels.arrays import I64
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from icepuffin.ops.filters.attribute_conditions import Attributes, Condition
from icepuffin.ops.filters.attribute_values import TailValues
from icepuffin.ops.filters.condition_parser import look_ups
from icepuffin.ops.filters.distinct_values import ColumnTest
from icepuffin.ops.filters.matches import ConditionReader, Matches, find_matches
from icepuffin.ops.filters.predicate import RowPredicate
from icepuffin.ops.messages import plural
from icepuffin.ops.model import FileNumber, LiveFiles, ShardId, StorageConfig
from icepuffin.ops.shards.masked_shards import MaskedShard


class _MatchingRows(Mapping[FileNumber, I64]):
    """Positions of the rows that satisfy a condition, by file number: made when they are needed."""

    def __init__(self, condition: Condition, rest: Matches | None, others: Matches) -> None:
        self._condition = condition
        self._rest = rest
        self._others = others

    @cached_property
    def _decided(self) -> frozenset[FileNumber]:
        return frozenset(map(FileNumber, range(self._condition.attributes.files))) - self._condition.missing.keys()

    def __getitem__(self, number: FileNumber) -> I64:
        if number not in self._decided:
            return self._others.positions[number]
        positions = np.flatnonzero(self._condition.rows(number))
        if self._rest is not None:
            positions = np.intersect1d(positions, self._rest.positions[number], assume_unique=True)
        if not len(positions):
            raise KeyError(number)
        return positions

    def __iter__(self) -> Iterator[FileNumber]:
        candidates = (FileNumber(number) for number in range(self._condition.attributes.files))
        return (number for number in candidates if number in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True, eq=False, kw_only=True)
class AttributeMatches(Matches):
    """The live rows that satisfy a condition which attributes decide, if not for all files or in all parts."""

    condition: Condition
    rest: Matches | None
    """Rows that satisfy the other conjuncts, of the files that attributes decide; None where there are none"""
    others: Matches
    """Matches in the other files"""

    def __reduce__(self) -> tuple[type[Matches], tuple[dict[FileNumber, I64], int]]:
        """Tasks get the rows: attributes stay here."""
        return Matches, (dict(self.positions), self.files_read)

    @cached_property
    def count(self) -> int:
        if self.rest is not None:
            return sum(len(positions) for positions in self.positions.values())
        return self.condition.count() + self.others.count

    @property
    def weight(self) -> int:
        """See Matches. Without rows of data files, it is that of two bitmaps: of rows, and of nodes."""
        of_files = self.others.count + (0 if self.rest is None else self.rest.count)
        return of_files + 2 * int(self.condition.attributes.starts[-1]) // 64

    def count_by_nodes(self, matching: int, live: int) -> int:
        """See Matches. Where there are as many live nodes as live rows, each row has a node: these are counted."""
        by_nodes = self.rest is None and not self.condition.missing and live == self.condition.live_rows
        return matching if by_nodes else self.count

    def nodes(self, shard_id: ShardId, shard: MaskedShard) -> Bitmap:
        """See Matches."""
        nodes = self.condition.nodes(shard_id, shard)
        if self.rest is not None:
            nodes &= self.rest.nodes(shard_id, shard)
        has_others = self.others.positions and not self.others.in_tail
        return nodes | self.others.nodes(shard_id, shard) if has_others else nodes


def find_matches_by_attributes(
    table: Table,
    live: LiveFiles,
    schema: Schema,
    where: str | BooleanExpression,
    storage: StorageConfig,
    attributes: Attributes,
    read: ConditionReader | None = None,
    tail: TailValues | None = None,
    *,
    files: Collection[FileNumber] | None = None,
) -> Matches:
    """The live rows that satisfy `where`, as `find_matches` finds them. Of the data files only what attributes, and the
    values in memory of a tail, do not decide is read, by `read` as there. Raises FilterError.

    `files`: those with rows that may be in the answer; the files for which attributes have values are among them.
    """
    tests, left_over, predicate = _tests_of(where, schema, attributes)
    if predicate is not None and not tests:
        return find_matches(table, live, schema, predicate, storage, read, files=files)
    condition = Condition.from_tests(tests, attributes, predicate)
    missing = {number: why for number, why in condition.missing.items() if files is None or number in files}
    how = f"by the index's values of {', '.join(map(attributes.name, condition.columns))}"
    others, rest = Matches({}, 0), None
    in_memory = tail.matches(condition, tests, predicate) if tail and missing and not left_over else None
    if predicate is not None and left_over:
        decided = {FileNumber(number) for number in range(attributes.files)} - condition.missing.keys()
        candidates = {number for number in decided if condition.rows(number).any()}
        part = predicate.part(reduce(And, left_over))
        rest = find_matches(table, live, schema, part, storage, read, files=candidates)
        how += f"; {plural(rest.files_read, 'data file')} read for the other columns"
    if in_memory is not None:
        others, how = in_memory, f"{how}, and {in_memory.how}"
    elif missing:
        others = find_matches(table, live, schema, predicate or where, storage, read, files=missing.keys())
        others = replace(others, in_tail=tail is not None and missing.keys() <= {*tail.files})
        why = next(iter(missing.values()))
        how += f"; {plural(others.files_read, 'data file')} read, of {len(missing):,} without {why}"
    return matching_rows(condition, rest, others, how)


def matching_rows(condition: Condition, rest: Matches | None, others: Matches, how: str) -> AttributeMatches:
    """The matches of a condition that attributes decide, and the parts that they do not, as of `AttributeMatches`."""
    count = others.files_read + (rest.files_read if rest else 0)
    rows = _MatchingRows(condition, rest, others)
    return AttributeMatches(rows, count, how, condition=condition, rest=rest, others=others)


def _tests_of(
    where: str | BooleanExpression, schema: Schema, attributes: Attributes
) -> tuple[Sequence[ColumnTest], Sequence[BooleanExpression], RowPredicate | None]:
    """(conjuncts of a condition that attributes decide, the others, the predicate whose parts they are; None where they
    are look-ups). Raises FilterError.
    """
    joined = look_ups(where) if isinstance(where, str | BooleanExpression) else None
    if joined is not None and all(map(attributes.has_look_up, joined)):
        return joined, (), None
    predicate = RowPredicate(where, schema)
    tests: list[ColumnTest] = []
    left_over: list[BooleanExpression] = []
    for part in _conjuncts(predicate.bound):
        (tests if _is_decided(part, attributes) else left_over).append(part)
    return tests, left_over, predicate


def _is_decided(part: BooleanExpression, attributes: Attributes) -> bool:
    """Whether the columns of a version decide a part of a condition."""
    field_ids = extract_field_ids(part)
    return bool(field_ids) and all(map(attributes.has, field_ids))


def _conjuncts(expression: BooleanExpression) -> Iterator[BooleanExpression]:
    if isinstance(expression, And):
        yield from _conjuncts(expression.left)
        yield from _conjuncts(expression.right)
    else:
        yield expression
