"""The groups of a snapshot's rows, by the values of one column, as codes. Null is a group of its own.

The values that an index version keeps are in memory. Those of files that it lacks are read once per reader, which then
keeps the codes of all rows: 1 to 4 bytes per row.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icepuffin.ann_kernels.arrays import I32, I64
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ops.filters.attribute_conditions import AttributeColumn, Attributes, Condition, Entries
from icepuffin.ops.filters.attribute_matches import AttributeMatches, matching_rows
from icepuffin.ops.filters.coded_rows import CodedRows, ColumnPart, Combination, ConditionTree
from icepuffin.ops.filters.matches import MatchCache, Matches
from icepuffin.ops.model import FileNumber
from icepuffin.ops.rows.attributes import code_type, plain_values, unified
from icepuffin.ops.search.target import SearchTarget
from icepuffin.ops.shards.masked_shards import MaskedShard
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.live_rows import read_live
from icepuffin.ops.table.row_deletes import deleted_of_scanned

_GROUPS = -1
"""Id of the column in conditions, where a condition of the caller may have the same one with other codes"""


class NoValues:
    """A source without values, of which all files' are read."""

    field_ids: Collection[int] = ()

    def __init__(self, files: int) -> None:
        self._files = files

    def entries(self, field_id: int) -> Entries:
        """See ColumnSource."""
        return {}, dict.fromkeys(map(FileNumber, range(self._files)), "no index version has them")


class GroupColumn:
    """The group of each row that may be in an answer: those in the files `answering`, or None for all.

    Raises DataFileError where the values of files that `attributes` lacks cannot be read.
    """

    def __init__(
        self, field_id: int, attributes: Attributes, target: SearchTarget, answering: Collection[FileNumber] | None
    ) -> None:
        self.source = attributes.column(field_id)
        self._name = attributes.name(field_id)
        self._attributes = attributes
        self._masks = MatchCache()
        self._shards = WeakKeyDictionary[MaskedShard, tuple[I32, dict[int, Searcher]]]()
        files = sorted(number for number in self.source.missing if answering is None or number in answering)
        self._rows = _coded_rows(self.source, files, field_id, target, attributes.starts)
        self._column = AttributeColumn(self.source.values, self._rows, {})

    def of_rows(self, files: I64, positions: I64) -> I64:
        """int64[n]: the group of the row at each (file number, position)."""
        groups: I64 = self._rows.codes[self._attributes.starts[files] + positions].astype(np.int64)
        return groups

    def searcher(self, shard: MaskedShard, limit: int) -> Searcher:
        """The searcher of a shard by the groups of its nodes. Kept: 4 bytes per node."""
        groups, searchers = self._shards.get(shard) or (np.full(shard.nodes, -1, np.int32), {})
        if not searchers:
            live = shard.live.indices()
            groups[live] = self.of_rows(shard.file_numbers[live], shard.positions[live])
            self._shards[shard] = groups, searchers
        if limit not in searchers:
            searchers[limit] = shard.searcher.grouped(groups, limit)
        return searchers[limit]

    def size(self, groups: Sequence[int]) -> int:
        """Number of the rows of some groups."""
        return sum(self._rows.number_within(group, group) for group in groups)

    def without(self, groups: Sequence[int], matches: Matches | None, condition: str) -> Matches:
        """The live rows (that match) of all groups but some. Kept for the next searches by `condition`, the text by
        which the matches are known.
        """
        return self._masks.get(f"{condition} {groups}", lambda: self._without(groups, matches))

    def _without(self, groups: Sequence[int], matches: Matches | None) -> Matches:
        is_open = np.ones(len(self._rows.starts) - 1, np.bool_)
        is_open[[-1, *groups]] = False  # the last code is that of no row
        trees: list[ConditionTree] = [ColumnPart.from_mask(_GROUPS, is_open)]
        columns, rest, others = {_GROUPS: self._column}, matches, Matches({}, 0)
        how = f"groups of {self._name} that are full are left out"
        if matches is not None:
            how = f"{matches.how}; {how}"
        if isinstance(matches, AttributeMatches):
            trees, rest = [matches.condition.tree, *trees], matches.rest
            columns = {**matches.condition.columns, **columns}
            positions = {
                number: rows[is_open[self.of_rows(np.full(len(rows), number), rows)]]
                for number, rows in matches.others.positions.items()
            }
            others = replace(
                matches.others, positions={number: rows for number, rows in positions.items() if len(rows)}
            )
        condition = Condition(self._attributes, Combination(every=True, parts=tuple(trees)), columns)
        return matching_rows(condition, rest, others, how)


def _coded_rows(
    column: AttributeColumn, numbers: Sequence[FileNumber], field_id: int, target: SearchTarget, starts: I64
) -> CodedRows:
    """The rows of a column with codes for those of some files that it lacks: of its own values, and of others."""
    if not isinstance(column.rows, CodedRows):
        raise TypeError("rows are grouped by plain values")
    live, schema, storage, known = target.live, target.schema, target.storage, _as_groups(column.values.values[:-1])
    if not numbers and not pa.types.is_floating(known.type):
        return column.rows
    parts, rows = [known.dictionary_encode()], [np.empty(0, np.int64)]
    files = deleted_of_scanned(lambda path: open_storage(path, storage), [live.files[number] for number in numbers])
    for number, (file, deleted) in zip(numbers, files, strict=True):
        for batch in read_live(open_storage(file.path, storage), file, schema, [field_id], deleted=deleted):
            parts.append(_as_groups(plain_values(batch.columns.column(0))).dictionary_encode())
            rows.append(starts[number] + batch.positions)
    every = unified(parts)
    null = len(every.dictionary)
    codes = np.append(every.indices[: len(known)], [null, null + 1]).astype(code_type(null + 1))[column.rows.codes]
    codes[np.concatenate(rows)] = every.indices[len(known) :].fill_null(null).to_numpy()
    return CodedRows(codes, null + 2)


def _as_groups(values: pa.Array) -> pa.Array:
    """The same, but one value for those that are equal: 0.0 for -0.0, and one NaN for all."""
    if not pa.types.is_floating(values.type):
        return values
    zero, nan = pa.scalar(0.0, values.type), pa.scalar(np.nan, values.type)
    return pc.if_else(pc.is_nan(values), nan, pc.add(values, zero))
