from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import FloatType, ListType, NestedField

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.model import DeleteFile, DeleteKind, FileSlot, LiveFile, ShardId
from icepuffin.ops.storage import open_storage
from icepuffin.ops.tasks.matching.match_hashes import MatchTask, read_moves
from icepuffin.ops.tasks.matching.match_lineage import (
    LineageMatchResult,
    LineageMatchTask,
    LineageTask,
    match_lineage,
    read_lineage,
    row_versions,
)
from icepuffin.ops.tasks.vectors import VectorColumn, content_hashes
from icepuffin.puffin.blobs import deletion_vector_blob
from tests.conftest import STORAGE
from tests.ops.cache.stored import DIMS, random_shard, stored

SCHEMA = Schema(NestedField(2, "embedding", ListType(3, FloatType(), element_required=False), required=False))
Lineage = Mapping[str, Sequence[int | None]]
"""Columns of rows that were moved"""
OLD, OTHER, NEW = map(FileSlot, range(3))
VECTORS = np.random.default_rng(0).standard_normal((7, DIMS)).astype(np.float32)
"""Vectors of four rows of the old file, and of three of another"""


def data_file(
    path: Path,
    rows: int,
    first_row_id: int | None,
    commit: int,
    lineage: Lineage,
    vectors: npt.NDArray[np.float32] | None = None,
    row_group_size: int | None = None,
) -> LiveFile:
    ids = {"_row_id": b"2147483540", "_last_updated_sequence_number": b"2147483539"}
    fields = [pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})]
    fields += [pa.field(name, pa.int64(), metadata={b"PARQUET:field_id": ids[name]}) for name in lineage]
    columns: list[object] = [list(range(rows)), *lineage.values()]
    if vectors is not None:
        element = pa.field("element", pa.float32(), metadata={b"PARQUET:field_id": b"3"})
        fields.append(pa.field("embedding", pa.list_(element), metadata={b"PARQUET:field_id": b"2"}))
        columns.append(vectors.tolist())
    pq.write_table(pa.table(columns, pa.schema(fields)), path, row_group_size=row_group_size)
    return LiveFile(
        f"file://{path}",
        path.stat().st_size,
        rows,
        commit,
        "PARQUET",
        first_row_id=first_row_id,
        file_sequence_number=commit,
        has_row_ids=bool(lineage),
    )


def read(file: LiveFile, deleted: list[int] | None = None) -> dict[int, int]:
    gone = None if deleted is None else np.array(deleted, np.int64)
    parts = list(row_versions(file, STORAGE, gone))
    return {
        int(at): int(version) for positions, versions in parts for at, version in zip(positions, versions, strict=True)
    }


def test_a_row_that_was_moved_keeps_its_version(tmp_path: Path) -> None:
    plain = read(data_file(tmp_path / "old.parquet", 4, 10, 3, {}))
    moved = {"_row_id": [13, None, 10], "_last_updated_sequence_number": [3, 3, None]}
    result = read(data_file(tmp_path / "new.parquet", 3, 20, 7, moved))
    assert result[0] == plain[3]
    assert result[1] not in plain.values(), "it has an id of the new file"
    assert result[2] not in plain.values(), "it was changed by the commit of the new file"


def test_a_file_may_have_ids_alone(tmp_path: Path) -> None:
    plain = read(data_file(tmp_path / "old.parquet", 2, 0, 5, {}))
    assert read(data_file(tmp_path / "new.parquet", 2, 20, 5, {"_row_id": [1, 0]})) == {0: plain[1], 1: plain[0]}


def test_deleted_rows_have_no_version(tmp_path: Path) -> None:
    file = data_file(tmp_path / "old.parquet", 4, 0, 1, {})
    assert read(file, [1, 2]).keys() == {0, 3}


def test_versions_of_different_rows_and_commits_differ(tmp_path: Path) -> None:
    rows, commits = np.meshgrid([*range(300), *range(10**12, 10**12 + 300)], range(1, 400))
    pairs = {"_row_id": rows.ravel().tolist(), "_last_updated_sequence_number": commits.ravel().tolist()}
    file = data_file(tmp_path / "all.parquet", rows.size, 0, 1, pairs)
    assert len(set(read(file).values())) == rows.size


def test_rows_without_ids_have_no_version(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no row ids"):
        read(data_file(tmp_path / "v2.parquet", 1, None, 1, {}))


def test_nodes_move_with_the_rows_that_have_their_versions(tmp_path: Path) -> None:
    moved = {"_row_id": [101, None, 13, 10], "_last_updated_sequence_number": [5, 7, 3, 4]}
    result = matched(tmp_path, moved, VECTORS[[5, 0, 3, 0]])
    assert moves_of(result) == {(0, 3): (NEW, 2), (0, 5): (NEW, 0)}
    assert {(move.before, move.after, move.rows) for move in result.moves} == {(OLD, NEW, 1), (OTHER, NEW, 1)}
    ((slot, rest),) = result.rows.unmatched
    assert (slot, deletion_vector_blob.decode(rest).tolist()) == (NEW, [1, 3]), "one row is new, and one was changed"
    assert not result.refuted


def test_nodes_of_a_deleted_file_are_left(tmp_path: Path) -> None:
    moved = {"_row_id": [101, 13], "_last_updated_sequence_number": [5, 3]}
    result = matched(tmp_path, moved, VECTORS[[5, 3]], without_other=True)
    assert moves_of(result) == {(0, 3): (NEW, 1)}


def test_nodes_of_files_that_are_not_looked_at_are_left(tmp_path: Path) -> None:
    moved = {"_row_id": [101, 13], "_last_updated_sequence_number": [5, 3]}
    result = matched(tmp_path, moved, VECTORS[[5, 3]], only_old=True)
    assert moves_of(result) == {(0, 3): (NEW, 1)}


def test_rows_that_were_deleted_since_keep_the_places_of_those_behind_them(tmp_path: Path) -> None:
    """So deletes of files of before are not read."""
    moved = {"_row_id": [101, 102], "_last_updated_sequence_number": [5, 5]}
    deletes = (DeleteFile(f"file://{tmp_path}/unread", DeleteKind.POSITION, 7, 1, 1),)
    result = matched(tmp_path, moved, VECTORS[[5, 6]], deletes=deletes)
    assert moves_of(result) == {(0, 5): (NEW, 0), (0, 6): (NEW, 1)}


def test_rows_of_other_ranges_behind_the_last_are_compared_with_no_node(tmp_path: Path) -> None:
    moved = {"_row_id": [13, 12, 11, 10], "_last_updated_sequence_number": [3, 3, 3, 3]}
    moves: dict[tuple[int, int], tuple[int, int]] = {}
    for number in range(8):
        folder = tmp_path / str(number)
        folder.mkdir()
        result = matched(folder, moved, VECTORS[[3, 2, 1, 0]], hash_range=number, range_bits=3)
        assert not result.refuted
        moves |= moves_of(result)
    assert moves == {(0, 3 - row): (NEW, row) for row in range(4)}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_file_that_holds_another_vector_than_its_lineage_says_is_named(tmp_path: Path, place: int) -> None:
    vectors = VECTORS[[3, 2, 1]]
    moved = {"_row_id": [13, 12, 11], "_last_updated_sequence_number": [3, 3, 3]}
    assert not matched(tmp_path, moved, vectors).refuted
    vectors[place] = VECTORS[0]
    assert matched(tmp_path, moved, vectors).refuted == f"file://{tmp_path}/new.parquet"


def test_of_several_row_groups_the_rows_of_the_middle_one_are_compared(tmp_path: Path) -> None:
    vectors = VECTORS[[3, 2, 1]]
    moved = {"_row_id": [13, 12, 11], "_last_updated_sequence_number": [3, 3, 3]}
    assert not matched(tmp_path, moved, vectors, row_group_size=1).refuted
    vectors[1] = VECTORS[0]
    assert matched(tmp_path, moved, vectors, row_group_size=1).refuted


def matched(
    folder: Path,
    lineage: Lineage,
    vectors: npt.NDArray[np.float32],
    *,
    without_other: bool = False,
    only_old: bool = False,
    deletes: tuple[DeleteFile, ...] = (),
    hash_range: int = 0,
    range_bits: int = 0,
    row_group_size: int | None = None,
) -> LineageMatchResult:
    """A new file with that lineage, matched with the dead nodes of two files."""
    old = data_file(folder / "old.parquet", 4, 10, 3, {})
    ids = {"_row_id": [100, 101, 102], "_last_updated_sequence_number": [5, 5, 5]}
    other = replace(data_file(folder / "other.parquet", 3, 500, 6, ids), deletes=deletes)
    new = data_file(folder / "new.parquet", len(vectors), 20, 7, lineage, vectors, row_group_size)
    if without_other:
        (folder / "other.parquet").unlink()
    shard = replace(
        random_shard(rows=7),
        file_slots=np.array([OLD] * 4 + [OTHER] * 3, np.uint32),
        row_positions=np.array([0, 1, 2, 3, 0, 1, 2]),
        content_hashes=content_hashes(VECTORS),
    )
    dead = ShardId(0), stored(folder, shard).stored, deletion_vector_blob.encode(np.arange(7))
    staging = f"file://{folder}/staging"
    blocks = read_lineage(LineageTask(0, ((NEW, new),), range_bits, staging, STORAGE))
    of_range = tuple((path, rows) for number, path, rows in blocks if number == hash_range)
    match = MatchTask(hash_range, range_bits, of_range, (dead,), (), staging, STORAGE)
    column = VectorColumn(SCHEMA, 2, DIMS, Metric.L2, STORAGE)
    before = ((OLD, old),) if only_old else ((OLD, old), (OTHER, other))
    return match_lineage(LineageMatchTask(match, before, ((NEW, new),), column))


def moves_of(result: LineageMatchResult) -> dict[tuple[int, int], tuple[int, int]]:
    """(shard id, node) -> (file slot, row position)."""
    moves: dict[tuple[int, int], tuple[int, int]] = {}
    for of_shard in result.rows.moves:
        nodes, (slots, positions) = read_moves(open_storage(of_shard.staged.path, STORAGE), of_shard)
        addresses = zip(slots.tolist(), positions.tolist(), strict=True)
        moves |= {(of_shard.shard_id, node): address for node, address in zip(nodes.tolist(), addresses, strict=True)}
    return moves
