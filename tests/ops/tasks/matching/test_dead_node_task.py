"""Nodes without a row, and nodes that are looked for, beside a plain comparison of every node."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icepuffin.ops.model import FileSlot
from icepuffin.ops.rows.addresses import addresses_of
from icepuffin.ops.tasks.matching.dead_node_task import DeadNodesTask, mark_dead_nodes
from icepuffin.ops.tasks.matching.tally import NodesTask, tally_nodes, tally_of
from icepuffin.puffin.blobs import deletion_vector_blob
from icepuffin.puffin.errors import BadBlobError
from tests.ops.cache.stored import ROWS, STORAGE, random_shard, stored

SHARD = random_shard()
ON_ONE_FOLDER = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
SLOTS, POSITIONS = 6, 90


@ON_ONE_FOLDER
@given(seed=st.integers(0, 2**31))
def test_dead_nodes_are_those_of_removed_files_and_deleted_rows(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    where = rng.choice(SLOTS * POSITIONS, ROWS, replace=False)
    slots, positions = (where // POSITIONS).astype(np.uint32), where % POSITIONS
    key = stored(tmp_path, replace(SHARD, file_slots=slots, row_positions=positions), f"shard-{seed}")
    emptied = rng.choice(SLOTS, rng.integers(0, 3), replace=False).astype(np.uint32)
    deleted = {
        FileSlot(slot): np.sort(rng.choice(POSITIONS, rng.integers(1, POSITIONS), replace=False))
        for slot in rng.choice(SLOTS + 2, rng.integers(0, 5), replace=False).tolist()
    }
    before = np.sort(rng.choice(ROWS, rng.integers(0, ROWS), replace=False))
    vectors = tuple((slot, deletion_vector_blob.encode(rows)) for slot, rows in deleted.items())
    task = DeadNodesTask(((key.stored, deletion_vector_blob.encode(before)),), emptied, vectors, STORAGE)
    (result,) = mark_dead_nodes(task)

    rowless = [
        slot in emptied or (slot in deleted and position in deleted[FileSlot(slot)])
        for slot, position in zip(slots.tolist(), positions.tolist(), strict=True)
    ]
    dead = [node for node in range(ROWS) if rowless[node] or node in before]
    assert deletion_vector_blob.decode(result.nodes).tolist() == dead
    removed = [int(slots[node]) for node in range(ROWS) if rowless[node] and node not in before]
    assert dict(result.removed_rows) == {slot: removed.count(slot) for slot in removed}
    assert result.slots.tolist() == sorted(set(slots.tolist()))

    sought = np.unique(rng.choice(addresses_of(np.arange(SLOTS)[:, None], np.arange(POSITIONS)).ravel(), 50))
    looked_up = tally_nodes(NodesTask(task.shards, SLOTS, sought, STORAGE))
    live = [node for node in range(ROWS) if node not in before]
    assert looked_up.tally.counts.sum() == len(live)
    expected = {int(addresses_of(slots[node], positions[node])) for node in live} & set(sought.tolist())
    assert set(looked_up.addresses.tolist()) == expected
    assert len(looked_up.hashes) == len(looked_up.addresses) == len(expected)


def test_a_node_in_a_slot_behind_the_last_file_is_refused() -> None:
    """Kernels count by slots, and write where these point."""
    slots, positions = np.array([0, 1], np.uint32), np.array([4, 5])
    none = np.empty(0, np.int64)
    assert tally_of(slots, positions, np.zeros(2, np.uint64), none, 2).counts.tolist() == [1, 1]
    with pytest.raises(BadBlobError, match="a node lies in slot 1, the routing blob has 1 files"):
        tally_of(slots, positions, np.zeros(2, np.uint64), none, 1)
