import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

import icepuffin
from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding.bound_versions import tagged_version
from icepuffin.ops.index.definitions.ddl import create_index, drop_index
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.model import Action, SnapshotId
from icepuffin.ops.rows.datafile import DataFileError
from icepuffin.ops.search import opening
from icepuffin.ops.search.errors import IndexUnavailableError, QueryError, UnknownColumnError
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.result import Coverage, StalePolicy
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.shared_deletes import distinct_deletes
from icepuffin.ops.table.snapshots import UnknownSnapshotError
from icepuffin.ops.tasks.task_runner import LocalRunner
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.catalog.equality import delete_where_id_is
from tests.ops.index.comparison import DEFINITION, answer_with_recall, ids_by_query, index_head

TableFactory = Callable[..., Table]


def test_without_an_index_the_answer_is_exact_and_its_coverage_is_a_scan(table: Table) -> None:
    found, recall = answer_with_recall(table)
    assert found.coverage is Coverage.EXACT_SCAN
    assert found.index_snapshot_id is None
    assert recall == 1.0


def test_exact_search_equals_brute_force(table: Table) -> None:
    rows = table.scan().to_arrow()
    vectors = np.array(rows["embedding"].to_pylist(), np.float32)
    query_vectors = queries(7)
    result = open_exact(table, "embedding", Metric.L2, storage=STORAGE).search(query_vectors, 5, columns=["id"])
    distances = np.linalg.norm(vectors[None] - query_vectors[:, None], axis=2)
    wanted = np.array(rows["id"])[np.argsort(distances, axis=1)[:, :5]]
    assert list(ids_by_query(result.rows).values()) == wanted.tolist()
    np.testing.assert_allclose(result.rows["distance"], np.sort(distances, axis=1)[:, :5].reshape(-1), rtol=1e-5)


def test_rows_come_with_their_columns_in_rank_order(table: Table) -> None:
    index_head(table)
    found = open_index(table, DEFINITION, storage=STORAGE).search(queries(3), 4, columns=["name", "id"])
    rows = found.rows.to_pylist()
    assert found.rows.column_names == ["query", "rank", "distance", "name", "id"]
    assert [row["rank"] for row in rows] == [1, 2, 3, 4] * 3
    assert all(row["name"] == f"name {row['id']}" for row in rows)
    assert all(a["distance"] <= b["distance"] for a, b in pairwise(rows) if a["query"] == b["query"])


def test_columns_come_in_the_order_of_the_request_in_every_search(table: Table) -> None:
    """The second search has the row groups that the first one decoded."""
    index_head(table)
    reader = open_index(table, DEFINITION, storage=STORAGE)
    for names in (["section", "name"], ["name", "section"], ["section", "name", "id"]):
        for _ in range(3):
            rows = reader.search(queries(1), 4, columns=names).rows.select(names).to_pylist()
            assert [(row["name"][:5], row["section"][:7]) for row in rows] == [("name ", "section")] * 4
            assert all("id" not in row or row["name"] == f"name {row['id']}" for row in rows)
    twice = reader.search(queries(1), 4, columns=["name", "id", "name"])
    assert twice.rows.column_names[3:] == ["name", "id"]


def test_rows_added_since_the_index_are_found_by_scanning_them(table: Table) -> None:
    index_head(table)
    table.refresh()
    table.append(make_rows(600, 700))
    table.refresh()
    found, recall = answer_with_recall(table)
    assert found.coverage is Coverage.NEAREST_VERSION_AND_TAIL
    assert found.profile.tail_rows == 100
    assert recall >= 0.95
    reader = open_index(table, DEFINITION, storage=STORAGE)
    assert len(reader.scanned) == 1
    assert reader.scanned == reader.tail


def test_rows_deleted_since_the_index_are_not_returned(table: Table) -> None:
    index_head(table)
    table.refresh()
    file = live_files(table, table.metadata.current_snapshot_id or 0).files[0]
    append_position_deletes(table, {file.path: np.arange(0, 150)})
    found, recall = answer_with_recall(table)
    assert found.coverage is Coverage.NEAREST_VERSION_AND_TAIL
    assert found.profile.tail_rows == 0
    assert recall >= 0.95


def test_an_older_snapshot_brings_back_rows_that_a_newer_index_buried(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = table.metadata.current_snapshot_id
    file = live_files(table, before or 0).files[0]
    append_position_deletes(table, {file.path: np.arange(0, 150)})
    index_head(table)
    found, recall = answer_with_recall(table, before)
    assert found.coverage is Coverage.NEAREST_VERSION_AND_TAIL
    assert recall >= 0.95
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE_MEMORY_MB", "0")  # else the index is warm, and no task has to read it
    for options in ({}, {"runner": LocalRunner(1), "in_process_mb": 0}):
        alone = open_index(table, DEFINITION, snapshot=before, storage=STORAGE, stale="nearest-only", **options)
        assert len(alone.search(queries(1), 600)) == 450, "rows of a file that the index lacks some rows of, too"


def test_the_policy_for_stale_indexes_is_obeyed(table: Table) -> None:
    index_head(table)
    table.refresh()
    table.append(make_rows(600, 700))
    table.refresh()
    with pytest.raises(IndexUnavailableError, match="refresh it"):
        open_index(table, DEFINITION, storage=STORAGE, stale=StalePolicy.FAIL)
    exact = open_index(table, DEFINITION, storage=STORAGE, stale=StalePolicy.EXACT).search(queries(2))
    assert exact.coverage is Coverage.EXACT_SCAN
    nearest = open_index(table, DEFINITION, storage=STORAGE, stale="nearest-only").search(queries(2))
    assert nearest.coverage is Coverage.NEAREST_VERSION_ONLY
    assert "not in the index" in nearest.warnings[0]
    assert max(nearest.rows["id"].to_pylist()) < 600
    with pytest.raises(QueryError, match="complete, exact, nearest-only, fail"):
        open_index(table, DEFINITION, storage=STORAGE, stale="newest")


def test_a_snapshot_can_be_named_by_id_tag_branch_and_time(table: Table) -> None:
    first = table.metadata.snapshot_log[0]
    table.manage_snapshots().create_tag(first.snapshot_id, "v1").commit()
    table.refresh()
    at = datetime.fromtimestamp(first.timestamp_ms / 1000, UTC)
    for name in (first.snapshot_id, str(first.snapshot_id), "v1", at, at.isoformat()):
        assert open_index(table, DEFINITION, snapshot=name, storage=STORAGE).snapshot_id == first.snapshot_id
    assert open_index(table, DEFINITION, snapshot="main", storage=STORAGE).snapshot_id != first.snapshot_id
    for name in (17, "no such ref", datetime(2001, 1, 1, tzinfo=UTC)):
        with pytest.raises(UnknownSnapshotError):
            open_index(table, DEFINITION, snapshot=name, storage=STORAGE)


def test_the_index_tag_names_the_data_snapshot_that_it_is_for(table: Table) -> None:
    report = index_head(table)
    table.refresh()
    assert open_index(table, DEFINITION, snapshot="ann_e", storage=STORAGE).snapshot_id == report.snapshot_id


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float64(), 16)])
def test_queries_may_be_a_column(table: Table, kind: pa.DataType) -> None:
    index_head(table)
    reader = open_index(table, DEFINITION, storage=STORAGE)
    column = pa.chunked_array([pa.array(part.tolist(), kind) for part in np.split(queries(4), 2)])
    assert reader.search(column).rows.equals(reader.search(queries(4)).rows)


def test_more_rows_than_there_are_gives_all(table: Table) -> None:
    index_head(table)
    found = open_index(table, DEFINITION, storage=STORAGE).search(queries(1), 10_000)
    assert sorted(found.rows["id"].to_pylist()) == list(range(600))


@pytest.mark.parametrize(
    ("query", "k", "message"),
    [
        (np.zeros(3, np.float32), 5, "3 dimensions"),
        (np.full(16, np.nan, np.float32), 5, "NaN"),
        (np.zeros(16, np.float32), 0, "at least 1"),
        (np.array([["a"] * 16]), 5, "not numbers"),
    ],
)
def test_a_query_that_has_no_answer_is_refused(table: Table, query: np.ndarray, k: int, message: str) -> None:
    index_head(table)
    with pytest.raises(QueryError, match=message):
        open_index(table, DEFINITION, storage=STORAGE).search(query, k)


def test_an_unknown_column_is_named(table: Table) -> None:
    with pytest.raises(UnknownColumnError, match="'nope'"):
        open_index(table, DEFINITION, storage=STORAGE).search(queries(1), 1, columns=["nope"])
    with pytest.raises(QueryError, match=r"such as \['name'\]"):
        open_index(table, DEFINITION, storage=STORAGE).search(queries(1), 1, columns="name")


def test_a_missing_data_file_is_named(table: Table) -> None:
    index_head(table)
    reader = open_index(table, DEFINITION, storage=STORAGE)
    for file in live_files(table, reader.snapshot_id).files:
        to_path(file.path).unlink()
    with pytest.raises(DataFileError, match="missing"):
        reader.search(queries(1), 3)


def test_a_lost_or_broken_index_file_leads_to_the_exact_answer(table: Table) -> None:
    report = index_head(table)
    assert report.puffin_path is not None
    path = to_path(report.puffin_path)
    data = bytearray(path.read_bytes())
    data[200] ^= 0xFF
    path.write_bytes(bytes(data))
    found, recall = answer_with_recall(table)
    assert (found.coverage, recall) == (Coverage.EXACT_SCAN, 1.0)
    path.unlink()
    assert answer_with_recall(table)[0].coverage is Coverage.EXACT_SCAN


def _corrupt(report: IndexReport) -> None:
    """Flip a byte in the middle of the last shard; footer and routing stay whole."""
    path = Path(to_path(str(report.puffin_path)))
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 0xFF
    path.write_bytes(data)


def _remove(report: IndexReport) -> None:
    Path(to_path(str(report.puffin_path))).unlink()


@pytest.mark.parametrize("harm", [_corrupt, _remove])
def test_where_an_index_file_cannot_be_read_the_answer_is_exact_with_a_warning(
    table: Table, harm: Callable[[IndexReport], None]
) -> None:
    harm(index_head(table))
    result, recall = answer_with_recall(table)
    assert result.coverage is Coverage.EXACT_SCAN
    assert result.profile.why == "no version can be read"
    assert any(".puffin" in warning for warning in result.warnings)
    assert recall == 1.0
    with pytest.raises(IndexUnavailableError, match=r"\.puffin"):
        open_index(table, DEFINITION, storage=STORAGE, stale=StalePolicy.FAIL)


def test_an_older_version_stands_in_for_one_that_cannot_be_read(table: Table) -> None:
    index_head(table)
    table.refresh()
    table.append(make_rows(600, 700))
    broken = index_head(table)
    _corrupt(broken)
    found, recall = answer_with_recall(table)
    assert found.coverage is Coverage.NEAREST_VERSION_AND_TAIL
    assert found.warnings
    assert recall >= 0.95
    table.refresh().append(make_rows(700, 710))
    _remove(broken)
    (warning,) = open_index(table, DEFINITION, storage=STORAGE).warnings
    assert str(broken.puffin_path) in warning, "of another snapshot's version, too"


def test_of_the_versions_of_other_snapshots_the_one_that_shares_most_rows_answers(table: Table) -> None:
    before = table.metadata.current_snapshot_id
    table.append(make_rows(600, 650))
    larger = index_head(table)
    table.delete("id < 300")
    index_head(table)
    reader = open_index(table, DEFINITION, snapshot=before, storage=STORAGE)
    assert (reader.version and reader.version.base_snapshot_id, reader.tail) == (larger.snapshot_id, ())


def test_a_reader_shows_what_it_answers_by(table: Table) -> None:
    assert open_index(table, DEFINITION, storage=STORAGE).why == "the index has no version yet"
    report = index_head(table)
    table.append(make_rows(600, 610))
    reader = open_index(table, DEFINITION, storage=STORAGE)
    version = f"that of {report.snapshot_id} shares most rows with it"
    assert reader.fields() == {
        "answers": f"nearest-version+tail: the snapshot has no readable version of its own; {version}",
        "where": "in-process",
        "version": f"made for snapshot {report.snapshot_id}",
        "scanned": "the rows of 1 file",
    }
    _remove(report)
    exact = open_index(table, DEFINITION, storage=STORAGE)
    assert "no index, snapshot" in repr(exact)
    assert [*exact.fields()] == ["answers", "where", "scanned", "warning"]
    assert exact.fields()["scanned"] == "the rows of 3 files"
    with pytest.raises(TypeError, match=r"open one in each process, or send queries to it by icepuffin\.knn_join"):
        pickle.dumps(reader)


def test_nodes_of_files_that_are_scanned_take_no_places_in_the_beam(table: Table) -> None:
    """A version that lacks some live rows of a file: the file is scanned, and its nodes must not crowd out others."""
    before = table.metadata.current_snapshot_id
    file = live_files(table, before or 0).files[0]
    append_position_deletes(table, {file.path: np.arange(0, 10)})
    index_head(table)
    found = open_index(table, DEFINITION, snapshot=before, storage=STORAGE).search(queries(3), 500, columns=["id"])
    assert found.coverage is Coverage.NEAREST_VERSION_AND_TAIL
    assert found.rows.num_rows == 1500


def test_columns_with_names_of_the_answers_own_are_told_apart(sql_catalog: Catalog) -> None:
    rows = make_rows(0, 60).rename_columns(["id", "rank", "table_rank", "embedding"])
    table = sql_catalog.create_table("db.clash", rows.schema)
    table.append(rows)
    index_head(table)
    result = open_index(table, DEFINITION, storage=STORAGE).search(queries(2), 3)
    assert result.rows.column_names == ["query", "rank", "distance", "id", "table_table_rank", "table_rank"]
    assert result.rows["rank"].to_pylist() == [1, 2, 3] * 2
    assert all(row["table_table_rank"] == f"name {row['id']}" for row in result.rows.to_pylist())
    assert all(row["table_rank"] == f"section {row['id'] % 5}" for row in result.rows.to_pylist())


def test_partitions_of_any_name_are_read(table_factory: TableFactory) -> None:
    """Writers name a folder by the value, percent-encoded, and that is its name: `section=c%2Fd`."""
    table = table_factory()
    with table.update_spec() as spec:
        spec.add_identity("section")
    rows = make_rows(0, 60)
    names = ["a b", "c/d", "e%f", "g#h", "k=l", "ü+ñ"] * 10
    table.append(rows.set_column(2, "section", pa.array(names)))
    index_head(table)
    found, recall = answer_with_recall(table)
    assert (found.coverage, len(live_files(table, found.snapshot_id).files)) == (Coverage.EXACT_VERSION, 6)
    assert recall >= 0.95
    reader = open_index(table, DEFINITION, storage=STORAGE)
    assert set(reader.search(queries(1), where="section = 'c/d'").rows["section"].to_pylist()) == {"c/d"}


def test_a_version_built_otherwise_still_answers(table: Table) -> None:
    index_head(table)
    found = open_index(table, replace(DEFINITION, max_degree=8), storage=STORAGE).search(queries(2))
    assert found.coverage is Coverage.EXACT_VERSION
    other_metric = open_index(table, replace(DEFINITION, metric="cosine"), storage=STORAGE).search(queries(2))
    assert other_metric.coverage is Coverage.EXACT_SCAN


def test_the_version_that_was_built_as_defined_answers_before_newer_ones(table_factory: TableFactory) -> None:
    table = table_factory()
    table.append(make_rows(0, 40))
    narrow = replace(DEFINITION, shards=1, max_degree=8, target_recall=0.0)
    wide = replace(narrow, max_degree=16)
    actions = [index_head(table, definition).action for definition in (narrow, wide, narrow)]
    assert actions == [Action.BUILT, Action.BUILT, Action.RETAGGED]
    tagged = tagged_version(table.refresh(), "e")
    assert open_index(table, narrow, storage=STORAGE).version == tagged
    assert open_index(table, wide, storage=STORAGE).version != tagged


def test_deletes_of_files_that_are_gone_take_no_row_from_the_count(table: Table) -> None:
    """A summary counts them until somebody removes the deletes' files."""
    snapshot_id = SnapshotId(table.refresh().metadata.current_snapshot_id or 0)
    first, *_ = live_files(table, snapshot_id).files
    append_position_deletes(table, {first.path: np.arange(7)})
    rows = table.refresh().scan().count()
    assert icepuffin.open_exact(table, "embedding", "l2", storage=STORAGE).row_count == rows
    table.overwrite(make_rows(9_000, 9_010))
    summary = table.refresh().metadata.current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert (summary["total-records"], summary["total-position-deletes"]) == ("10", "7")
    assert icepuffin.open_exact(table, "embedding", "l2", storage=STORAGE).row_count == 10


def test_keys_of_equality_deletes_take_no_row_from_the_count(table: Table) -> None:
    """Which rows have them is known once files are read."""
    rows = table.refresh().scan().count()
    delete_where_id_is(table, *range(90_000, 90_005))
    (delete,) = distinct_deletes(live_files(table, SnapshotId(table.metadata.current_snapshot_id or 0)).files)
    assert delete.record_count == 5
    assert icepuffin.open_exact(table, "embedding", "l2", storage=STORAGE).row_count == rows


def test_a_reader_stays_as_it_is_when_its_table_is_reloaded(table: Table) -> None:
    """Its snapshot may have expired from the metadata; its files are there."""
    index_head(table)
    reader = open_index(table, DEFINITION, storage=STORAGE)
    rows, before = reader.row_count, table.metadata.current_snapshot_id or 0
    table.refresh().overwrite(make_rows(9_000, 9_010))
    tags = [name for name, ref in table.metadata.refs.items() if name != "main"]
    for tag in tags:
        table.manage_snapshots().remove_tag(tag).commit()
    table.maintenance.expire_snapshots().by_id(before).commit()
    assert table.refresh().metadata.snapshot_by_id(before) is None
    assert reader.row_count == rows
    found = reader.search(queries(1), 3, columns=["id"], where="id < 9000")
    assert len(found.rows) == 3


def test_a_table_that_is_reloaded_meanwhile_does_not_mix_two_states(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody makes the index anew with another metric, and another thread reloads the table, while it is opened."""
    create_index(table, DEFINITION)
    index_head(table.refresh())
    read_definition = opening.load_definition

    def load_definition(read: Table, name: str) -> IndexDefinition:
        definition = read_definition(read, name)
        drop_index(table.catalog.load_table(table.name()), name)
        create_index(table.catalog.load_table(table.name()), replace(DEFINITION, metric="cosine"))
        table.refresh()
        return definition

    with monkeypatch.context() as patch:
        patch.setattr(opening, "load_definition", load_definition)
        reader = open_index(table, "e", storage=STORAGE)
    assert reader.metric == "l2"
    assert reader._newest(pytest.fail).metric == "cosine", "what is newer than the state that was opened is seen"
