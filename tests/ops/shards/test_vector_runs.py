"""Which vectors of a shard stay where they lie."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ops.model import ObjectRange, StoredRun
from icepuffin.ops.shards import vector_runs
from icepuffin.ops.shards.vector_runs import lasting_runs, runs_of_nodes

DIMS = 3
LONG = vector_runs.MIN_BYTES


def run(length: int, offset: int = 0) -> StoredRun:
    return StoredRun(ObjectRange("p", offset, length), 1, bytes(32))


@pytest.mark.parametrize(
    ("lengths", "new_bytes", "kept"),
    [
        ([], 5, 0),
        ([LONG], 1, 1),
        ([1], 1, 0),
        ([1], 0, 1),
        ([LONG, 5, 6], 7, 1),
        ([LONG, 5, LONG - 7], 7, 3),
        ([LONG, 5, LONG - 8], 7, 2),
        ([5, LONG], 5, 2),
    ],
)
def test_short_runs_at_the_end_are_written_again(lengths: list[int], new_bytes: int, kept: int) -> None:
    runs = [run(length) for length in lengths]
    assert lasting_runs(runs, new_bytes) == tuple(runs[:kept])


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [([9, 3, 2, 1], 1), ([7, 3, 2, 1], 1), ([9, 4, 1, 1], 2), ([5, 2, 2, 2], 0), ([20, 1, 8, 1], 1)],
)
def test_runs_that_are_as_long_as_all_that_follows_stay_where_there_are_too_many(
    lengths: list[int], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_runs, "MAX_RUNS", 4)
    runs = [run(length * LONG) for length in lengths]
    assert lasting_runs(runs, LONG) == tuple(runs[:kept])
    monkeypatch.setattr(vector_runs, "MAX_RUNS", 5)
    assert lasting_runs(runs, LONG) == tuple(runs)


@given(data=st.data(), half=st.booleans())
def test_runs_of_nodes_are_their_vectors(data: st.DataObject, half: bool) -> None:
    counts = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    total = sum(counts)
    nodes = np.array(sorted(data.draw(st.sets(st.integers(0, total - 1)))), np.int64)
    vectors = np.arange(DIMS * total, dtype=np.float32).reshape(total, DIMS)
    stored = vectors.astype(np.float16 if half else np.float32)
    files, runs = {}, []
    for number, piece in enumerate(np.split(stored, np.cumsum(counts)[:-1])):
        files[f"{number}"] = b"gap" + piece.tobytes()
        place = ObjectRange(f"{number}", 3, piece.nbytes)
        runs.append(StoredRun(place, len(piece), hashlib.sha256(piece.tobytes()).digest()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vector_runs, "MIN_BYTES", 1)
        parts = runs_of_nodes(runs, nodes, vectors)
        patch.setattr(vector_runs, "MIN_BYTES", len(nodes) * runs[0].row_bytes + 1)
        assert runs_of_nodes(runs, nodes, vectors) is None, "they are not worth a run"
    if not len(nodes):
        assert parts is None
        return
    assert parts is not None
    pieces = [files[own.location.path][own.location.offset :][: own.location.length] for own in parts]
    assert b"".join(pieces) == stored[nodes].tobytes()
    assert [hashlib.sha256(piece).digest() for piece in pieces] == [own.sha256 for own in parts]
    assert [own.count * own.row_bytes for own in parts] == [len(piece) for piece in pieces]
    jumps = int((np.diff(nodes) != 1).sum())
    assert jumps < len(parts) <= jumps + len(counts)


def test_nodes_are_cut_where_one_is_left_out_and_where_a_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_runs, "MIN_BYTES", 1)
    vectors = np.arange(DIMS * 7, dtype=np.float32).reshape(7, DIMS)
    runs = [StoredRun(ObjectRange("a", 3, 48), 4, bytes(32)), StoredRun(ObjectRange("b", 7, 36), 3, bytes(32))]
    part = StoredRun(ObjectRange("b", 7 + 12, 24), 2, hashlib.sha256(vectors[5:].tobytes()).digest())
    assert runs_of_nodes(runs, np.array([0, 1, 2, 3, 5, 6]), vectors) == (runs[0], part)
    assert runs_of_nodes(runs, np.arange(7), vectors) == tuple(runs)


def test_nodes_in_more_pieces_than_a_shard_may_have_runs_are_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_runs, "MIN_BYTES", 1)
    vectors = np.zeros((2 * vector_runs.MAX_RUNS + 2, DIMS), np.float32)
    runs = [StoredRun(ObjectRange("p", 0, vectors.nbytes), len(vectors), bytes(32))]
    nodes = 2 * np.arange(vector_runs.MAX_RUNS + 1)
    parts = runs_of_nodes(runs, nodes[:-1], vectors)
    assert parts is not None
    assert len(parts) == vector_runs.MAX_RUNS
    assert runs_of_nodes(runs, nodes, vectors) is None
