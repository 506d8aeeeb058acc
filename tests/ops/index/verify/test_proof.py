"""What is written is looked at before it is published: a version whose nodes are not the rows is not."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding.bound_versions import index_versions, tagged_version
from icepuffin.ops.index import build, refresh
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.errors import CoverageError
from icepuffin.ops.index.verify import proof
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.verify.self_search_proof import SelfSearch, fault_of
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks import scatter
from icepuffin.ops.tasks import shard_task as shard
from icepuffin.ops.tasks.matching.self_search import SelfSearchResult
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.puffin.blobs.routing_blob import CoveredFile
from tests.conftest import ROWS, STORAGE, make_rows
from tests.ops.index.comparison import answer_with_recall, index_head
from tests.ops.index.test_index_materialization import drop_everything

TableFactory = Callable[..., Table]
UNPROVEN = SelfSearch(0, 0, 0, 0, 0, 1.0, 0.0, 1.0)


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    """Three files, of which one has deletes and another a row without a vector; indexed, then appended to."""
    new_table = table_factory()
    new_table.append(make_rows(0, 200))
    first = live_files(new_table, head(new_table)).files[0].path
    new_table.append(make_rows(200, 400))
    rows = make_rows(400, 600)
    vectors = rows["embedding"].to_pylist()
    vectors[7] = None
    new_table.append(rows.set_column(3, rows.schema.field(3), pa.array(vectors, rows.schema.field(3).type)))
    append_position_deletes(new_table, {first: np.arange(10)})
    index_head(new_table)
    new_table.refresh().append(make_rows(600, 640))
    return new_table.refresh()


def head(table: Table) -> int:
    return table.refresh().metadata.current_snapshot_id or 0


def left_behind(table: Table) -> list[str]:
    from icepuffin.ops.storage import open_storage  # noqa: PLC0415

    root = f"{table.location()}/metadata"
    bound = {version.puffin_path for version in index_versions(table.refresh(), "e")}
    found = (item.path for item in open_storage(root, STORAGE).list(root))
    return [path for path in found if "/ann-" in path and path not in bound]


def test_a_first_cluster_that_is_hard_to_reach_does_not_keep_an_index_from_being_published(
    table_factory: TableFactory,
) -> None:
    """The sampled rows are the first of a row group: all of that cluster, which is one row in forty."""
    rng = np.random.default_rng(10)
    vectors = rng.standard_normal((4_000, 32))
    vectors[:100] = 50 * vectors[0] + 0.01 * rng.standard_normal((100, 32))
    column = ROWS.field("embedding")
    rows = make_rows(0, 4_000, dims=1).set_column(3, column, pa.array(vectors.tolist(), column.type))
    table = table_factory()
    table.append(rows)
    report = index_head(table, IndexDefinition(name="e", column="embedding", metric="l2"))
    assert (report.rows, report.recall >= 0.9) == (4_000, True)
    assert report.self_search is not None
    assert (report.self_search.misplaced, report.self_search.rows) == (0, 64)
    version = tagged_version(table.refresh(), "e") or pytest.fail("not published")
    assert not check_integrity(RunContext(table, STORAGE), version).faults


def test_what_is_right_is_published_and_proven(table: Table) -> None:
    index_head(table)
    version = tagged_version(table.refresh(), "e")
    assert version is not None
    found = check_integrity(RunContext(table, STORAGE), version)
    assert (found.faults, found.rows) == ((), 629)


def other_files(patch: pytest.MonkeyPatch) -> None:
    """Rows that are read are said to lie in another file."""
    real = scatter.VectorRows

    def other(slots: npt.NDArray[np.uint32], positions: Any, hashes: Any, vectors: Any) -> scatter.VectorRows:
        return real(np.zeros_like(slots), positions, hashes, vectors)

    patch.setattr(scatter, "VectorRows", other)


def moved_positions(patch: pytest.MonkeyPatch) -> None:
    """Each row is said to lie one further on, the last one first."""
    real = scatter.VectorRows

    def other(slots: Any, positions: npt.NDArray[np.int64], hashes: Any, vectors: Any) -> scatter.VectorRows:
        return real(slots, np.roll(positions, 1), hashes, vectors)

    patch.setattr(scatter, "VectorRows", other)


def other_hashes(patch: pytest.MonkeyPatch) -> None:
    """Each node has the hash of another vector; a search for it succeeds all the same."""
    real = scatter.VectorRows

    def other(slots: Any, positions: Any, hashes: npt.NDArray[Any], vectors: Any) -> scatter.VectorRows:
        return real(slots, positions, np.roll(hashes, 1, axis=0), vectors)

    patch.setattr(scatter, "VectorRows", other)


def a_row_twice(patch: pytest.MonkeyPatch) -> None:
    real = scatter.VectorRows

    def other(slots: Any, positions: npt.NDArray[np.int64], hashes: Any, vectors: Any) -> scatter.VectorRows:
        again = positions.copy()
        again[-1] = again[-2]
        return real(slots, again, hashes, vectors)

    patch.setattr(scatter, "VectorRows", other)


def too_few_live(patch: pytest.MonkeyPatch) -> None:
    """The file table says of a file that it has lost a row, of another, that still has fewer than were written, that
    one has come, and the nodes do not: neither is a file whose positions are known unread.
    """
    real = refresh.file_table

    def other(*arguments: Any) -> tuple[CoveredFile, ...]:
        table = list(real(*arguments))
        more = next(slot for slot, file in enumerate(table) if 0 < file.live_rows < file.rows - 1)
        less = next(slot for slot, file in enumerate(table) if file.live_rows == file.rows > 0)
        table[more] = replace(table[more], live_rows=table[more].live_rows + 1)
        table[less] = replace(table[less], live_rows=table[less].live_rows - 1)
        return tuple(table)

    patch.setattr(refresh, "file_table", other)
    patch.setattr(build, "file_table", other)


def a_file_is_left_out(patch: pytest.MonkeyPatch) -> None:
    """The file table says of a live file that it is gone."""
    real = refresh.file_table

    def other(*arguments: Any) -> tuple[CoveredFile, ...]:
        first, *others = real(*arguments)
        return replace(first, present=False), *others

    patch.setattr(refresh, "file_table", other)
    patch.setattr(build, "file_table", other)


def other_vectors(patch: pytest.MonkeyPatch) -> None:
    """Each node is written with the vector of the next one; its hash and address stay."""
    real = shard.stored_vectors
    patch.setattr(shard, "stored_vectors", lambda vectors: real(np.roll(vectors, 1, axis=0)))


def written_otherwise(patch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    real = shard.shard_blob.encode
    patch.setattr(shard.shard_blob, "encode", lambda made, **options: real(change(made), **options))


@pytest.mark.parametrize(
    ("corrupt", "anew"),
    [
        (it, anew)
        for it in (
            other_files,
            moved_positions,
            other_hashes,
            a_row_twice,
            too_few_live,
            a_file_is_left_out,
            other_vectors,
        )
        for anew in (False, True)
    ],
)
def test_a_version_whose_nodes_are_not_the_rows_is_not_published(
    table: Table, corrupt: Callable[[pytest.MonkeyPatch], None], anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if anew:
        drop_everything(table)
    before, files = index_versions(table.refresh(), "e"), left_behind(table)
    with monkeypatch.context() as patched:
        corrupt(patched)
        with pytest.raises(CoverageError, match=r"Nothing was published.*--verify"):
            index_head(table)
    assert index_versions(table.refresh(), "e") == before
    assert left_behind(table) == files
    index_head(table)
    assert answer_with_recall(table)[1] >= 0.96


@pytest.mark.parametrize("corrupt", [other_files, moved_positions, a_row_twice, too_few_live, other_vectors])
def test_a_wrong_version_that_was_published_is_found_and_is_no_base(
    table: Table, corrupt: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a defect may have left it."""
    from icepuffin.ops.index import new_version  # noqa: PLC0415

    with monkeypatch.context() as patched:
        corrupt(patched)
        patched.setattr(new_version, "require_rows", lambda *_: UNPROVEN)
        index_head(table)
    version = tagged_version(table.refresh(), "e")
    assert version is not None
    assert check_integrity(RunContext(table, STORAGE), version).faults
    table.append(make_rows(640, 650))
    index_head(table)
    if corrupt not in {moved_positions, other_vectors}:  # of which a refresh may draw no row
        version = tagged_version(table.refresh(), "e")
        assert version is not None
        assert check_integrity(RunContext(table, STORAGE), version).faults == ()


def test_a_row_outside_of_its_balls_is_not_published_with_graphs_either(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certified answers and range searches leave out files by their balls."""
    with monkeypatch.context() as patched:
        partition_balls = scatter.partition_balls
        patched.setattr(
            scatter, "partition_balls", lambda *of: [(center, radius / 4) for center, radius in partition_balls(*of)]
        )
        with pytest.raises(CoverageError, match="rows lie outside of its balls"):
            index_head(table)
        patched.setattr(proof, "_require_inside", lambda *_: None)
        index_head(table)
    version = tagged_version(table.refresh(), "e")
    assert version is not None
    (fault,) = check_integrity(RunContext(table, STORAGE), version).faults
    assert "of 40 rows lie in none of its balls" in fault


def test_rows_are_searched_in_the_shards_that_were_written(table: Table) -> None:
    head_version = tagged_version(table, "e")
    assert head_version is not None
    report = index_head(table)
    written = [shard for shard in report.shard_reports if not shard.how.keeps_bytes]
    searched = report.self_search
    assert searched is not None
    assert len(written) <= searched.shards <= len(written) + 1
    assert searched.rows == searched.returned == searched.queries >= 40
    assert searched.recall_low < searched.recall <= searched.recall_high


def test_a_kept_shard_is_searched_in_its_turn(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its vectors were wrong when it was written, by a defect, say."""
    drop_everything(table)
    with monkeypatch.context() as patched:
        other_vectors(patched)
        patched.setattr("icepuffin.ops.index.new_version.require_rows", lambda *_: UNPROVEN)
        index_head(table)
    monkeypatch.setattr(proof, "CHECK_INTERVAL", 1)
    for first in range(640, 1640, 10):  # a shard's turn is drawn by the build id, which has random snapshot ids
        table.append(make_rows(first, first + 10))
        index_head(table)
        version = tagged_version(table.refresh(), "e")
        assert version is not None
        if not check_integrity(RunContext(table, STORAGE), version).faults:
            return
    pytest.fail("the shard was not searched in 100 refreshes")


def test_no_more_is_read_again_than_a_part_of_what_was_written(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    drop_everything(table)
    whole = index_head(table).self_search
    drop_everything(table)
    monkeypatch.setattr(proof, "SMALL_WORK", 0)
    part = index_head(table).self_search
    assert whole is not None
    assert part is not None
    assert (whole.shards, part.shards) == (3, 1)
    assert 0 < part.rows < whole.rows


@pytest.mark.parametrize(
    ("misplaced", "returned", "target", "refused"),
    [(0, 46, 0.9, False), (0, 44, 0.9, True), (0, 26, 0.5, False), (0, 0, 0.0, False), (1, 100, 0.0, True)],
)
def test_what_a_search_must_give_back_depends_on_the_target(
    misplaced: int, returned: int, target: float, refused: bool
) -> None:
    assert (fault_of(SelfSearchResult(100, misplaced, returned, 0, 1.0), target) is not None) == refused


def test_rows_with_one_vector_have_each_their_own_address(table_factory: TableFactory) -> None:
    table = table_factory()
    rows = make_rows(0, 300)
    field = rows.schema.field(3)
    same = rows.set_column(3, field, pa.array([rows["embedding"][0].as_py()] * 300, field.type))
    table.append(same)
    index_head(table)
    table.append(same)
    table.overwrite(table.refresh().scan().to_arrow())
    index_head(table)
    version = tagged_version(table.refresh(), "e")
    assert version is not None
    found = check_integrity(RunContext(table, STORAGE), version)
    assert (found.faults, found.rows) == ((), 600)


def test_many_files_and_shards_are_counted_by_several_tasks(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    from icepuffin.ops.tasks.task_runner import LocalRunner  # noqa: PLC0415

    labels: list[tuple[str, int]] = []

    class Counting(LocalRunner):
        parallelism = 2

        def run(self, function: Any, tasks: Sequence[Any], *, label: str, progress: Any = None) -> Any:
            labels.append((label, len(tasks)))
            return super().run(function, tasks, label=label, progress=progress)

    monkeypatch.setattr(proof, "NODES_AT_ONCE", 0)
    from icepuffin.ops.index.index_materialization import materialize_index  # noqa: PLC0415
    from tests.ops.index.comparison import DEFINITION  # noqa: PLC0415

    materialize_index(RunContext(table, STORAGE, Counting(1)), DEFINITION, head(table))
    assert ("count addresses", 4) in labels


@pytest.mark.parametrize("is_searched", [True, False])
def test_the_shard_in_turn_is_compared_with_its_checksums_once(
    table: Table, monkeypatch: pytest.MonkeyPatch, is_searched: bool
) -> None:
    """A search reads all of it; else it is read for that alone."""
    index_head(table)
    append_position_deletes(table, {live_files(table, head(table)).files[1].path: np.array([3])})
    checked: list[int] = []
    monkeypatch.setattr(proof, "check_kept", lambda stored, number, storage: checked.append(number))
    monkeypatch.setattr(proof, "_shard_in_turn", lambda plan, shard_set: 1)
    if not is_searched:
        monkeypatch.setattr(proof, "_searched_shards", lambda shard_set, rows, in_turn: [])
    searched = index_head(table).self_search
    assert searched is not None
    assert (searched.shards, checked) == ((1, []) if is_searched else (0, [1]))


def searched_shards(
    rows: dict[int, int],
    lengths: Sequence[int],
    *,
    kept: Sequence[int] = (),
    build: int = 0,
    location: str = "file:///lake/t",
) -> list[int]:
    plan: Any = SimpleNamespace(build_id=f"{build:x}", live=SimpleNamespace(location=location))
    shard_set: Any = SimpleNamespace(
        shards=[
            SimpleNamespace(shard_id=number, length=length, how=SimpleNamespace(keeps_bytes=number in kept))
            for number, length in enumerate(lengths)
        ]
    )
    return proof._searched_shards(shard_set, rows, proof._shard_in_turn(plan, shard_set))


@pytest.mark.parametrize(
    ("rows", "lengths", "expected"),
    [
        ({1: 5, 4: 9, 5: 5}, [100] * 20, [4, 1]),
        ({1: 5, 4: 9, 5: 5}, [100] * 30, [4, 1, 5]),
        ({0: 9, 1: 1, 2: 1}, [500, 1, 1], [0]),
        ({0: 9, 1: 8, 2: 1}, [150, 60, 50, 1_740], [0, 2]),
        ({0: 9, 1: 8}, [100, 100, *[0] * 8, 1_799], [0]),
        ({0: 9, 1: 8}, [100, 100, *[0] * 8, 1_800], [0, 1]),
        ({}, [100] * 20, []),
    ],
)
def test_shards_with_most_rows_are_searched_up_to_a_tenth_of_what_was_written(
    monkeypatch: pytest.MonkeyPatch, rows: dict[int, int], lengths: list[int], expected: list[int]
) -> None:
    monkeypatch.setattr(proof, "SMALL_WORK", 0)
    assert searched_shards(rows, lengths) == expected
    monkeypatch.setattr(proof, "SMALL_WORK", 10_000)
    assert set(searched_shards(rows, lengths)) == set(rows)


@pytest.mark.parametrize("build", range(40))
@pytest.mark.parametrize("shards", [3, 16, 20])
def test_every_kept_shard_is_searched_once_per_interval_of_refreshes(shards: int, build: int) -> None:
    """Where files are local, and a row of it is in the sample."""
    rows = dict.fromkeys(range(shards), 1)
    kept = range(1, shards)
    turn = build % max(16, shards)
    assert searched_shards(rows, [9] * shards, kept=kept, build=build) == [0] + [turn] * (0 < turn < shards)
    assert searched_shards(rows, [9] * shards, kept=kept, build=build, location="s3://lake/t") == [0]
    assert searched_shards({0: 1}, [9] * shards, kept=kept, build=build) == [0]
