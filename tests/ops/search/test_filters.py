"""Searches under a condition: the same rows as brute force over the matching ones, whatever the strategy."""

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from itertools import product
from multiprocessing import get_context
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, Or, StartsWith
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.filters.matches import Matches, find_matches
from icepuffin.ops.filters.predicate import RowPredicate
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.rows.datafile import DataFileError
from icepuffin.ops.search.errors import FilterError
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.manifests import PlannedManifest
from tests.conftest import DIMS, ROWS, STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, ids_by_query, index_head
from tests.ops.search.runners import LabelRecorder, SeveralAtOnce
from tests.patience import PATIENCE

TableFactory = Callable[..., Table]
LEAN = IndexDefinition(
    name="lean", column="embedding", metric="cosine", max_degree=16, search_list=40, shards=2, vectors="none",
    target_recall=0.5,
)  # fmt: skip


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    new_table = table_factory()
    for start in range(0, 1800, 600):
        new_table.append(make_rows(start, start + 600))
    return new_table


def true_ids(table: Table, where: str, metric: str, k: int = 10) -> dict[int, list[int]]:
    """Brute force over PyIceberg's own filtered scan."""
    rows = table.scan(row_filter=where).to_arrow()
    ids, vectors = np.asarray(rows["id"]), np.array(rows["embedding"].to_pylist(), np.float64).reshape(len(rows), 16)
    query_vectors = queries().astype(np.float64)
    if metric == "cosine":
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        query_vectors = query_vectors / np.linalg.norm(query_vectors, axis=1, keepdims=True)
    distances = np.linalg.norm(vectors[None] - query_vectors[:, None], axis=2)
    return dict(enumerate(ids[np.argsort(distances, axis=1)[:, :k]].tolist()))


@pytest.mark.parametrize("version", ["1", "2"])
def test_every_format_version_is_filtered(table_factory: TableFactory, version: str) -> None:
    made = table_factory(**{"format-version": version})
    made.append(make_rows(0, 50))
    found = open_exact(made, "embedding", Metric.L2).search(
        queries(1), 20, where="section = 'section 3'", columns=["id"]
    )
    assert sorted(found.rows["id"].to_pylist()) == list(range(3, 50, 5))


CONDITIONS = [
    "id >= 0",
    "section = 'section 3'",
    "id >= 1700 and section != 'section 1'",
    "id = 77",
    "name like 'name 17%'",
]


@pytest.mark.parametrize("definition", [DEFINITION, LEAN], ids=["fat", "lean"])
@pytest.mark.parametrize("where", CONDITIONS)
def test_a_condition_gives_the_nearest_matching_rows(table: Table, definition: IndexDefinition, where: str) -> None:
    index_head(table, definition)
    result = open_index(table, definition, storage=STORAGE).search(queries(), where=where, columns=["id"])
    assert result.coverage is Coverage.EXACT_VERSION
    wanted, own_rows = true_ids(table, where, definition.metric), ids_by_query(result.rows)
    assert all(len(own_rows[query]) == len(wanted[query]) for query in wanted)
    assert np.mean([len(set(own_rows[query]) & set(wanted[query])) / len(wanted[query]) for query in wanted]) >= 0.95
    matching = set(table.scan(row_filter=where, selected_fields=("id",)).to_arrow()["id"].to_pylist())
    assert result.profile.matching_rows == len(matching)
    assert {row for rows in own_rows.values() for row in rows} <= matching


def test_few_matches_are_compared_and_many_are_walked_to(table: Table) -> None:
    index_head(table)
    reader = open_index(table, DEFINITION, storage=STORAGE)
    assert reader.search(queries(1), where="id < 20").profile.strategy == "exact over matches"
    wide = reader.search(queries(1), 1, search_list=10, where="id >= 5")
    assert wide.profile.strategy == "filtered beam"
    assert wide.profile.distances < 1700


def test_a_condition_is_evaluated_once(table: Table) -> None:
    reader = open_index(table, DEFINITION, storage=STORAGE)
    first = reader.search(queries(2), where="id < 20", columns=["id"])
    for file in live_files(table, table.metadata.current_snapshot_id or 0).files:
        path = to_path(file.path)
        path.rename(path.with_suffix(".away"))
    with pytest.raises(DataFileError):
        reader.search(queries(2), where="id < 21", columns=["id"])
    assert reader._pipeline.conditions.cache.get("id < 20", lambda: pytest.fail("evaluated again")).count == 20
    assert first.profile.matching_rows == 20


@pytest.mark.parametrize("where", ["id >= 5", "id < 20"])
def test_nodes_are_masked_once_a_condition(table: Table, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index_head(table)
    reader = open_index(table, DEFINITION, storage=STORAGE)
    first = reader.search(queries(2), where=where, columns=["id"])
    monkeypatch.setattr(Matches, "mask", lambda *_: pytest.fail("masked again"))
    assert reader.search(queries(2), where=where, columns=["id"]).rows.equals(first.rows)
    assert set(first.rows["id"].to_pylist()) <= set(
        reader.within(queries(2), 100.0, where=where, columns=["id"]).rows["id"].to_pylist()
    )


def test_no_match_is_an_empty_answer(table: Table) -> None:
    index_head(table)
    found = open_index(table, DEFINITION, storage=STORAGE).search(queries(2), where="id = -1")
    assert found.rows.num_rows == 0
    assert found.profile.matching_rows == 0


def test_rows_that_the_index_lacks_are_filtered_too(table: Table) -> None:
    index_head(table)
    table.refresh().append(make_rows(1800, 2000))
    result = open_index(table, DEFINITION, storage=STORAGE).search(queries(), where="id >= 1790", columns=["id"])
    assert result.coverage is Coverage.NEAREST_VERSION_AND_TAIL
    assert result.profile.tail_rows == 200
    assert ids_by_query(result.rows) == true_ids(table, "id >= 1790", "l2")


def test_deleted_rows_do_not_match(table: Table) -> None:
    file = live_files(table, table.metadata.current_snapshot_id or 0).files[0]
    append_position_deletes(table, {file.path: np.arange(0, 300)})
    index_head(table)
    found = open_index(table, DEFINITION, storage=STORAGE).search(queries(1), 5000, where="section = 'section 0'")
    assert found.rows.num_rows == found.profile.matching_rows == 300


def test_without_an_index_the_condition_holds_as_well(table: Table) -> None:
    found = open_exact(table, "embedding", "l2", storage=STORAGE).search(queries(), where="id < 90", columns=["id"])
    assert ids_by_query(found.rows) == true_ids(table, "id < 90", "l2")


def test_a_condition_means_the_columns_of_the_snapshot(table: Table) -> None:
    index_head(table)
    before = table.metadata.current_snapshot_id
    with table.update_schema() as update:
        update.rename_column("section", "part")
    table.append(make_rows(1800, 1810).rename_columns(["id", "name", "part", "embedding"]))
    old = open_index(table, DEFINITION, snapshot=before, storage=STORAGE)
    assert old.search(queries(1), where="section = 'section 1'").profile.matching_rows == 360
    with pytest.raises(FilterError, match="its columns are id, name, section"):
        old.search(queries(1), where="part = 'section 1'")


@pytest.mark.parametrize("filters", [(), ("shop.part",)])
def test_a_condition_may_be_on_a_column_whose_name_has_a_dot(table: Table, filters: tuple[str, ...]) -> None:
    """PyIceberg's name for a field of a struct is written alike, and stays refused."""
    with table.update_schema() as update:
        update.rename_column("section", "shop")
    rows = make_rows(1800, 2400)
    structs = pa.array([{"name": name} for name in rows["name"].to_pylist()])
    dotted = rows.drop_columns(["section"]).append_column("shop.part", rows["section"]).append_column("whole", structs)
    with table.transaction() as transaction, transaction.update_schema() as update:
        update.union_by_name(dotted.schema)
    table.append(dotted)
    definition = replace(DEFINITION, filters=filters)
    index_head(table, definition)
    reader = open_index(table.refresh(), definition, storage=STORAGE)
    where = EqualTo("shop.part", "section 1")  # type: ignore[arg-type, misc]
    expected = [row["id"] for row in rows.select(["id", "section"]).to_pylist() if row["section"] == "section 1"]
    for condition in (where, "shop.part = 'section 1'", "\"shop.part\" = 'section 1' and id > 0"):
        found = reader.search(queries(1), k=1_000, where=condition, columns=["id", "shop.part"]).rows
        assert sorted(found["id"].to_pylist()) == expected
        assert set(found["shop.part"].to_pylist()) == {"section 1"}
    with pytest.raises(FilterError, match=r"on a nested column, whole\.name"):
        reader.search(queries(1), where="whole.name = 'x'")


def test_a_change_of_the_schema_alone_is_seen_at_the_head_of_main(table: Table) -> None:
    create_index(table, DEFINITION)
    index_head(table)
    head = table.metadata.current_snapshot_id
    with table.update_schema() as update:
        update.rename_column("section", "part")
        update.rename_column("embedding", "vector")
        update.add_column("added", StringType())
    for snapshot in (None, "main"):
        now = open_index(table.refresh(), "e", snapshot=snapshot, storage=STORAGE)
        found = now.search(queries(1), 3, where="part = 'section 1' and added is null", columns=["part", "added"])
        assert found.rows["part"].to_pylist() == ["section 1"] * 3
        assert found.rows["added"].null_count == 3
        assert now.search(queries(1), where="added = 'x'").rows.num_rows == 0
    as_then = open_index(table, "e", snapshot=head, storage=STORAGE)
    assert as_then.search(queries(1), 3, where="section = 'section 1'").rows.num_rows == 3


def test_files_that_statistics_exclude_are_not_read(table: Table) -> None:
    live = live_files(table, table.metadata.current_snapshot_id or 0)
    condition = GreaterThanOrEqual("id", 1200)  # type: ignore[arg-type, misc]
    matches = find_matches(table, live, table.schema(), condition, STORAGE)
    assert (matches.files_read, matches.count) == (1, 600)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("section = ", "cannot be read"),
        ("", "cannot be read"),
        ("nothing = 1", "its columns are"),
        ("id = 'x'", "does not fit"),
        (5, "of type int: write a text"),
        ("section = 'a\ud800'", "half of a surrogate pair"),
        ("id = 1 and section in ('\udfff', 'x')", "half of a surrogate pair"),
        (EqualTo("section", "\ud800"), "half of a surrogate pair"),
        (StartsWith("section", "\ud800"), "half of a surrogate pair"),
        (reduce(Or, [EqualTo("id", number) for number in range(1_000)]), r"nested too deeply: .* Or\(\*parts\)"),
    ],
)
def test_a_condition_that_cannot_be_is_refused(table: Table, where: Any, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        open_index(table, DEFINITION, storage=STORAGE).search(queries(1), where=where)


def test_manifests_are_read_with_the_statistics_of_the_conditions_columns(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of 100 columns take 27 KB per file."""
    entries = []

    def fetched(manifest: PlannedManifest, io: FileIO, discard_deleted: bool = True) -> list[ManifestEntry]:
        entries.extend(own := fetch(manifest, io, discard_deleted))
        return own

    fetch = PlannedManifest.fetch_manifest_entry
    monkeypatch.setattr(PlannedManifest, "fetch_manifest_entry", fetched)
    live = live_files(table, table.metadata.current_snapshot_id or 0)
    matches = find_matches(table, live, table.schema(), "id >= 1200 and section != 'none'", STORAGE)
    assert (matches.files_read, matches.count) == (1, 600)
    ids = {table.schema().find_field(name).field_id for name in ("id", "section")}
    assert len(entries) == 3
    assert all(entry.data_file.lower_bounds.keys() == ids for entry in entries)


def test_a_condition_of_thousands_of_parts_is_evaluated() -> None:
    """In a process of its own: an expression of Arrow with as many parts would end it."""
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    predicate = RowPredicate(" or ".join(f"id > {number}" for number in range(2, 12_000)), schema)

    def evaluate() -> None:
        rows = predicate.satisfied(pa.record_batch({"id": pa.array([1, 2, 3, None, 4])}), np.arange(5))
        assert rows.tolist() == [2, 4]

    child = get_context("fork").Process(target=evaluate)
    child.start()
    child.join(PATIENCE)
    child.kill()
    assert child.exitcode == 0


def test_masks_of_many_files_cost_one_pass() -> None:
    """Each file was looked for among all nodes: 100,000 files took longer than the build."""
    count = 100_000
    files = np.random.default_rng(0).permutation(np.repeat(np.arange(-1, count), 2))
    positions = np.arange(len(files), dtype=np.int64) % 7
    matches = Matches({number: np.array([0, 3]) for number in range(0, count, 2)}, count)
    mask = matches.mask(files, positions)
    assert (mask == ((files >= 0) & (files % 2 == 0) & np.isin(positions, [0, 3]))).all()


@pytest.mark.parametrize("scale", [1e-7, 0.0], ids=["near", "equal"])
def test_directions_rounded_to_f32_do_not_decide_what_matches_are_nearest(
    table_factory: TableFactory, scale: float
) -> None:
    """Under cosine: rows so alike that f32 cannot tell their directions apart, in files of the index and in a tail."""
    rng = np.random.default_rng(0)
    center = rng.standard_normal(DIMS)
    definition = replace(DEFINITION, metric="cosine", shards=3, target_recall=0.01)
    new_table = table_factory()
    for first in (0, 200, 400):
        cluster = center * rng.uniform(0.5, 2.0, (200, 1)) + scale * rng.standard_normal((200, DIMS))
        cluster[::2] += 0.3 * rng.standard_normal((100, DIMS))
        rows = make_rows(first, first + 200).to_pydict()
        new_table.append(pa.table({**rows, "embedding": cluster.astype(np.float32).tolist()}, schema=ROWS))
        if first == 200:
            index_head(new_table, definition)
    exact = open_exact(new_table, definition.column, "cosine", storage=STORAGE)
    query_vectors = np.concatenate([np.stack([center, center + 0.2, -center]), rng.standard_normal((130, DIMS))])
    # before the other: what is in this process's memory is not searched by tasks
    remote = open_index(new_table, definition, storage=STORAGE, runner=SeveralAtOnce(1), in_process_mb=0)
    local = open_index(new_table, definition, storage=STORAGE)
    assert (local.tier, remote.tier) == ("in-process", "distributed")
    for reader, k in product((local, remote), (1, 10, 299, 900)):
        result = reader.search(query_vectors, k, where="id >= 3", columns=["id"], search_list=200)
        expected = exact.search(query_vectors, k, where="id >= 3", columns=["id"])
        assert result.profile.strategy == "exact over matches"
        assert reader.coverage is Coverage.NEAREST_VERSION_AND_TAIL
        assert result.rows.select(["query", "rank", "id"]).equals(expected.rows.select(["query", "rank", "id"]))
        far = np.asarray(expected.rows["distance"])
        assert (np.abs(np.asarray(result.rows["distance"]) - far) <= 1e-7 * np.sqrt(far) + 1e-14).all()


def test_a_condition_on_many_rows_is_evaluated_by_tasks(table: Table) -> None:
    index_head(table)
    for threshold, job, how in ((0, ["evaluate condition"], ", which 3 tasks read"), (100, [], "")):
        runner = LabelRecorder()
        reader = open_index(table, DEFINITION, storage=STORAGE, runner=runner, in_process_mb=threshold)
        runner.jobs.clear()
        for _ in range(2):  # the second time its rows are there
            result = reader.search(queries(), 10, where="section = 'section 3'", columns=["id"])
        assert [label for label in runner.jobs if label != "search shards"] == job
        assert result.profile.condition == f"by the data files{how}"
        assert ids_by_query(result.rows) == true_ids(table, "section = 'section 3'", "l2")
    with pytest.raises(FilterError, match="does not fit"):
        reader.search(queries(1), where="nothing = 3")


def test_doubtful_matches_of_every_group_are_settled_together(table_factory: TableFactory) -> None:
    """Three shards with as many rows that are as near to the query as rounding can tell: the nearest are in each."""
    rng = np.random.default_rng(0)
    definition = replace(DEFINITION, metric="cosine", shards=3, target_recall=0.01)
    table = table_factory()
    query_vectors, *sides = np.linalg.qr(rng.standard_normal((DIMS, 4)))[0].T
    near = rng.permutation(np.repeat(query_vectors + sides, 280, axis=0) * rng.uniform(0.5, 2.0, (840, 1)))
    table.append(
        pa.table({**make_rows(0, 840).to_pydict(), "embedding": near.astype(np.float32).tolist()}, schema=ROWS)
    )
    index_head(table, definition)
    remote = open_index(table.refresh(), definition, storage=STORAGE, runner=SeveralAtOnce(1), in_process_mb=0)
    local = open_index(table, definition, storage=STORAGE)
    assert (local.tier, remote.tier) == ("in-process", "distributed")
    expected = open_exact(table, definition.column, "cosine", storage=STORAGE).search(query_vectors, 64, columns=["id"])
    for reader in (local, remote):
        found = reader.search(query_vectors, 64, where="id >= 0", columns=["id"], search_list=200)
        assert found.profile.strategy == "exact over matches"
        assert found.rows.select(["rank", "id"]).equals(expected.rows.select(["rank", "id"]))


@pytest.mark.parametrize("filters", [(), ("id",), ("id", "section")])
def test_the_nearest_version_alone_reads_no_file_of_the_tail(table_factory: Callable[..., Table], filters: Any) -> None:
    definition = replace(DEFINITION, filters=filters)
    table = table_factory()
    table.append(make_rows(0, 300))
    index_head(table, definition)
    indexed = {task.file.file_path for task in table.refresh().scan().plan_files()}
    table.append(make_rows(300, 400))
    reader = open_index(table, definition, storage=STORAGE, stale="nearest-only")
    for task in table.scan().plan_files():
        if task.file.file_path not in indexed:
            to_path(task.file.file_path).unlink()
    compared, looked_up = "id >= 100 AND section = 'section 1'", "section = 'section 1'"
    for where, ids in ((compared, [*range(101, 300, 5)]), (looked_up, [*range(1, 300, 5)])):
        result = reader.search(queries(2), 60, columns=["id"], where=where)
        assert result.coverage is Coverage.NEAREST_VERSION_ONLY
        assert result.profile.matching_rows == len(ids)
        assert sorted(result.rows["id"].to_pylist()) == sorted(2 * ids)
        within = reader.within(queries(1), 1e9, columns=["id"], where=where)
        assert sorted(within.rows["id"].to_pylist()) == ids
        each = reader.search(queries(2), 60, columns=["id"], where=[where, "id < 0"])
        assert sorted(each.rows["id"].to_pylist()) == ids
