"""Shards that get new rows: inserted, or built anew where recall has suffered."""

import contextlib
import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import FloatType, ListType, NestedField

from icepuffin.ann_kernels.graphs.vamana import VamanaParams
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.model import How, LiveFile, ObjectRange, ShardId, StoredRun
from icepuffin.ops.recall.curves import Width, encode, widths
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.tasks import markers, shard_task
from icepuffin.ops.tasks.base_shard import BaseShard
from icepuffin.ops.tasks.delta_rows import PassedRows
from icepuffin.ops.tasks.matching.match_hashes import StagedMoves
from icepuffin.ops.tasks.rows import VectorRows
from icepuffin.ops.tasks.shard_task import RECALL_LOSS, Partitions, ShardTask, _inputs, _stored_runs, make_shard
from icepuffin.ops.tasks.staged_blocks import Block, BlockWriters
from icepuffin.puffin.blobs import deletion_vector_blob
from tests.ops.cache.stored import DIMS, STORAGE, random_shard, stored

ROWS, NEW = 400, 40
NONE_DEAD = deletion_vector_blob.encode(np.empty(0, np.int64))
SCHEMA = Schema(NestedField(1, "embedding", ListType(2, FloatType(), element_required=False), required=False))


def staged(folder: Path, rows: VectorRows) -> Block:
    with contextlib.ExitStack() as stack:
        writers = BlockWriters(f"{folder}/rows", DIMS, LocalStorage(), stack)
        writers.write(rows, np.zeros(rows.count, np.int64))
    ((_, path, count),) = writers.blocks()
    return path, count


@pytest.fixture
def task(tmp_path: Path) -> ShardTask:
    """New rows that come to a shard. Its narrow beam finds most of the nearest, and not all."""
    shard = random_shard(rows=ROWS)
    base = BaseShard(stored(tmp_path, shard).stored, 0.5, "", NONE_DEAD, (), 0, (), SCHEMA, 1, STORAGE)
    vectors = np.random.default_rng(1).standard_normal((NEW, DIMS)).astype(np.float32)
    rows = VectorRows(np.ones(NEW, np.uint32), np.arange(NEW), np.arange(NEW, dtype=np.uint64), vectors)
    return ShardTask(
        shard_id=ShardId(0), how=How.INSERTED, dims=DIMS, metric=Metric.L2, params=VamanaParams(8, 16),
        vectors="f32", cell_bits=0, pq_codebook=None, blocks=(staged(tmp_path, rows),), passed=(), base=base,
        partitions=None, is_delta=False, target_recall=0.0, staging=f"file://{tmp_path}/staging", storage=STORAGE,
        recorded=False,
    )  # fmt: skip


def with_recall(task: ShardTask, recall: float) -> ShardTask:
    """The same where the base has had that recall."""
    assert task.base is not None
    return replace(task, base=replace(task.base, recall=recall))


def test_rows_are_inserted_where_recall_has_hardly_suffered(task: ShardTask) -> None:
    inserted = make_shard(task)
    assert (inserted.how, inserted.count, inserted.inserted) == (How.INSERTED, ROWS + NEW, NEW)
    assert 0.7 < inserted.recall.recall < 1 - RECALL_LOSS, "the test needs a recall that can be lost"
    slightly = make_shard(with_recall(task, inserted.recall.recall + 0.9 * RECALL_LOSS))
    assert (slightly.how, slightly.sha256) == (How.INSERTED, inserted.sha256)
    assert make_shard(replace(task, target_recall=inserted.recall.recall)).how is How.INSERTED


def test_a_shard_that_has_lost_recall_is_built_anew(task: ShardTask, caplog: pytest.LogCaptureFixture) -> None:
    recall = make_shard(task).recall.recall
    rebuilt = make_shard(with_recall(task, recall + 1.1 * RECALL_LOSS))
    assert (rebuilt.how, rebuilt.count) == (How.REBUILT, ROWS + NEW)
    assert "it is built anew" in caplog.text
    assert make_shard(replace(task, target_recall=recall + 0.001)).how is How.REBUILT


def test_rows_of_a_delta_are_in_the_order_of_the_shards_that_they_will_go_to(task: ShardTask) -> None:
    codebook = np.random.default_rng(2).standard_normal((6, DIMS)).astype(np.float32)
    partitions = Partitions(codebook, np.array([2, 0, 1, 1, 0, 2], np.uint32))
    result = make_shard(replace(task, partitions=partitions, is_delta=True))
    reader = open_shard(result.stored, STORAGE)
    vectors = reader.read_vectors()
    assert vectors is not None
    new = np.asarray(vectors[ROWS:], np.float64)
    nearest = np.linalg.norm(new[:, None] - codebook.astype(np.float64), axis=2).argmin(axis=1)
    shards = partitions.to_shard[nearest].tolist()
    assert len({*shards}) == 3
    positions = reader.read_locations()[1][ROWS:].tolist()
    order = list(zip(shards, positions, strict=True))
    assert order == sorted(order)


def test_the_bytes_that_were_written_are_those_that_are_reported(task: ShardTask) -> None:
    result = make_shard(task)
    where = result.stored.blob
    data = Path(where.path.removeprefix("file://")).read_bytes()
    assert hashlib.sha256(data[where.offset : where.offset + where.length]).digest() == result.sha256


def test_the_marker_of_a_shard_depends_on_the_rows_whose_vectors_stay_where_they_lie(task: ShardTask) -> None:
    none = VectorRows(*(np.empty(0, dtype) for dtype in ("u4", "i8", "u8")), np.empty((0, DIMS), np.float32))

    def name(path: str, place: int) -> str:
        run = StoredRun(ObjectRange(path, 0, 4 * DIMS), 1, b"sha256")
        rows = VectorRows(np.zeros(1, "u4"), np.array([place]), np.zeros(1, "u8"), np.empty((1, 0), np.float32))
        passing = replace(task, passed=(PassedRows(ShardId(0), ("unused", 1), (run,)),))
        return markers.name_of("m", _inputs(passing, none, [rows]))

    assert len({name(path, place) for path in ("a", "b") for place in (0, 1)}) == 4


def test_the_marker_of_a_shard_depends_on_all_that_its_result_depends_on(task: ShardTask, tmp_path: Path) -> None:
    base, matrix = task.base, np.ones((1, DIMS), np.float32)
    assert base is not None
    changes: list[dict[str, Any]] = [
        {}, {"how": How.REBUILT}, {"dims": 8}, {"metric": Metric.COSINE}, {"params": VamanaParams(8, 17)},
        {"vectors": "f16"}, {"cell_bits": 4}, {"pq_codebook": matrix}, {"is_delta": True}, {"target_recall": 0.5},
        {"curve_queries": 3}, {"shared_queries": 3}, {"routing_queries": matrix}, {"base": None},
    ]  # fmt: skip
    of_base: list[dict[str, Any]] = [
        {"recall": 0.6}, {"curve": "[]"}, {"tombstones": b""}, {"moved": 1}, {"field_id": 2},
        {"stored": replace(base.stored, runs=())}, {"files": ((0, LiveFile("a", 1, 1, 1, "PARQUET")),)},
    ]  # fmt: skip
    (tmp_path / "moves").write_bytes(b"ab")
    of_base += (
        {"moves": (StagedMoves(ShardId(0), nodes, ObjectRange(f"file://{tmp_path}/moves", offset, 1)),)}
        for nodes, offset in ((b"a", 0), (b"b", 0), (b"a", 1))
    )
    rows = VectorRows(np.zeros(1, "u4"), np.zeros(1, "i8"), np.zeros(1, "u8"), matrix)
    others = [replace(rows, **{name: getattr(rows, name) + 1}) for name in ("slots", "positions", "hashes")]
    tasks = [replace(task, **change) for change in changes]
    tasks += [replace(task, base=replace(base, **change)) for change in of_base]
    inputs = [*((changed, rows) for changed in tasks), *((task, other) for other in others)]
    assert len({markers.name_of("m", _inputs(changed, incoming, ())) for changed, incoming in inputs}) == len(inputs)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_shard_that_a_marker_names_is_durable(
    task: ShardTask, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    opened, open_output = [], LocalStorage.open_output

    def noted(storage: LocalStorage, path: str, *, durable: bool = True) -> Any:
        opened.append((path.endswith(".dann"), durable))
        return open_output(storage, path, durable=durable)

    monkeypatch.setattr(LocalStorage, "open_output", noted)
    assert make_shard(replace(task, recorded=recorded)).stored.blob.path
    assert opened[0] == (True, recorded)


def test_rows_that_have_moved_are_counted_and_passed_ones_take_memory(task: ShardTask) -> None:
    assert task.base is not None
    assert make_shard(replace(task, base=replace(task.base, moved=3))).remapped == 3
    passed = PassedRows(ShardId(0), task.blocks[0], ())
    built, of_both = replace(task, base=None), replace(task, base=None, passed=(passed,))
    assert (of_both.memory_bytes or 0) == 2 * (built.memory_bytes or 1)


def test_rounded_vectors_raise_neither_the_recall_nor_the_curve_of_their_base(task: ShardTask, tmp_path: Path) -> None:
    shard = random_shard(rows=ROWS)
    halves = replace(shard, vectors=np.asarray(shard.vectors, np.float16))
    curve = encode((Width(10, 1, 0.25, 100.0),))
    base = replace(with_recall(task, 0.5).base, stored=stored(tmp_path, halves, "halves").stored, curve=curve)  # type: ignore[type-var]
    result = make_shard(replace(task, vectors="f16", base=base))
    assert (result.how, result.recall.recall) == (How.INSERTED, 0.5)
    assert {point.recall for point in widths(result.curve)} == {0.25}


def test_short_runs_of_vectors_are_written_again_with_the_new_ones() -> None:
    vectors = np.random.default_rng(3).standard_normal((20, DIMS)).astype(np.float32)
    base = StoredRun(ObjectRange("base", 0, vectors[:10].nbytes), 10, b"sha256")
    measured: Any = SimpleNamespace(shard=SimpleNamespace(vectors=vectors), runs=(base,))
    ((run,), pieces) = _stored_runs(measured, ObjectRange("new", 64, 0))
    assert (run.location, run.count) == (ObjectRange("new", 64, vectors.nbytes), 20)
    assert b"".join(pieces) == vectors.tobytes()


def test_vectors_of_more_than_a_blob_may_have_lie_one_run_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_task, "MAX_BLOB_BYTES", 8 * 4 * DIMS)
    vectors = np.random.default_rng(3).standard_normal((20, DIMS)).astype(np.float32)
    measured: Any = SimpleNamespace(shard=SimpleNamespace(vectors=vectors), runs=())
    runs, pieces = _stored_runs(measured, ObjectRange("new", 64, 0))
    assert [(run.location.offset, run.count) for run in runs] == [(64, 8), (576, 8), (1088, 4)]
    assert [run.location.length for run in runs] == [len(piece) for piece in pieces]
    assert b"".join(pieces) == vectors.tobytes()
