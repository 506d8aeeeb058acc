"""Nodes that are looked for by their addresses, in several shards."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from icepuffin.ops.rows.addresses import addresses_of
from icepuffin.ops.tasks.matching.tally import NodesTask, tally_nodes
from icepuffin.puffin.blobs import deletion_vector_blob
from icepuffin.puffin.errors import BadBlobError
from tests.ops.cache.stored import ROWS, STORAGE, random_shard, stored


def task_of(folder: Path, slots: int) -> NodesTask:
    """Two shards with rows of the second file, from 0 and 1,000 on: one of each is gone, and half are sought."""
    shards = []
    for seed in range(2):
        hashes = np.arange(ROWS, dtype=np.uint64) + 1_000 * seed
        shard = replace(random_shard(seed), file_slots=np.ones(ROWS, np.uint32), content_hashes=hashes)
        shards.append((stored(folder, shard, str(seed)).stored, deletion_vector_blob.encode(np.array([3]))))
    sought = addresses_of(1, np.sort(np.concatenate([np.arange(1, ROWS, 2), 1_000 + np.arange(1, ROWS, 2)])))
    return NodesTask(tuple(shards), slots, np.asarray(sought, np.int64), STORAGE, threads=2)


def test_live_nodes_are_counted_and_those_that_are_looked_for_are_given_with_their_shards(tmp_path: Path) -> None:
    found = tally_nodes(task_of(tmp_path, 2))
    assert found.tally.counts.tolist() == [0, 2 * (ROWS - 1)]
    live = np.array([node for node in range(1, ROWS, 2) if node != 3])
    assert found.addresses.tolist() == addresses_of(1, np.concatenate([live, live + 1_000])).tolist()
    assert found.hashes.tolist() == [*live.tolist(), *(live + 1_000).tolist()]
    assert found.shards.tolist() == [0] * len(live) + [1] * len(live)


def test_a_node_of_a_file_that_the_version_does_not_have_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadBlobError, match="a node lies in slot 1, the routing blob has 1 files"):
        tally_nodes(task_of(tmp_path, 1))
