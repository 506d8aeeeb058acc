"""Rows of shards of a base version: their vectors, wherever these lie."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import FloatType, ListType, NestedField

from icepuffin.ann_kernels.codes.product_quantization import decode_pq
from icepuffin.ops.model import ObjectRange, ShardId, StoredRun
from icepuffin.ops.shards import vector_runs
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.tasks import base_shard
from icepuffin.ops.tasks.base_shard import BaseShard, RelocateTask, relocate
from icepuffin.ops.tasks.delta_rows import DeltaRowsTask, PassedRows, scatter_delta
from icepuffin.ops.tasks.rows import VectorRows
from icepuffin.puffin.blobs import deletion_vector_blob
from tests.ops.cache.stored import ROWS, STORAGE, lean, random_shard, stored

SCHEMA = Schema(NestedField(1, "embedding", ListType(2, FloatType(), element_required=False), required=False))


@pytest.mark.parametrize("at_once", [16, 16_384])
def test_dead_nodes_of_a_lean_shard_have_the_vectors_of_their_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(base_shard, "_DECODED_AT_ONCE", at_once)
    shard = lean(random_shard())
    dead = deletion_vector_blob.encode(np.arange(ROWS))
    base = BaseShard(stored(tmp_path, shard).stored, 1.0, "", dead, (), 0, (), SCHEMA, 1, STORAGE)
    rows = base.rows(base.reader())
    assert shard.pq_codes is not None
    assert shard.pq_codebook is not None
    assert rows.vectors.tolist() == decode_pq(shard.pq_codes, shard.pq_codebook).tolist()
    assert rows.positions.tolist() == shard.row_positions.tolist()


def test_new_addresses_of_several_shards_lie_one_after_the_other(tmp_path: Path) -> None:
    none_dead, shards = deletion_vector_blob.encode(np.empty(0, np.int64)), [random_shard(seed) for seed in range(3)]
    bases = [
        BaseShard(stored(tmp_path, shard, str(number)).stored, 1.0, "", none_dead, (), 0, (), SCHEMA, 1, STORAGE)
        for number, shard in enumerate(shards)
    ]
    numbered = tuple((ShardId(number), base) for number, base in enumerate(bases))
    moved = relocate(RelocateTask(numbered, f"file://{tmp_path}/staging", STORAGE, threads=2))
    for it, base, shard in zip(moved, bases, shards, strict=True):
        slots, positions = open_shard(replace(base.stored, addresses=it.addresses), STORAGE).read_locations()
        assert (slots.tolist(), positions.tolist()) == (shard.file_slots.tolist(), shard.row_positions.tolist())


@pytest.mark.parametrize("dtype", ["<f2", "<f4"])
@pytest.mark.parametrize("dims", [2, 8])
def test_passed_rows_have_the_vectors_of_their_runs(
    tmp_path: Path, dims: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is longer than a piece comes in several."""
    monkeypatch.setattr(LocalStorage, "piece_bytes", 64)
    vectors = np.random.default_rng(0).standard_normal((9, dims)).astype(dtype)
    runs = []
    for number, piece in enumerate((vectors[:4], vectors[4:])):
        path, data = tmp_path / str(number), piece.tobytes()
        path.write_bytes(b"before" + data + b"after")
        runs.append(StoredRun(ObjectRange(f"file://{path}", 6, len(data)), len(piece), hashlib.sha256(data).digest()))
    nothing = np.empty((9, 0), np.float32)
    addresses = VectorRows(np.zeros(9, np.uint32), np.arange(9), np.zeros(9, np.uint64), nothing)
    rows = PassedRows(ShardId(0), ("unused", 9), tuple(runs)).with_vectors(addresses, STORAGE, dims)
    assert rows.vectors.dtype == np.float32
    assert rows.vectors.tolist() == vectors.tolist()


@pytest.mark.parametrize(
    ("least", "to", "staged", "passed"), [(1_000, 5, [], [5]), (1 << 20, 5, [5], []), (1_000, 6, [5, 6], [])]
)
def test_rows_of_a_dissolved_delta_keep_their_vectors_where_these_lie_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int, to: int, staged: list[int], passed: list[int]
) -> None:
    monkeypatch.setattr(vector_runs, "MIN_BYTES", least)
    shard = random_shard()
    dead = deletion_vector_blob.encode(np.arange(7))
    base = BaseShard(stored(tmp_path, shard).stored, 1.0, "", dead, (), 0, (), SCHEMA, 1, STORAGE)
    codebook = np.asarray(shard.vectors)[:2]
    task = DeltaRowsTask(
        ShardId(7), base, codebook, np.array([5, to], np.uint32), f"file://{tmp_path}/staging", STORAGE
    )
    dissolved = scatter_delta(task)
    assert sorted(destination for destination, _, _ in dissolved.blocks) == staged
    assert [rows.destination for rows in dissolved.passed] == passed
    assert sum(count for _, _, count in dissolved.blocks) + sum(rows.count for rows in dissolved.passed) == ROWS - 7
