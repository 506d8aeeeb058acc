"""An index without graphs: balls around the vectors of each data file, made and refreshed file by file."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.arrays import F64
from icepuffin.ops.binding.bound_versions import index_versions, tagged_version
from icepuffin.ops.index import balls as ball_index
from icepuffin.ops.index.definitions.ddl import drop_index
from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition
from icepuffin.ops.index.errors import CoverageError
from icepuffin.ops.index.index_materialization import rebuild_tombstoned_shards
from icepuffin.ops.index.planning import index_estimate, sizes
from icepuffin.ops.index.planning.sizes import BALL_BYTES, balls_per_file
from icepuffin.ops.index.planning.version_plan import plan_version
from icepuffin.ops.index.verify import proof
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.versions.version_reader import open_version, read_centroids
from icepuffin.ops.metrics import index_samples
from icepuffin.ops.model import Action, DeleteFile, FileNumber
from icepuffin.ops.search.exact.pruning import FileBalls
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.overview import overview
from icepuffin.ops.search.result import Coverage, explain
from icepuffin.ops.storage import Storage
from icepuffin.ops.table import equality_deletes, row_deletes
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks import enclosure
from icepuffin.ops.tasks.file_balls import MAX_BALLS
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.puffin import BytesSource, PuffinReader
from icepuffin.puffin.blobs import centroid_blob
from icepuffin.puffin.blobs.routing_blob import CoveredFile
from icepuffin.puffin.errors import BadBlobError
from icepuffin.puffin.types import BlobType, canonical_type
from tests.conftest import DIMS, ROWS, STORAGE, make_rows
from tests.ops.catalog.equality import delete_where_id_is
from tests.ops.index.comparison import index_head
from tests.ops.search.clusters import CENTERS, clustered

TableFactory = Callable[..., Table]
BALLS = IndexDefinition(name="b", column="embedding", metric="l2", method="centroid")


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    """Four files, each about one point."""
    new_table = table_factory()
    for number, center in enumerate(CENTERS[:4]):
        new_table.append(clustered(100 * number, 100, center.tolist()))
    return new_table


def require_exact(table: Table, definition: IndexDefinition = BALLS) -> Coverage:
    """The answers are those of an exact scan, and the version at the tag has no faults."""
    query_vectors = np.asarray(CENTERS[1:3] + 0.1, np.float32)
    result = open_index(table.refresh(), definition, storage=STORAGE).search(query_vectors, 7, columns=["id"])
    exact = open_exact(table, "embedding", definition.metric, storage=STORAGE)
    assert result.rows.equals(exact.search(query_vectors, 7, columns=["id"]).rows)
    version = tagged_version(table, definition.name)
    assert version is not None
    assert check_integrity(RunContext(table, STORAGE), version).faults == ()
    return result.coverage


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_a_version_is_balls_and_no_shard(table: Table, metric: str) -> None:
    definition = replace(BALLS, metric=metric)
    report = index_head(table, definition)
    assert (report.action, report.shards, report.rows, report.inserted) == (Action.BUILT, 0, 400, 400)
    assert (report.recall, report.recall_basis) == (None, None)
    assert report.bytes_total < 8_000
    assert require_exact(table, definition) is Coverage.EXACT_VERSION
    shown = overview(table, definition, STORAGE)
    assert shown is not None
    assert (shown.balls, shown.files, shown.coverage) == (24, 4, 1.0)
    (version,) = index_versions(table.refresh(), "b")
    blobs = PuffinReader(BytesSource(Path(version.puffin_path.removeprefix("file://")).read_bytes())).footer.blobs
    checked = check_integrity(RunContext(table, STORAGE), version)
    assert checked.bytes_read == sum(blob.length for blob in blobs if canonical_type(blob.type) == BlobType.CENTROID)
    assert drop_index(table, "b") == ("ann_b",)


def test_a_refresh_reads_the_files_with_other_rows_alone(table: Table) -> None:
    """A new file, one with deleted rows, and one that is gone."""
    before = index_head(table, BALLS)
    files = live_files(table, table.refresh().metadata.current_snapshot_id or 0).files
    oldest = min(files, key=lambda file: file.sequence_number)  # paths are random
    append_position_deletes(table, {oldest.path: np.arange(30)})
    table.append(clustered(400, 50, CENTERS[4].tolist()))
    table.delete("id >= 300 and id < 400")
    plan = plan_version(RunContext(table, STORAGE), BALLS, table.refresh().metadata.current_snapshot_id or 0)
    expected = index_estimate.estimate(RunContext(table, STORAGE, LocalRunner(1)), plan)
    report = index_head(table, BALLS)
    assert (before.rows, report.action, report.rows) == (400, Action.REFRESHED, 320)
    assert report.inserted == expected.inserted == 70 + 50
    files = len(plan.live.files)
    assert expected.bytes_written == files * balls_per_file(files, DIMS) * (4 * DIMS + 8)
    index = read_centroids(open_version(index_versions(table.refresh(), "b")[-1], STORAGE), STORAGE)
    assert max(Counter(index.file_ordinals.tolist()).values()) <= balls_per_file(files, DIMS), "of no older version"
    assert report.gone == 400 + 120 - 320
    assert require_exact(table) is Coverage.EXACT_VERSION
    assert index_head(table, BALLS).action is Action.REUSED
    assert rebuild_tombstoned_shards(RunContext(table, STORAGE, LocalRunner(1)), BALLS) is None


@pytest.mark.parametrize("dims", [DIMS, DIMS + 1])
def test_a_table_that_is_written_anew_is_built_anew(table: Table, dims: int) -> None:
    """Its vectors may have other dimensions."""
    index_head(table, BALLS)
    rows = make_rows(0, 60, dims=dims)
    table.overwrite(rows)
    assert index_head(table, BALLS).action is Action.BUILT
    query = np.asarray(rows["embedding"][7].as_py(), np.float32)
    result = open_index(table.refresh(), BALLS, storage=STORAGE).search(query, 1, columns=["id"])
    assert (result.coverage, result.rows["id"].to_pylist()) == (Coverage.EXACT_VERSION, [7])


def test_a_pruned_scan_reads_equality_deletes_once_for_many_files(
    table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine files, of which the first three are read in one group, the others in a second."""
    table = table_factory()
    for number in range(9):
        table.append(clustered(10 * number, 10, CENTERS[number % 4].tolist()))
    delete_where_id_is(table, *range(0, 90, 10))
    delete_where_id_is(table, 5)
    index_head(table, BALLS)
    monkeypatch.setattr(row_deletes, "_FIRST_FILES", 3)
    reads: Counter[str] = Counter()
    read_keys = equality_deletes._read_keys

    def counted(store: Storage, delete: DeleteFile, schema: Schema) -> list[pa.Table]:
        reads[delete.path] += 1
        return read_keys(store, delete, schema)

    monkeypatch.setattr(equality_deletes, "_resolved", equality_deletes._Resolutions())
    monkeypatch.setattr(equality_deletes, "_read_keys", counted)
    found = open_index(table.refresh(), BALLS, storage=STORAGE).search(CENTERS[0], 90, columns=["id"])
    assert (len(found.rows), list(reads.values())) == (80, [2, 2])


def test_a_query_that_a_file_is_out_of_reach_of_is_not_compared_with_its_balls_again(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many queries most are far from most files: each file costs as many comparisons as it has queries near it."""
    index_head(table, BALLS)
    compared: list[int] = []
    refined = FileBalls.refined

    def counted(self: FileBalls, queries: F64, number: FileNumber) -> F64:
        compared.append(len(queries))
        return refined(self, queries, number)

    monkeypatch.setattr(FileBalls, "refined", counted)
    found = open_index(table.refresh(), BALLS, storage=STORAGE).search(CENTERS[:4], 1, columns=["id"])
    assert [row["id"] // 100 for row in found.rows.to_pylist()] == [0, 1, 2, 3]
    assert compared == [4, 3, 2, 1]


def test_balls_keep_to_their_limit_over_refreshes(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older files, which had all the room, get one ball each: the first of them, as many as it takes."""

    def balls_by_file(limit: int) -> list[int]:
        monkeypatch.setattr(sizes, "BALL_BYTES", limit * (4 * DIMS + 8))
        index_head(table, BALLS)
        require_exact(table)
        version = tagged_version(table, "b")
        assert version is not None
        index = read_centroids(open_version(version, STORAGE), STORAGE)
        return np.bincount(index.file_ordinals, minlength=len(index.files)).tolist()

    assert balls_by_file(13) == [3, 3, 3, 3]
    table.append(clustered(400, 100, CENTERS[4].tolist()))
    assert balls_by_file(13) == [1, 3, 3, 3, 2]
    table.append(clustered(500, 100, CENTERS[5].tolist()))
    assert balls_by_file(5) == [1, 1, 1, 1, 1, 1]


def test_an_explanation_claims_no_more_than_was_compared_and_measured(table: Table) -> None:
    index_head(table, BALLS)
    reader = open_index(table.refresh(), BALLS, storage=STORAGE)
    some = dict(explain(reader.search(CENTERS[0], 5, where="id in (3, 4)")))
    assert some["certified"] == "every matching row was compared"
    every = dict(explain(reader.search(CENTERS[0], 400)))
    assert every["certified"] == "every row was compared"
    within = dict(explain(reader.within(CENTERS[0], 9.0)))
    assert within["distances"] == "400, those of 400 rows beside the index among them"
    samples = {sample.metric for sample in index_samples(table, BALLS, "main", {})}
    assert "icepuffin_index_run_seconds" in samples
    assert "icepuffin_index_recall" not in samples


def test_after_a_rollback_the_tag_moves_alone(table: Table) -> None:
    index_head(table, BALLS)
    first = table.refresh().metadata.current_snapshot_id or 0
    table.append(clustered(400, 50, CENTERS[4].tolist()))
    index_head(table, BALLS)
    table.refresh().manage_snapshots().rollback_to_snapshot(first).commit()
    assert index_head(table, BALLS).action is Action.RETAGGED
    assert require_exact(table) is Coverage.EXACT_VERSION


def test_rows_that_the_version_has_as_deleted_are_found_in_an_older_snapshot(table: Table) -> None:
    """The balls of their file were made without them: there they rule out nothing."""
    before = table.metadata.current_snapshot_id or 0
    lone = clustered(900, 1, (40 * CENTERS[0]).tolist())
    table.append(pa.concat_tables([clustered(901, 60, CENTERS[0].tolist()), lone]))
    with_lone = table.refresh().metadata.current_snapshot_id or 0
    path = next(file.path for file in live_files(table, with_lone).files if file.record_count == 61)
    append_position_deletes(table, {path: np.array([60])})
    index_head(table, BALLS)
    query = np.asarray(lone["embedding"].to_pylist(), np.float32)
    reader = open_index(table.refresh(), BALLS, snapshot=with_lone, storage=STORAGE)
    assert reader.search(query, 1, columns=["id"]).rows["id"].to_pylist() == [900]
    assert reader.coverage is Coverage.NEAREST_VERSION_AND_TAIL
    assert open_index(table, BALLS, snapshot=before, storage=STORAGE).search(query, 1).rows["id"][0].as_py() != 900


def test_bytes_do_not_depend_on_threads(table: Table) -> None:
    balls = []
    for threads in (1, 2):
        definition = replace(BALLS, name=f"b{threads}")
        index_head(table, definition, threads=threads)
        version = tagged_version(table, definition.name)
        assert version is not None
        index = read_centroids(open_version(version, STORAGE), STORAGE)
        balls.append((index.centroids.tobytes(), index.max_distances.tobytes(), index.file_ordinals.tobytes()))
    assert balls[0] == balls[1]


def test_a_row_outside_of_its_balls_is_published_by_nobody(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    partition_balls = enclosure.partition_balls
    monkeypatch.setattr(
        enclosure, "partition_balls", lambda reach, centers: partition_balls(reach * np.float32(0.5), centers)
    )
    with pytest.raises(CoverageError, match="lie outside of its balls"):
        index_head(table, BALLS)
    monkeypatch.setattr(proof, "draw_rows", lambda *_: [])
    index_head(table, BALLS)
    version = tagged_version(table, "b")
    assert version is not None
    faults = check_integrity(RunContext(table, STORAGE), version).faults
    assert len(faults) == 4
    assert "rows lie in none of its balls" in faults[0]


def test_a_version_that_lacks_a_live_file_is_not_published(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ball_index.file_table

    def other(*arguments: Any) -> tuple[CoveredFile, ...]:
        first, *others = real(*arguments)
        return replace(first, present=False), *others

    monkeypatch.setattr(ball_index, "file_table", other)
    with pytest.raises(CoverageError, match="is live in only one of snapshot and index"):
        index_head(table, BALLS)


def test_a_file_without_a_ball_is_a_fault_where_balls_are_all_there_is(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enclosure, "partition_balls", lambda *_: [])
    index_head(table, BALLS)
    version = tagged_version(table, "b")
    assert version is not None
    faults = check_integrity(RunContext(table, STORAGE), version).faults
    assert ["100 of 100 rows lie in none of its balls" in fault for fault in faults] == [True] * 4


def test_rows_that_the_file_table_does_not_count_are_a_fault(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    enclose = enclosure.enclose

    def miscounting(task: enclosure.EnclosureTask) -> object:
        read = enclose(task)
        return replace(read, live_rows=tuple((slot, rows - 1) for slot, rows in read.live_rows))

    monkeypatch.setattr("icepuffin.ops.index.balls.enclose", miscounting)
    index_head(table, BALLS)
    version = tagged_version(table, "b")
    assert version is not None
    faults = check_integrity(RunContext(table, STORAGE), version).faults
    assert "100 live rows have a vector, the routing blob says 99" in faults[0]


def test_rows_without_a_vector_are_in_no_ball(table_factory: TableFactory) -> None:
    new_table = table_factory()
    nothing = clustered(0, 30, CENTERS[0].tolist()).to_pydict()
    nothing["embedding"] = [None] * 30
    new_table.append(pa.table(nothing, schema=ROWS))
    assert index_head(new_table, BALLS).action is Action.EMPTY
    new_table.append(clustered(30, 40, CENTERS[1].tolist()))
    report = index_head(new_table, BALLS)
    assert (report.rows, report.without_vector) == (40, 30)
    assert require_exact(new_table) is Coverage.EXACT_VERSION


def test_conditions_are_evaluated_by_the_values_that_the_version_keeps(table: Table) -> None:
    definition = replace(BALLS, filters=("section",))
    index_head(table, definition)
    table.append(clustered(400, 50, CENTERS[4].tolist()))
    index_head(table, definition)
    query = np.asarray(CENTERS[1], np.float32)
    result = open_index(table.refresh(), definition, storage=STORAGE).search(query, 5, where="section = 'section 3'")
    exact = open_exact(table, "embedding", "l2", storage=STORAGE).search(query, 5, where="section = 'section 3'")
    assert result.rows.equals(exact.rows)
    assert result.profile.condition == "by the index's values of section"
    assert require_exact(table, definition) is Coverage.EXACT_VERSION


def test_parameters_of_graphs_change_nothing_and_are_said_to(table: Table) -> None:
    index_head(table, BALLS)
    assert index_head(table, replace(BALLS, max_degree=8, vectors="f16")).action is Action.REUSED
    reader = open_index(table, BALLS, storage=STORAGE)
    query = np.asarray(CENTERS[1], np.float32)
    plain, narrow = reader.search(query, 5), reader.search(query, 5, search_list=10)
    assert plain.rows.equals(narrow.rows)
    assert plain.warnings == ()
    assert "no graphs" in narrow.warnings[0]
    assert reader.stats().why.endswith("answers are exact")


def test_an_index_gets_graphs_when_its_definition_does(table: Table) -> None:
    index_head(table, BALLS)
    report = index_head(table, replace(BALLS, method="diskann", max_degree=16, target_recall=0.5))
    assert (report.action, report.shards) == (Action.BUILT, 1)


def test_an_index_without_graphs_is_answered_by_no_version_with_graphs(table: Table) -> None:
    """Not of this snapshot, whichever version is newer; and not of an older one whose own version has graphs."""
    weak = replace(BALLS, method="diskann", max_degree=4, search_list=8, target_recall=0.0)
    index_head(table, weak)
    first = table.refresh().metadata.snapshots[-2].snapshot_id
    assert open_index(table, BALLS, storage=STORAGE).coverage is Coverage.EXACT_SCAN
    table.append(clustered(400, 50, CENTERS[4].tolist()))
    for definition, action in ((BALLS, Action.BUILT), (weak, Action.REFRESHED), (BALLS, Action.RETAGGED)):
        assert index_head(table, definition).action is action
    reader = open_index(table.refresh(), BALLS, storage=STORAGE)
    assert reader.version == tagged_version(table, "b")
    assert reader.search(np.asarray(CENTERS[1], np.float32), 5).profile.strategy == "pruned scan"
    assert require_exact(table) is Coverage.EXACT_VERSION
    older = open_index(table, BALLS, snapshot=first, storage=STORAGE)
    assert (older.coverage, older.version) == (Coverage.NEAREST_VERSION_AND_TAIL, reader.version)
    assert open_index(table, weak, snapshot=first, storage=STORAGE).coverage is Coverage.EXACT_VERSION


def test_an_answer_without_the_rows_that_the_index_lacks_is_no_proof(table: Table) -> None:
    index_head(table, BALLS)
    table.append(clustered(400, 50, CENTERS[4].tolist()))
    reader = open_index(table.refresh(), BALLS, stale="nearest-only", storage=STORAGE)
    result = reader.search(np.asarray(CENTERS[4], np.float32), 5, columns=["id"], search_list=50)
    assert max(result.rows["id"].to_pylist()) < 400
    assert result.coverage is Coverage.NEAREST_VERSION_ONLY
    assert result.profile.certificate is None
    assert "certified" not in result.explain()
    assert not any("exact" in text for text in (*result.warnings, reader.stats().why))


def test_vectors_too_far_apart_for_floats_rule_out_no_file_wrongly(table_factory: TableFactory) -> None:
    new_table = table_factory()
    for number in range(6):
        center = np.full(DIMS, 3e38 if number == 0 else -3e38 + number * 1e36)
        new_table.append(clustered(10 * number, 3, center.tolist()))
    index_head(new_table, BALLS)
    query_vectors = np.full((2, DIMS), 2.97e38) * [[1], [-1]]
    exact = open_exact(new_table.refresh(), "embedding", "l2", storage=STORAGE)
    reader = open_index(new_table, BALLS, storage=STORAGE)
    for query in (query_vectors, query_vectors[:1], query_vectors[1:]):
        assert reader.search(query, 5, columns=["id"]).rows.equals(exact.search(query, 5, columns=["id"]).rows)
    near = reader.within(query_vectors, 3e38, columns=["id"])
    assert near.rows.equals(exact.within(query_vectors, 3e38, columns=["id"]).rows)
    assert len(near.rows) == 18


def test_a_file_without_balls_or_with_those_of_another_metric_has_a_fault(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = centroid_blob.encode
    monkeypatch.setattr(centroid_blob, "encode", lambda index: encode(replace(index, metric=1)))
    index_head(table, BALLS)
    version = tagged_version(table, "b")
    assert version is not None
    assert "the centroid blob has metric 1, the index 0" in check_integrity(RunContext(table, STORAGE), version).faults
    result = open_index(table, BALLS, storage=STORAGE).search(np.asarray(CENTERS[1], np.float32), 5)
    assert "no file is pruned" in result.warnings[0]
    file = Path(version.puffin_path.removeprefix("file://"))
    file.write_bytes(file.read_bytes().replace(b"flockdb-ann-centroid-v1", b"flockdb-ann-centroid-v9"))
    assert "no centroid blob" in check_integrity(RunContext(table, STORAGE), version).faults[0]


def test_a_metric_that_there_is_not_is_refused() -> None:
    index = centroid_blob.CentroidIndex(
        4, 1, np.zeros((1, 1), np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32), ("a",)
    )
    with pytest.raises(BadBlobError, match="unknown metric 4"):
        centroid_blob.decode(centroid_blob.encode(index))


def test_inner_product_is_refused_with_the_reason() -> None:
    with pytest.raises(DefinitionError, match="triangle inequality"):
        replace(BALLS, metric="ip")


def test_more_files_have_fewer_balls_each() -> None:
    assert balls_per_file(10, 768) == MAX_BALLS
    assert balls_per_file(10_000, 768) == 1
    assert balls_per_file(5_000, 768) * 5_000 * (4 * 768 + 8) <= BALL_BYTES
    assert balls_per_file(1_000_000, 768) == 1
