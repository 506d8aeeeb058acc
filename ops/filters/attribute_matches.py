"""Which live rows satisfy a condition, by values of columns that an index version keeps, or a reader's memory.

Of the data files only what these values do not decide is read.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyiceberg.expressions import And, BooleanExpression, Or
from pyiceberg.expressions.visitors import extract_field_ids
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from icepuffin.ann_kernels.arrays import I64
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from icepuffin.ops.filters.attribute_conditions import Attributes, Condition
from icepuffin.ops.filters.condition_parser import look_ups
from icepuffin.ops.filters.matches import ConditionReader, Matches, scan_matches
from icepuffin.ops.filters.predicate import RowPredicate
from icepuffin.ops.filters.tail_values import TailValues
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

    def __reduce__(self) -> tuple[type[Matches], tuple[dict[FileNumber, I64], int, str]]:
        """Tasks get the rows: attributes stay here."""
        return Matches, (dict(self.positions), self.files_read, self.how)

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
    joined = look_ups(where) if isinstance(where, str | BooleanExpression) else None
    looked_up = None if joined is None else attributes.condition(joined)
    if joined is not None and looked_up is not None:
        in_memory = _in_memory(tail, looked_up, _undecided(looked_up, files), lambda values: values.condition(joined))
        if in_memory is not None:
            return _matches_of(looked_up, None, in_memory, _how(looked_up, in_memory))
    predicate = RowPredicate(where, schema)
    conjuncts = list(_conjuncts(predicate.bound))
    own = [part for part in conjuncts if _is_decided(part, attributes)]
    if not own:
        return scan_matches(table, live, schema, predicate, storage, files=files, read=read)
    condition = Condition.of(own, predicate, attributes)
    missing = _undecided(condition, files)
    left_over = [part for part in conjuncts if part not in own]
    if not left_over and looked_up is None:
        in_memory = _in_memory(tail, condition, missing, lambda values: Condition.of(own, predicate, values))
        if in_memory is not None:
            return _matches_of(condition, None, in_memory, _how(condition, in_memory))
    others, rest = Matches({}, 0), None
    if missing:
        others = scan_matches(table, live, schema, predicate, storage, files=missing.keys(), read=read)
        others = replace(others, in_tail=tail is not None and missing.keys() <= {*tail.files})
    if left_over:
        decided = {FileNumber(number) for number in range(attributes.files)} - condition.missing.keys()
        candidates = {number for number in decided if condition.rows(number).any()}
        part = predicate.part(_conjunction(left_over))
        rest = scan_matches(table, live, schema, part, storage, files=candidates, read=read)
    how = _how(condition, Matches({}, 0, ""))
    if rest is not None:
        how += f"; {plural(rest.files_read, 'data file')} read for the other columns"
    if missing:
        why = next(iter(missing.values()))
        how += f"; {plural(others.files_read, 'data file')} read, of {len(missing):,} without {why}"
    return _matches_of(condition, rest, others, how)


def _undecided(condition: Condition, files: Collection[FileNumber] | None) -> dict[FileNumber, str]:
    """Files that a condition does not decide, with the reason; of `files` alone, where they are given."""
    return {number: why for number, why in condition.missing.items() if files is None or number in files}


def _in_memory(
    tail: TailValues | None,
    condition: Condition,
    undecided: Collection[FileNumber],
    condition_of: Callable[[Attributes], Condition | None],
) -> Matches | None:
    """The matches in the files that a condition does not decide, as of `TailValues.matches`."""
    if not undecided:
        return Matches({}, 0, "")
    return None if tail is None else tail.matches(condition, condition_of)


def _how(condition: Condition, in_memory: Matches) -> str:
    more = f", and {in_memory.how}" if in_memory.how else ""
    return f"by the index's values of {', '.join(map(condition.attributes.name, condition.columns))}{more}"


def _matches_of(condition: Condition, rest: Matches | None, others: Matches, how: str) -> AttributeMatches:
    count = others.files_read + (rest.files_read if rest else 0)
    rows = _MatchingRows(condition, rest, others)
    return AttributeMatches(rows, count, how, condition=condition, rest=rest, others=others)


def _is_decided(part: BooleanExpression, attributes: Attributes) -> bool:
    """Whether the columns of a version decide a part of a condition."""
    field_ids = extract_field_ids(part)
    if not field_ids or not all(map(attributes.has, field_ids)):
        return False
    return len(field_ids) == 1 or (
        isinstance(part, And | Or) and _is_decided(part.left, attributes) and _is_decided(part.right, attributes)
    )


def _conjuncts(expression: BooleanExpression) -> Iterator[BooleanExpression]:
    if isinstance(expression, And):
        yield from _conjuncts(expression.left)
        yield from _conjuncts(expression.right)
    else:
        yield expression


def _conjunction(parts: Sequence[BooleanExpression]) -> BooleanExpression:
    whole = parts[0]
    for part in parts[1:]:
        whole = And(whole, part)
    return whole
