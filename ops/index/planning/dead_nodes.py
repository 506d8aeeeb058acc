"""Nodes of a base version without a row in the snapshot: its tombstones, and nodes of removed files and rows."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from icepuffin.ops.index.planning.changes import Changes
from icepuffin.ops.index.versions.version_reader import OpenVersion
from icepuffin.ops.model import FileSlot
from icepuffin.ops.tasks.task_runner import RunContext, balanced_groups, driver_runner
from icepuffin.puffin.blobs import deletion_vector_blob

Nodes = npt.NDArray[np.int64]

NODES_AT_ONCE = 1 << 24
"""Nodes up to which the driver handles addresses itself: sooner than Spark starts a job"""


@dataclass(frozen=True, slots=True, eq=False)
class DeadNodes:
    """Nodes of a base version whose rows are not live in the snapshot, unless they have moved."""

    nodes: tuple[Nodes, ...]
    """Nodes without a row, by shard"""
    removed_rows: Mapping[FileSlot, int]
    """Rows that were live in the base version's snapshot, by file slot"""
    slots: tuple[npt.NDArray[np.uint32] | None, ...]
    """All file slots that a shard's nodes lie in, by shard; None where addresses were not read"""


def find_dead_nodes(run: RunContext, changes: Changes, base: OpenVersion) -> DeadNodes:
    """Find the nodes whose rows are not live at their addresses after some changes.

    Reads location maps, if any row has gone at all. Raises StorageError, PuffinError.
    """
    before = tuple(entry.tombstones for entry in base.routing.shards)
    if not changes.move_live_positions:
        return DeadNodes(before, {}, (None,) * len(before))
    from icepuffin.ops.tasks.matching.dead_node_task import DeadNodesTask, mark_dead_nodes  # noqa: PLC0415  numba, if rows have gone

    nodes = sum(entry.count for entry in base.routing.shards)
    runner = driver_runner(run.runner) if nodes <= NODES_AT_ONCE else run.runner
    groups = balanced_groups(list(enumerate(base.shards)), runner, lambda item: (item[0], item[1].length))
    deleted = tuple(
        (slot, deletion_vector_blob.encode(rows[: np.searchsorted(rows, base.routing.files[slot].rows)]))
        for slot, rows in sorted(changes.deleted.items())  # a delete file may name rows that its file has not
    )
    tasks = [
        DeadNodesTask(
            shards=tuple((blob, deletion_vector_blob.encode(before[shard_id])) for shard_id, blob in group),
            emptied_slots=np.array(changes.emptied_slots, np.uint32),
            deleted=deleted,
            storage=run.storage,
        )
        for group in groups
    ]
    results = runner.run(mark_dead_nodes, tasks, label="find nodes without rows")
    by_shard = {shard_id: dead for (shard_id, _), dead in zip(chain(*groups), chain(*results), strict=True)}
    removed_rows = Counter[FileSlot]()
    for dead in by_shard.values():
        removed_rows.update(dict(dead.removed_rows))
    return DeadNodes(
        nodes=tuple(deletion_vector_blob.decode(by_shard[shard_id].nodes) for shard_id in range(len(before))),
        removed_rows=removed_rows,
        slots=tuple(by_shard[shard_id].slots for shard_id in range(len(before))),
    )
