"""Shards larger than memory takes, and than one blob holds of vectors: by lowered limits."""

import errno
import mmap
import os
import tempfile
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.codes import rotated_quantization
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.files import planned_blobs
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning import sizes
from icepuffin.ops.index.planning.sizes import (
    IMBALANCE,
    LARGEST_SHARD_MEMORY,
    MANY_SHARDS,
    OUTGROWN,
    choose_shard_count,
    has_outgrown,
    max_shard_rows,
    rows_per_shard,
)
from icepuffin.ops.index.planning.work_bounds import refresh_bounds
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.index.versions.version_reader import OpenVersion, open_version
from icepuffin.ops.model import Action
from icepuffin.ops.process import large_arrays
from icepuffin.ops.process.large_arrays import NoRoomError, as_floats, concatenated, converted, new_array, rows_at
from icepuffin.ops.shards import vector_runs
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks import base_shard, shard_task
from icepuffin.ops.tasks.base_shard import BaseShard
from icepuffin.ops.tasks.rows import VectorRows
from icepuffin.ops.tasks.task_runner import SHARD_MEMORY_FACTOR, LocalRunner, RunContext, shard_bytes
from icepuffin.puffin import PuffinReader
from icepuffin.puffin.blobs.shard_blob import ShardReader
from icepuffin.puffin.types import BlobType
from tests.conftest import DIMS, STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head
from tests.selection import some

TableFactory = Callable[..., Table]
GIB = 2**30


def is_mapped(array: object) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(getattr(array, "obj", array), mmap.mmap)


@pytest.fixture
def in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of every shard lie in files."""
    monkeypatch.setattr(large_arrays, "LARGEST_IN_MEMORY", 0)


def test_arrays_lie_in_a_file_from_a_size_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_arrays, "LARGEST_IN_MEMORY", 800)
    assert not is_mapped(new_array((20, 10), np.float32))
    array = new_array((201, 2), np.float16)
    assert is_mapped(array)
    assert (array.shape, array.dtype) == ((201, 2), np.float16)
    assert array.flags.writeable
    assert array.flags.c_contiguous


def test_copies_in_a_file_are_what_numpy_makes(in_files: None) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((50, 7)).astype(np.float32)
    rows = rng.integers(0, 50, 80)
    halves = converted(vectors, np.float16)
    for copy, expected in [
        (rows_at(vectors, rows), vectors[rows]),
        (rows_at(vectors[:, :0], rows), vectors[rows, :0]),
        (concatenated([vectors, vectors[3:9], vectors[:0]]), np.concatenate([vectors, vectors[3:9]])),
        (concatenated([halves]), halves),
        (halves, vectors.astype(np.float16)),
        (as_floats(halves), vectors.astype(np.float16).astype(np.float32)),
    ]:
        assert is_mapped(copy) or not copy.size
        assert copy.dtype == expected.dtype
        assert np.array_equal(copy, expected)
    assert as_floats(vectors) is vectors
    with pytest.raises(IndexError):
        rows_at(vectors, np.array([3, 50]))


def test_copies_of_long_vectors_take_little_memory(in_files: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_arrays, "_BYTES_PER_COPY", 2**18)
    vectors = new_array((64, 16_384), np.float32)
    vectors[:, 0] = np.arange(64)
    tracemalloc.start()
    try:
        copy = rows_at(vectors, np.arange(64)[::-1])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert copy[:, 0].tolist() == list(range(64))[::-1]
    assert peak < 2 * 2**18


def head_version(table: Table, definition: IndexDefinition) -> OpenVersion:
    return open_version(index_versions(table.refresh(), definition.name)[-1], STORAGE)


def delete(table: Table, rows: range) -> None:
    files = live_files(table.refresh(), table.metadata.current_snapshot_id or 0).files
    append_position_deletes(table, {max(files, key=lambda file: file.record_count).path: np.array(rows)})


def life(table: Table, definition: IndexDefinition) -> list[tuple[str, list[bytes]]]:
    """What is done, and the sha256 of all shards and runs: of a build, a delta, one that is dissolved, a rebuild."""
    done = []
    changes: list[Callable[[], object]] = [
        lambda: table.append(make_rows(0, 600)),
        lambda: table.refresh().append(make_rows(600, 640)),
        lambda: table.refresh().append(make_rows(640, 900)),
        lambda: delete(table, range(200)),
    ]
    for change in changes:
        change()
        report = index_head(table, definition)
        version = head_version(table, definition)
        hashes = [
            digest for shard in version.routing.shards for digest in (shard.sha256, *(r.sha256 for r in shard.runs))
        ]
        done.append((f"{report.action} {report.merged} {report.shards_rebuilt}", hashes))
        assert check_integrity(RunContext(table, STORAGE), version.bound).faults == ()
        assert answer_with_recall(table, definition=definition)[1] >= 0.9
    return done


@pytest.mark.parametrize(
    ("vectors", "metric", "coded"),
    some(
        [
            (vectors, metric, coded)
            for vectors in ("f32", "f16", "rq8", "none")
            for metric, coded in (("l2", True), ("ip", False))
        ],
        4,
    ),
)
def test_an_index_is_the_same_where_vectors_lie_in_files(
    table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch, vectors: str, metric: str, coded: bool
) -> None:
    definition = replace(DEFINITION, vectors=vectors, metric=metric, max_deltas=1, target_recall=0.5)
    if not coded:
        monkeypatch.setattr(vamana, "preserves_neighbors", lambda *_, **__: False)
    in_memory = life(table_factory("a"), definition)
    assert [what for what, _ in in_memory] == ["built 0 0", "refreshed 0 0", "refreshed 40 0", "refreshed 0 3"]
    arrays = []
    monkeypatch.setattr(large_arrays, "LARGEST_IN_MEMORY", 0)
    monkeypatch.setattr(vamana, "in_memory", None)
    made = tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: arrays.append(made()) or arrays[-1])
    assert life(table_factory("b"), definition) == in_memory
    assert len(arrays) > 12, "blocks, rows that are joined, taken or widened"
    assert all(file.closed for file in arrays), "mapped files are held by their arrays alone"


@pytest.mark.parametrize("vectors", ["rq8", "none"])
def test_the_dead_nodes_alone_of_a_shard_of_codes_are_decoded(
    table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch, in_files: None, vectors: str
) -> None:
    decoded: list[int] = []
    kernels = {"rq8": (rotated_quantization, "decode"), "none": (base_shard, "decode_pq")}
    module, name = kernels[vectors]
    decode, rows_of = getattr(module, name), BaseShard.rows

    def rows(base: BaseShard, reader: ShardReader) -> VectorRows:
        rows = rows_of(base, reader)
        assert is_mapped(rows.vectors)
        return rows

    monkeypatch.setattr(base_shard, "_DECODED_AT_ONCE", 30)
    monkeypatch.setattr(module, name, lambda *codes: decoded.append(len(decode(*codes))) or decode(*codes))
    monkeypatch.setattr(BaseShard, "rows", rows)
    life(table_factory(), replace(DEFINITION, vectors=vectors, max_deltas=1, target_recall=0.5))
    assert sum(decoded) == 200, "the rows that are deleted at last"
    assert max(decoded) <= 30


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_no_room_for_temporary_files_is_an_error_and_nothing_is_published(
    table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch, in_files: None
) -> None:
    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    with monkeypatch.context() as without_folder:
        without_folder.setattr(tempfile, "gettempdir", none)
        with pytest.raises(NoRoomError, match=r"no folder: .*No usable temporary directory.*TMPDIR"):
            new_array((3, 4), np.float32)
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(NoRoomError, match=r"no room for 1\.5 GiB of temporary files"):
        new_array((3, 2**27), np.float32)
    table = table_factory()
    table.append(make_rows(0, 600))
    with pytest.raises(NoRoomError, match=r"no room for 0\.0 GiB of temporary files.*No space left.*TMPDIR.*`shards`"):
        index_head(table)
    assert index_versions(table.refresh(), "e") == ()


def test_no_room_for_temporary_files_is_no_fault_of_a_version(
    table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch, in_files: None
) -> None:
    """A check that found one would have it made anew."""
    table = table_factory()
    table.append(make_rows(0, 600))
    index_head(table)
    bound = head_version(table, DEFINITION).bound
    assert check_integrity(RunContext(table, STORAGE), bound).faults == ()
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(NoRoomError, match=r"made or checked.*TMPDIR"):
        check_integrity(RunContext(table, STORAGE), bound)
    with pytest.raises(NoRoomError):
        materialize_index(RunContext(table, STORAGE, LocalRunner(1)), DEFINITION, bound.base_snapshot_id, verify=True)


def test_vectors_that_no_blob_holds_lie_in_several(
    table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A blob of 100 vectors, and a part of one: runs have whole vectors."""
    row_bytes = 4 * DIMS
    most = 100 * row_bytes + 5
    monkeypatch.setattr(shard_task, "MAX_BLOB_BYTES", most)
    monkeypatch.setattr(planned_blobs, "MAX_BLOB_BYTES", most)
    monkeypatch.setattr(index_packs, "PACK_BYTES", 1)
    monkeypatch.setattr(vector_runs, "MIN_BYTES", row_bytes)
    table, definition = table_factory(), replace(DEFINITION, shards=1, max_deltas=1)
    for first, last in [(0, 600), (600, 640), (640, 900), (900, 1_000)]:
        table.refresh().append(make_rows(first, last))
        index_head(table, definition)
        version = head_version(table, definition)
        assert check_integrity(RunContext(table, STORAGE), version.bound).faults == ()
        assert answer_with_recall(table, definition=definition)[1] >= 0.96
        paths = [version.bound.puffin_path, *(pack.path for pack in version.bound.packs)]
        for path in paths:
            blobs = PuffinReader(open_storage(path, STORAGE).source(path)).footer.blobs
            assert all(blob.length <= most for blob in blobs if blob.type == BlobType.VECTORS)
    shard = version.routing.shards[0]
    assert sum(run.count for run in shard.runs) == shard.count
    assert all(run.length == run.count * row_bytes <= most for run in shard.runs)
    assert len(shard.runs) >= 9


@pytest.mark.parametrize("dims", [128, 768, 1_536])
def test_shards_get_larger_from_many_on_as_far_as_memory_goes(dims: int) -> None:
    usual = rows_per_shard(dims, 64)
    assert choose_shard_count(MANY_SHARDS * usual, dims, 64) == MANY_SHARDS
    assert choose_shard_count(MANY_SHARDS * usual + 1, dims, 64) == MANY_SHARDS
    assert choose_shard_count(2 * MANY_SHARDS * usual, dims, 64) == MANY_SHARDS
    rows = 10**10
    largest = IMBALANCE * rows / choose_shard_count(rows, dims, 64)
    memory = SHARD_MEMORY_FACTOR * shard_bytes(largest, dims, 64)
    assert 0.99 * LARGEST_SHARD_MEMORY < memory <= LARGEST_SHARD_MEMORY
    counts = [choose_shard_count(int(rows), dims, 64) for rows in np.geomspace(1, 10**10, 200)]
    assert counts == sorted(counts)


def test_a_billion_rows_of_768_dimensions_are_hundreds_of_shards() -> None:
    assert choose_shard_count(10**9, 768, 64) == 716


def test_memory_of_a_shard_counts_codes_where_its_vectors_lie_in_a_file() -> None:
    assert shard_bytes(1_000, 100, 64) == 1_000 * (400 + 256)
    most = GIB // 400
    assert shard_bytes(most + 10, 100, 64) == GIB + 256 * (most + 10), "no less than that of a smaller shard"
    assert shard_bytes(50_000_000, 100, 64) == 50_000_000 * (100 + 256)


def test_a_table_that_has_outgrown_its_shards_gets_more(
    table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = replace(DEFINITION, shards=None)
    node = 4 * (DIMS + definition.max_degree)
    monkeypatch.setattr(sizes, "SHARD_BYTES", 100 * node)
    table = table_factory()
    table.append(make_rows(0, 100))
    assert index_head(table, definition).shards == 1
    delete(table, range(50))
    for first, last in [(100, 150), (150, 250), (250, 100 * OUTGROWN + 50)]:
        table.refresh().append(make_rows(first, last))
        assert index_head(table, definition).action is Action.REFRESHED
    assert head_version(table, definition).routing.routed_shards == 1
    table.refresh().append(make_rows(100 * OUTGROWN + 50, 100 * OUTGROWN + 51))
    head = table.refresh().current_snapshot()
    assert head is not None
    assert refresh_bounds(table, definition, head) is None, "the run counts as a build"
    report = index_head(table, definition)
    assert (report.action, report.shards) == (Action.BUILT, OUTGROWN + 1)
    assert "too few shards" in report.reason
    assert answer_with_recall(table, definition=definition)[1] >= 0.96


def test_an_index_that_has_outgrown_its_shards_is_kept_while_no_rows_come(
    table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one may have whose limit was higher: deletes make it no larger."""
    definition = replace(DEFINITION, shards=None)
    table = table_factory()
    table.append(make_rows(0, 600))
    assert index_head(table, definition).shards == 1
    monkeypatch.setattr(sizes, "SHARD_BYTES", 100 * 4 * (DIMS + definition.max_degree))
    delete(table, range(5))
    head = table.refresh().current_snapshot()
    assert head is not None
    assert refresh_bounds(table, definition, head) is not None
    assert index_head(table, definition).action is Action.REFRESHED
    table.refresh().append(make_rows(600, 601))
    assert index_head(table, definition).action is Action.BUILT


def test_a_number_of_shards_that_the_definition_sets_is_kept() -> None:
    rows = 100 * rows_per_shard(768, 64)
    definition = IndexDefinition(name="e", column="v")
    assert has_outgrown(definition, rows, 768, 24)
    assert not has_outgrown(definition, rows, 768, 25)
    assert not has_outgrown(replace(definition, shards=1), rows, 768, 1)
    assert max_shard_rows(replace(definition, shards=1), 768) == (2**31 - 1 - 4096) // (33 + 4 * 65)
