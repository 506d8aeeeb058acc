"""Rows of new files that the base version has already: their nodes get new addresses, and nothing is inserted.

In format v3 rows are matched by their lineage first, which needs no vector. The other rows, and all rows of older
formats, are matched by the content hashes of their vectors.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from icepuffin.ops.index.planning.dead_nodes import Nodes
from icepuffin.ops.index.stages import BuildContext, ReadSummary, SlottedFile
from icepuffin.ops.index.versions.version_reader import OpenVersion, balls_by_slot
from icepuffin.ops.model import FileSlot, ShardId
from icepuffin.ops.tasks.file_balls import Ball, BallSet, merge_balls
from icepuffin.ops.tasks.matching.match_hashes import (
    DeadHashTask,
    DeadShard,
    HashTask,
    MatchResult,
    MatchTask,
    StagedMoves,
    hash_files,
    match_rows,
    stage_dead_hashes,
)
from icepuffin.ops.tasks.matching.match_lineage import (
    LineageMatchResult,
    LineageMatchTask,
    LineageTask,
    match_lineage,
    read_lineage,
)
from icepuffin.ops.tasks.scatter import RowSelection
from icepuffin.ops.tasks.staged_blocks import Block, blocks_by_destination
from icepuffin.ops.tasks.task_runner import TaskRunner, balanced_groups
from icepuffin.puffin.blobs import deletion_vector_blob

HASHES_AT_ONCE = 1 << 24
"""Hashes that one task matches: about 1 GiB"""
_LINEAGE_ROWS = 1 << 27
"""Rows whose lineage a task holds in memory: 1 GiB"""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RowMatches:
    """Rows of new files, divided into those that have a node and those that have none."""

    moves: Mapping[ShardId, tuple[StagedMoves, ...]] = field(default_factory=dict)
    """Nodes with new addresses, by shard of the base version"""
    unmatched: tuple[RowSelection, ...] = ()
    """Rows without a node"""
    unmatched_rows: int = 0
    """Number of rows in `unmatched`, at most"""
    read: tuple[ReadSummary, ...] = ()
    """New files, as far as matching has read them"""
    unmatched_are_read: bool = False
    """Whether the files in `unmatched` are in `read`"""


@dataclass(frozen=True, slots=True)
class _MatchOutcome:
    """Result of one way to match rows."""

    moves: tuple[StagedMoves, ...]
    unmatched: tuple[RowSelection, ...]
    read: ReadSummary


@dataclass(frozen=True, slots=True)
class _Matching:
    """Rows without a node and nodes without a row, which are to be matched."""

    context: BuildContext
    base: OpenVersion
    selections: tuple[RowSelection, ...]
    dead: tuple[Nodes, ...]
    """Nodes without a row, by shard"""

    @property
    def rows(self) -> int:
        """Number of rows to match, at most"""
        return sum(selection.file.record_count for selection in self.selections)

    @property
    def runner(self) -> TaskRunner:
        return self.context.runner_for(self.rows)

    @property
    def range_bits(self) -> int:
        """Bits of a hash or version that name its range: so many that a range fits into a task's memory."""
        return max(0, (max(self.rows, sum(map(len, self.dead))) - 1) // HASHES_AT_ONCE).bit_length()

    @property
    def has_lost_rows(self) -> bool:
        """Whether a node that had a row in the base version has none."""
        before = self.base.routing.shards
        return any(len(now) > len(entry.tombstones) for now, entry in zip(self.dead, before, strict=True))

    def without(self, matched: _MatchOutcome) -> "_Matching":
        """The rows and nodes that `matched` leaves."""
        dead = list(self.dead)
        for moves in matched.moves:
            dead[moves.shard_id] = np.setdiff1d(
                dead[moves.shard_id], deletion_vector_blob.decode(moves.nodes), assume_unique=True
            )
        return _Matching(self.context, self.base, matched.unmatched, tuple(dead))

    @property
    def dead_shards(self) -> tuple[DeadShard, ...]:
        """Each shard with dead nodes"""
        return tuple(
            (ShardId(shard_id), self.base.shards[shard_id], deletion_vector_blob.encode(nodes))
            for shard_id, nodes in enumerate(self.dead)
            if len(nodes)
        )

    def match_tasks(
        self, blocks: Mapping[int, tuple[Block, ...]], dead_blocks: Mapping[int, tuple[Block, ...]] | None = None
    ) -> list[MatchTask]:
        """One task per range; `blocks` are the staged hashes or versions of the rows, by range.

        dead_blocks: those of the dead nodes; None: each task reads the shards.
        """
        shards = self.dead_shards if dead_blocks is None else ()
        dead_blocks = dead_blocks or {}
        staging, storage = self.context.staging, self.context.run.storage
        return [
            MatchTask(
                number, self.range_bits, blocks.get(number, ()), shards, dead_blocks.get(number, ()), staging, storage
            )
            for number in range(1 << self.range_bits)
        ]


def match_moved_rows(context: BuildContext, base: OpenVersion, dead: Sequence[Nodes]) -> RowMatches:
    """Match rows of added files with nodes of the base version that have lost their rows.

    dead: nodes without a row, by shard. Where no node has lost its row since the base version, as after a plain append,
    nothing is read. Raises VectorColumnError, StorageError, PuffinError.
    """
    added = {file.path for file in context.plan.added}
    selections = tuple(RowSelection(slot, file) for slot, file in context.files if file.path in added)
    matching = _Matching(context, base, selections, tuple(dead))
    if not selections or not matching.has_lost_rows:
        return RowMatches(unmatched=selections, unmatched_rows=matching.rows)
    results = []
    if by_lineage := _by_lineage(matching):
        results.append(by_lineage)
        matching = matching.without(by_lineage)
    hashed = bool(matching.selections) and matching.has_lost_rows
    if hashed:
        results.append(_by_hash(matching))
    moves: dict[ShardId, tuple[StagedMoves, ...]] = {}
    for staged in (staged for result in results for staged in result.moves):
        moves[staged.shard_id] = (*moves.get(staged.shard_id, ()), staged)
    unmatched = results[-1].unmatched
    read = tuple(result.read for result in results)
    return RowMatches(moves, unmatched, sum(map(_row_count, unmatched)), read, unmatched_are_read=hashed)


def _row_count(selection: RowSelection) -> int:
    if selection.positions is None:
        return selection.file.record_count
    return len(deletion_vector_blob.decode(selection.positions))


def _by_hash(matching: _Matching) -> _MatchOutcome:
    context, runner = matching.context, matching.runner
    groups = balanced_groups(matching.selections, runner, lambda item: (item.slot, item.file.record_count))
    tasks = [
        HashTask(
            task_number=number,
            files=group,
            column=context.column,
            range_bits=matching.range_bits,
            staging=context.staging,
            threads=runner.task_threads,
        )
        for number, group in enumerate(groups)
    ]
    hashed = runner.run(hash_files, tasks, label="read content hashes", progress=context.run.stage_progress("hashes"))
    blocks = blocks_by_destination([result.blocks for result in hashed])
    match_tasks = matching.match_tasks(blocks, _staged_dead_hashes(matching) if matching.range_bits else None)
    results = runner.run(match_rows, match_tasks, label="match rows", progress=context.run.stage_progress("matches"))
    return _joined(matching, results, ReadSummary.from_results(hashed))


def _staged_dead_hashes(matching: _Matching) -> Mapping[int, tuple[Block, ...]]:
    """Staged hashes of all dead nodes, by range: each shard is read once, however many ranges there are."""
    context, runner = matching.context, matching.runner
    groups = balanced_groups(matching.dead_shards, runner, lambda shard: (shard[0], len(matching.dead[shard[0]])))
    tasks = [
        DeadHashTask(number, group, matching.range_bits, context.staging, context.run.storage)
        for number, group in enumerate(groups)
    ]
    progress = context.run.stage_progress("hashes")
    staged = runner.run(stage_dead_hashes, tasks, label="read hashes of nodes", progress=progress)
    return blocks_by_destination(staged)


def _by_lineage(matching: _Matching) -> _MatchOutcome | None:
    """None where rows cannot be matched by lineage: before format v3, or where the lineage proves wrong."""
    context, runner = matching.context, matching.runner
    before = context.plan.changes.lineage_files
    after = tuple(  # the rows of a file without row ids got new ones
        (selection.slot, selection.file) for selection in matching.selections if selection.file.has_row_ids
    )
    if not before or not after or sum(file.record_count for _, file in before) > _LINEAGE_ROWS:
        return None
    dead = tuple(
        np.setdiff1d(now, entry.tombstones, assume_unique=True)  # rows that were dead before are in no live file
        for now, entry in zip(matching.dead, matching.base.routing.shards, strict=True)
    )
    matching = _Matching(context, matching.base, matching.selections, dead)
    groups = balanced_groups(after, runner, lambda entry: (entry[0], entry[1].record_count))
    tasks = [
        LineageTask(number, group, matching.range_bits, context.staging, context.run.storage)
        for number, group in enumerate(groups)
    ]
    progress = context.run.stage_progress("lineage")
    staged = runner.run(read_lineage, tasks, label="read lineage", progress=progress)
    matches = [
        LineageMatchTask(task, before, after, context.column)
        for task in matching.match_tasks(blocks_by_destination(staged))
    ]
    results = runner.run(match_lineage, matches, label="match rows by lineage", progress=progress)
    if refuted := next((result.refuted for result in results if result.refuted), ""):
        _log.warning("%s: its vectors are not those of its rows' lineage; rows are matched by their vectors", refuted)
        return None
    read = _read_summary(matching, after, results)
    matched = _joined(matching, [result.rows for result in results], read)
    whole_files = tuple(selection for selection in matching.selections if not read.rows.get(selection.slot))
    other_rows = tuple(selection for selection in matched.unmatched if read.rows[selection.slot])
    return replace(matched, unmatched=(*whole_files, *other_rows))


def _read_summary(
    matching: _Matching, after: Sequence[SlottedFile], results: Sequence[LineageMatchResult]
) -> ReadSummary:
    """Summary of the new files by lineage alone; no vector was read.

    Balls that hold all rows of a file hold any of them, so a new file gets the balls of the files that its rows came
    from. Where one of those has none, it gets none, or one without end where its other rows get balls.
    """
    rows = dict.fromkeys((slot for slot, _ in after), 0)
    sources: dict[FileSlot, set[FileSlot]] = {}
    for move in (move for result in results for move in result.moves):
        rows[move.after] += move.rows
        sources.setdefault(move.after, set()).add(move.before)
    balls_of = balls_by_slot(matching.base, matching.context.run.storage) if sources else {}
    dims = matching.context.layout.dims
    endless: Ball = np.zeros(dims, np.float32), np.inf
    with_other_rows = {slot for result in results for slot, _ in result.rows.unmatched}
    balls: list[tuple[int, Ball]] = []
    for slot, olds in sorted(sources.items()):
        if all(balls_of[old] for old in olds):
            balls += [(slot, ball) for ball in merge_balls([ball for old in sorted(olds) for ball in balls_of[old]])]
        elif slot in with_other_rows:
            balls.append((slot, endless))
    return ReadSummary(rows, 0, (BallSet.from_balls(balls, dims),))


def _joined(matching: _Matching, results: Sequence[MatchResult], read: ReadSummary) -> _MatchOutcome:
    """Join the results of all ranges; unmatched rows by file slot and position."""
    files = {selection.slot: selection.file for selection in matching.selections}
    pieces: dict[FileSlot, list[Nodes]] = {}
    for slot, positions in (pair for result in results for pair in result.unmatched):
        pieces.setdefault(slot, []).append(deletion_vector_blob.decode(positions))
    positions_of = {slot: np.sort(np.concatenate(parts)) for slot, parts in sorted(pieces.items())}
    unmatched = tuple(
        RowSelection(slot, files[slot], deletion_vector_blob.encode(rows)) for slot, rows in positions_of.items()
    )
    return _MatchOutcome(tuple(moves for result in results for moves in result.moves), unmatched, read)
