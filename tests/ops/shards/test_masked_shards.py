"""Which nodes of a shard are live in a snapshot, and what no shard of a version can name."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.model import DeleteFile, DeleteKind, LiveFile, LiveFiles, ShardId, SnapshotId
from icepuffin.ops.shards import masked_shards
from icepuffin.ops.shards.masked_shards import MaskedShard, ShardMasker
from icepuffin.ops.table.row_deletes import fingerprint
from icepuffin.puffin.errors import BadBlobError
from tests.conftest import STORAGE

ROWS = {"a": 3, "b": 5, "gone": 9}
"""Rows of the files of a version, by path; the last one is not in the snapshot"""
SHARD = ShardId(0)


@pytest.fixture
def masker(monkeypatch: pytest.MonkeyPatch) -> ShardMasker:
    """Of one shard, whose node 3 was dead when it was written."""
    files = tuple(LiveFile(f"s3://lake/t/{path}", 100, rows, 1, "PARQUET") for path, rows in ROWS.items())
    live = LiveFiles("db.t", "uuid", "s3://lake/t", SnapshotId(1), 1, 0, files[:2])
    covered = [SimpleNamespace(path=path, rows=rows, present=True) for path, rows in ROWS.items()]
    covered.append(SimpleNamespace(path="a", rows=3, present=False))  # that left the table, before "a" came
    opened: Any = SimpleNamespace(
        routing=SimpleNamespace(files=covered, shards=[SimpleNamespace(count=4, tombstones=np.array([3]))]),
        definition=SimpleNamespace(metric=Metric.L2),
        sequence_number=1,
    )
    monkeypatch.setattr(masked_shards, "shard_keys", lambda _: ("key",))
    return ShardMasker(opened, live, STORAGE)


@pytest.mark.parametrize("kind", [DeleteKind.EQUALITY, DeleteKind.POSITION])
def test_a_version_tells_what_the_deletes_that_it_saw_have_left(
    masker: ShardMasker, kind: DeleteKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of equality deletes they are not resolved again; and how many rows have a vector."""
    deletes = (DeleteFile("s3://lake/t/d", kind, 1, 2, 9),)
    files = tuple(replace(file, deletes=deletes) for file in masker._live.files)
    routing: Any = masker._opened.routing
    for file, seen in zip(routing.files, (fingerprint(files[0]), bytes(32), b"", b""), strict=True):
        file.delete_fingerprint, file.live_rows = seen, file.rows - 2
    gone = np.zeros(1, np.int64)
    monkeypatch.setattr(masked_shards, "deleted_by_file", lambda _, others: {file.path: gone for file in others})
    again = ShardMasker(masker._opened, replace(masker._live, files=files), STORAGE)
    assert again._resolved == ({0} if kind is DeleteKind.EQUALITY else set())
    assert again.covered(np.array([ROWS["a"] - 2, ROWS["b"] - 1])) == {0, 1}
    assert again.covered(np.array([ROWS["a"] - 1, ROWS["b"] - 2])) == set()


def test_a_routing_blob_tells_what_it_covers_of_a_snapshot_that_has_all_of_its_files(masker: ShardMasker) -> None:
    files, live = masker._opened.routing.files, masker._live
    for file in files:
        file.delete_fingerprint, file.live_rows = fingerprint(live.files[0]), file.rows - 1
    (shard,) = masker._opened.routing.shards
    shard.live_rows = ROWS["a"] + ROWS["b"] - 2
    assert masker.covered_by_routing() is None, "the snapshot lacks a file"
    files[2].present = False
    assert masker.covered_by_routing() == {0, 1}
    files[1].live_rows -= 1
    assert masker.covered_by_routing() is None, "a row has no node in any shard"
    files[1].live_rows += 1
    files[1].delete_fingerprint = b"other"
    assert masker.covered_by_routing() is None, "the snapshot has it under other deletes"


def test_a_neighbour_that_is_missing_has_no_address() -> None:
    shard = SimpleNamespace(file_slots=np.array([1, 0], np.uint32), row_positions=np.array([5, 6]))
    masked: Any = SimpleNamespace(slot_to_number=np.array([7, 8]), shard=shard)
    found = MaskedShard.candidates(masked, np.array([[1, 0], [0, -1]]), np.zeros((2, 2)))
    assert (found.files.tolist(), found.positions.tolist()) == ([[7, 8], [8, -1]], [[6, 5], [5, -1]])


def live_numbers(masker: ShardMasker, slots: Sequence[int], positions: Sequence[int]) -> list[int]:
    nodes = np.arange(len(slots))
    return masker.live_numbers(SHARD, nodes, np.array(slots, np.int64), np.array(positions, np.int64)).tolist()


def test_rows_of_cells_are_live_in_files_of_the_snapshot_where_they_were_when_they_were_written(
    masker: ShardMasker,
) -> None:
    assert live_numbers(masker, [0, 1, 2, 1], [2, 4, 99, 99]) == [0, 1, -1, -1]
    assert live_numbers(masker, [], []) == []


@pytest.mark.parametrize(
    ("slot", "position", "what"),
    [(4, 0, "file"), (-1, 0, "file"), (0, 3, "row"), (1, 5, "row"), (0, -1, "row"), (1, 2**40, "row")],
)
def test_cells_name_no_file_and_no_row_that_there_is_not(
    masker: ShardMasker, slot: int, position: int, what: str
) -> None:
    with pytest.raises(BadBlobError, match=f"shard 0 names a {what} that"):
        live_numbers(masker, [0, slot], [0, position])


def read(masker: ShardMasker, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> list[bool]:
    """Which nodes of a shard are live, that is read with these values in place of its own."""
    values = {"metric": Metric.L2, "slots": [0, 0, 1, 2], "positions": [0, 2, 4, 0], **changes}
    searcher = SimpleNamespace(metric=values["metric"], masked=lambda _: None)
    slots, positions = np.array(values["slots"], np.uint32), np.array(values["positions"], np.int64)
    shard = SimpleNamespace(count=len(slots), searcher=searcher, file_slots=slots, row_positions=positions)
    monkeypatch.setattr(masked_shards, "process_cache", lambda: SimpleNamespace(shard=lambda *_, **__: shard))
    return masker.read(SHARD).is_live.tolist()


def test_a_node_behind_the_end_of_its_file_is_not_live(masker: ShardMasker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one of a file that the snapshot has not, or that had left the table when the version was made."""
    assert read(masker, monkeypatch) == [True, True, True, False]
    assert read(masker, monkeypatch, slots=[0, 0, 1, 3]) == [True, True, True, False]
    assert read(masker, monkeypatch, positions=[3, 2, 5, 0]) == [False, True, False, False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": [0, 0, 1, 4]}, "shard 0 names a file that the routing blob does not have"),
        ({"slots": [0, 0, 1], "positions": [0, 1, 2]}, "shard 0 has 3 nodes and metric L2, the routing blob says 4"),
        ({"metric": Metric.COSINE}, "shard 0 has 4 nodes and metric COSINE, the routing blob says 4 and L2"),
    ],
    ids=["file", "nodes", "metric"],
)
def test_a_shard_that_the_routing_blob_does_not_describe_is_refused(
    masker: ShardMasker, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadBlobError, match=message):
        read(masker, monkeypatch, **changes)
