"""Rows of new files that the version knows already: they are not placed, their nodes get new addresses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ops.index.versions import OpenVersion
from ops.index.work import FilesRead, Slotted, Work, blocks_by_shard, share_out
from ops.spark.runner import TaskRunner
from ops.tasks.recognize import HashTask, MatchTask, Moves, hash_files, match_rows
from ops.tasks.scatter import FileRows
from puffin.blobs import deletion_vector

Nodes = npt.NDArray[np.int64]

HASHES_AT_ONCE = 1 << 25
"""That one task matches: about 1 GiB"""


@dataclass(frozen=True, slots=True)
class Known:
    """Rows of new files that have a node."""

    moves: Mapping[int, tuple[Moves, ...]] = field(default_factory=dict)
    """By shard of the base"""
    left: tuple[FileRows, ...] = ()
    """What has none"""
    arriving: int = 0
    """How many, at most"""
    read: FilesRead | None = None
    """All new files; None where they were not read for this"""


def recognize(work: Work, base: OpenVersion, dead: Sequence[Nodes]) -> Known:
    """Only where nodes have lost their rows since the base: a plain append is not compared with anything."""
    added = {file.path for file in work.plan.added}
    new = [(slot, file) for slot, file in work.slots if file.path in added]
    rows = sum(file.record_count for _, file in new)
    fresh = any(len(now) > len(entry.tombstones) for now, entry in zip(dead, base.routing.shards, strict=True))
    if not new or not fresh:
        return Known(left=tuple(FileRows(slot, file) for slot, file in new), arriving=rows)
    bits = max(0, (max(rows, sum(map(len, dead))) - 1) // HASHES_AT_ONCE).bit_length()
    runner = work.runner_of(rows)
    hashed = runner.run(
        hash_files, _hash_tasks(work, new, bits, runner), label="read content hashes", progress=work.stage("hashes")
    )
    blocks = blocks_by_shard([result.blocks for result in hashed])
    shards = tuple(
        (number, base.shards[number], deletion_vector.encode(nodes)) for number, nodes in enumerate(dead) if len(nodes)
    )
    tasks = [
        MatchTask(number, bits, blocks.get(number, ()), shards, work.staging, work.storage)
        for number in range(1 << bits)
    ]
    matched = runner.run(match_rows, tasks, label="recognise rows", progress=work.stage("matches"))
    moves: dict[int, tuple[Moves, ...]] = {}
    for item in (item for result in matched for item in result.moves):
        moves[item.shard] = (*moves.get(item.shard, ()), item)
    left, arriving = _left(new, [pair for result in matched for pair in result.left])
    return Known(moves, left, arriving, FilesRead.of(hashed))


def _hash_tasks(work: Work, new: Sequence[Slotted], bits: int, runner: TaskRunner) -> list[HashTask]:
    groups = share_out(new, runner, lambda item: (item[0], item[1].record_count))
    return [
        HashTask(
            number=number,
            files=group,
            schema=work.plan.schema,
            field_id=work.plan.field_id,
            metric=int(work.plan.definition.metric_value),
            dims=work.layout.dims,
            range_bits=bits,
            staging=work.staging,
            storage=work.storage,
            threads=runner.task_threads,
        )
        for number, group in enumerate(groups)
    ]


def _left(new: Sequence[Slotted], parts: Sequence[tuple[int, bytes]]) -> tuple[tuple[FileRows, ...], int]:
    """(rows without a node by file, how many)."""
    files = dict(new)
    found: dict[int, list[Nodes]] = {}
    for slot, positions in parts:
        found.setdefault(slot, []).append(deletion_vector.decode(positions))
    joined = {slot: np.sort(np.concatenate(pieces)) for slot, pieces in sorted(found.items())}
    left = tuple(FileRows(slot, files[slot], deletion_vector.encode(rows)) for slot, rows in joined.items())
    return left, sum(map(len, joined.values()))
