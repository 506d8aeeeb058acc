"""Rows of new files that the version knows already: they are not placed, their nodes get new addresses.

In format v3 by their lineage first, which needs no vector; what is left, and all rows of older formats, by the content
hashes of their vectors.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from icepuffin.ops.index.stages import BuildContext, ReadSummary, Slotted, blocks_by_shard, share_out
from icepuffin.ops.index.version_reader import OpenVersion, balls_by_slot
from icepuffin.ops.tasks.file_balls import BallSet, merge_balls
from icepuffin.ops.tasks.match_hashes import HashTask, MatchResult, MatchTask, StagedMoves, hash_files, match_rows
from icepuffin.ops.tasks.match_lineage import (
    LineageMatchResult,
    LineageMatchTask,
    LineageTask,
    match_lineage,
    read_lineage,
)
from icepuffin.ops.tasks.runner import TaskRunner
from icepuffin.ops.tasks.scatter import RowSelection
from icepuffin.ops.tasks.staged_blocks import Block
from icepuffin.puffin.blobs import deletion_vector

Nodes = npt.NDArray[np.int64]

HASHES_AT_ONCE = 1 << 25
"""That one task matches: about 1 GiB"""
_ROWS_LEFT = 1 << 27
"""Whose lineage a task holds: 1 GiB"""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RowMatches:
    """Rows of new files that have a node."""

    moves: Mapping[int, tuple[StagedMoves, ...]] = field(default_factory=dict)
    """By shard of the base"""
    left: tuple[RowSelection, ...] = ()
    """What has none"""
    arriving: int = 0
    """How many, at most"""
    read: tuple[ReadSummary, ...] = ()
    """New files, as far as they were read for this"""
    left_is_read: bool = False
    """Whether `left` is in `read`"""


@dataclass(frozen=True, slots=True)
class _Found:
    """By one way to know rows."""

    moves: tuple[StagedMoves, ...]
    left: tuple[RowSelection, ...]
    read: ReadSummary


@dataclass(frozen=True, slots=True)
class _Search:
    """Rows without a node, nodes without a row."""

    work: BuildContext
    base: OpenVersion
    files: tuple[RowSelection, ...]
    dead: tuple[Nodes, ...]
    """By shard"""

    @property
    def rows(self) -> int:
        """At most"""
        return sum(item.file.record_count for item in self.files)

    @property
    def runner(self) -> TaskRunner:
        return self.work.runner_of(self.rows)

    @property
    def range_bits(self) -> int:
        """Of hashes or versions: what one task matches fits into its memory."""
        return max(0, (max(self.rows, sum(map(len, self.dead))) - 1) // HASHES_AT_ONCE).bit_length()

    @property
    def has_lost(self) -> bool:
        """Whether a node that had a row in the base has none."""
        before = self.base.routing.shards
        return any(len(now) > len(entry.tombstones) for now, entry in zip(self.dead, before, strict=True))

    def without(self, found: _Found) -> "_Search":
        """What is left to be looked for."""
        dead = list(self.dead)
        for moves in found.moves:
            dead[moves.shard] = np.setdiff1d(dead[moves.shard], deletion_vector.decode(moves.nodes), assume_unique=True)
        return _Search(self.work, self.base, found.left, tuple(dead))

    def match_tasks(self, blocks: Mapping[int, tuple[Block, ...]]) -> list[MatchTask]:
        shards = tuple(
            (number, self.base.shards[number], deletion_vector.encode(nodes))
            for number, nodes in enumerate(self.dead)
            if len(nodes)
        )
        return [
            MatchTask(number, self.range_bits, blocks.get(number, ()), shards, self.work.staging, self.work.storage)
            for number in range(1 << self.range_bits)
        ]


def match_moved_rows(work: BuildContext, base: OpenVersion, dead: Sequence[Nodes]) -> RowMatches:
    """Only where nodes have lost their rows since the base: a plain append is not compared with anything."""
    added = {file.path for file in work.plan.added}
    files = tuple(RowSelection(slot, file) for slot, file in work.slots if file.path in added)
    search = _Search(work, base, files, tuple(dead))
    if not files or not search.has_lost:
        return RowMatches(left=files, arriving=search.rows)
    found = []
    if by_lineage := _by_lineage(search):
        found.append(by_lineage)
        search = search.without(by_lineage)
    hashed = bool(search.files) and search.has_lost
    if hashed:
        found.append(_by_hash(search))
    moves: dict[int, tuple[StagedMoves, ...]] = {}
    for item in (item for part in found for item in part.moves):
        moves[item.shard] = (*moves.get(item.shard, ()), item)
    left = found[-1].left
    read = tuple(part.read for part in found)
    return RowMatches(moves, left, sum(map(_count, left)), read, left_is_read=hashed)


def _count(item: RowSelection) -> int:
    return item.file.record_count if item.positions is None else len(deletion_vector.decode(item.positions))


def _by_hash(search: _Search) -> _Found:
    work, runner = search.work, search.runner
    groups = share_out(search.files, runner, lambda item: (item.slot, item.file.record_count))
    tasks = [
        HashTask(
            number=number,
            files=group,
            schema=work.plan.schema,
            field_id=work.plan.field_id,
            metric=work.plan.definition.metric_value,
            dims=work.layout.dims,
            range_bits=search.range_bits,
            staging=work.staging,
            storage=work.storage,
            threads=runner.task_threads,
        )
        for number, group in enumerate(groups)
    ]
    hashed = runner.run(hash_files, tasks, label="read content hashes", progress=work.stage("hashes"))
    blocks = blocks_by_shard([result.blocks for result in hashed])
    matched = runner.run(match_rows, search.match_tasks(blocks), label="recognise rows", progress=work.stage("matches"))
    return _found(search, matched, ReadSummary.of(hashed))


def _by_lineage(search: _Search) -> _Found | None:
    """None where no row can be known so: before format v3, or where its lineage is found to be wrong."""
    work, runner = search.work, search.runner
    before = work.plan.changes.left
    after = tuple((item.slot, item.file) for item in search.files if item.file.has_row_ids)  # others: new ids
    if not before or not after or sum(file.record_count for _, file in before) > _ROWS_LEFT:
        return None
    dead = tuple(
        np.setdiff1d(now, entry.tombstones, assume_unique=True)  # what lay in older files is not in the snapshot
        for now, entry in zip(search.dead, search.base.routing.shards, strict=True)
    )
    search = _Search(work, search.base, search.files, dead)
    groups = share_out(after, runner, lambda item: (item[0], item[1].record_count))
    tasks = [
        LineageTask(number, group, search.range_bits, work.staging, work.storage) for number, group in enumerate(groups)
    ]
    read = runner.run(read_lineage, tasks, label="read lineage", progress=work.stage("lineage"))
    matches = [
        LineageMatchTask(
            match=task,
            before=before,
            after=after,
            schema=work.plan.schema,
            field_id=work.plan.field_id,
            dims=work.layout.dims,
        )
        for task in search.match_tasks(blocks_by_shard(read))
    ]
    matched = runner.run(match_lineage, matches, label="recognise rows by lineage", progress=work.stage("lineage"))
    if refuted := next((part.refuted for part in matched if part.refuted), ""):
        _log.warning("%s: its vectors are not those of its rows' lineage; rows are known by their vectors", refuted)
        return None
    read_of = _read(search, after, matched)
    found = _found(search, [part.rows for part in matched], read_of)
    untouched = tuple(item for item in search.files if not read_of.rows.get(item.slot))
    partly = tuple(item for item in found.left if read_of.rows[item.slot])
    return replace(found, left=(*untouched, *partly))


def _read(search: _Search, after: Sequence[Slotted], matched: Sequence[LineageMatchResult]) -> ReadSummary:
    """New files as those tell of them that rows came from: what holds all rows of a file holds any of them. Of a file
    without a ball nothing is known, nor of one that has a row of it.
    """
    rows = dict.fromkeys((slot for slot, _ in after), 0)
    sources: dict[int, set[int]] = {}
    for source in (source for part in matched for source in part.sources):
        rows[source.after] += source.rows
        sources.setdefault(source.after, set()).add(source.before)
    known = balls_by_slot(search.base, search.work.storage) if sources else {}
    balls = [
        (slot, ball)
        for slot, olds in sorted(sources.items())
        if all(known[old] for old in olds)
        for ball in merge_balls([ball for old in sorted(olds) for ball in known[old]])
    ]
    return ReadSummary(rows, 0, (BallSet.of(balls, search.work.layout.dims),))


def _found(search: _Search, matched: Sequence[MatchResult], read: ReadSummary) -> _Found:
    files = {item.slot: item.file for item in search.files}
    found: dict[int, list[Nodes]] = {}
    for slot, positions in (pair for part in matched for pair in part.left):
        found.setdefault(slot, []).append(deletion_vector.decode(positions))
    joined = {slot: np.sort(np.concatenate(pieces)) for slot, pieces in sorted(found.items())}
    left = tuple(RowSelection(slot, files[slot], deletion_vector.encode(rows)) for slot, rows in joined.items())
    return _Found(tuple(moves for part in matched for moves in part.moves), left, read)
