"""One table, a hundred snapshots, an index now and then: each snapshot is searched as it was."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import In
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.distances.recall import recalls_of
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.result import Coverage, SearchResult
from icepuffin.ops.sql.sql_session import SqlSession
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.snapshots import DataSnapshot, UnknownSnapshotError, data_snapshots, resolve_snapshot
from tests.conftest import DIMS, ROWS, STORAGE, make_rows, queries
from tests.ops.index.comparison import index_head
from tests.selection import IS_NIGHT

SNAPSHOTS = 100 if IS_NIGHT else 30
K = 5
DEFINITION = IndexDefinition(name="e", column="embedding", metric="l2", max_degree=16, search_list=48, shards=2)
QUERIES = queries(6)
WITHIN = 2.6


@dataclass(frozen=True)
class Truth:
    """A snapshot's rows, as PyIceberg reads them."""

    ids: npt.NDArray[np.int64]
    distances: npt.NDArray[np.float64]
    """f64[queries, rows]"""


@dataclass(frozen=True)
class History:
    """The table, and its snapshots on main."""

    catalog: Catalog
    table: Table
    snapshots: tuple[DataSnapshot, ...]

    def truth(self, snapshot: DataSnapshot) -> Truth:
        rows = self.table.scan(snapshot_id=snapshot.snapshot_id, selected_fields=("id", "embedding")).to_arrow()
        vectors = np.array(rows["embedding"].to_pylist(), np.float64).reshape(-1, DIMS)
        gaps = vectors[None] - QUERIES[:, None].astype(np.float64)
        return Truth(np.asarray(rows["id"]), np.linalg.norm(gaps, axis=2))


def write(table: Table, rng: np.random.Generator, step: int, next_id: int) -> int:
    """One snapshot: mostly appends, now and then deletes of both kinds, an overwrite, a compaction."""
    table.refresh()
    match step % 10:
        case 3:
            files = live_files(table, table.metadata.current_snapshot_id or 0).files
            file = files[int(rng.integers(len(files)))]
            positions = np.sort(rng.choice(file.record_count, max(1, file.record_count // 3), replace=False))
            append_position_deletes(table, {file.path: positions})
        case 6:
            table.delete(In("id", rng.integers(0, next_id, 5).tolist()))  # type: ignore[arg-type, misc]
        case 8:
            table.overwrite(make_rows(next_id, next_id + 10), overwrite_filter=f"section = 'section {step % 5}'")
            return next_id + 10
        case 9 if step % 30 == 29:
            table.overwrite(table.scan().to_arrow().cast(table.schema().as_arrow()))
        case _:
            table.append(make_rows(next_id, next_id + 30))
            return next_id + 30
    return next_id


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    folder = tmp_path_factory.mktemp("history")
    catalog = open_catalog("h", {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"})
    catalog.create_namespace("db")
    # a log of metadata files would be copied with each commit
    properties = {"format-version": "2", "write.metadata.previous-versions-max": "1"}
    table = catalog.create_table("db.t", ROWS, properties=properties)
    create_index(table, DEFINITION)
    rng = np.random.default_rng(7)
    next_id = step = 0
    while len(data_snapshots(table.refresh()) if step else ()) < SNAPSHOTS:
        next_id = write(table, rng, step, next_id)
        if step % 9 == 0:
            index_head(table, DEFINITION)
        if step % 10 == 5:
            head = table.refresh().metadata.current_snapshot_id or 0
            table.manage_snapshots().create_tag(head, f"tag-{step}").create_branch(head, f"branch-{step}").commit()
        step += 1
    snapshots = data_snapshots(table.refresh())[:SNAPSHOTS]
    return History(catalog, table, snapshots)


def check(result: SearchResult, snapshot: DataSnapshot, truth: Truth) -> float:
    """Assert that no row and no distance is wrong. Returns recall@K."""
    assert result.snapshot_id == snapshot.snapshot_id
    place = {int(row): at for at, row in enumerate(truth.ids)}
    hits = []
    for query in range(len(QUERIES)):
        own_rows = [row for row in result.rows.to_pylist() if row["query"] == query]
        true = truth.distances[query][[place[row["id"]] for row in own_rows]]
        np.testing.assert_allclose([row["distance"] for row in own_rows], true, rtol=1e-4, atol=1e-5)
        nearest = np.sort(truth.distances[query])[:K]
        assert len(own_rows) == len(nearest)
        hits.append(float(recalls_of(true[None], nearest[None], 1e-6 * nearest[-1])[0]) if len(nearest) else 1.0)
    return float(np.mean(hits))


def test_each_of_many_snapshots_is_searched_as_it_was(history: History) -> None:
    recalls, covered = [], set()
    for snapshot in history.snapshots:
        truth = history.truth(snapshot)
        reader = open_index(history.table, "e", snapshot=snapshot.snapshot_id, storage=STORAGE)
        recalls.append(check(reader.search(QUERIES, K, columns=["id"]), snapshot, truth))
        covered.add(reader.coverage)
        result = reader.within(QUERIES[:2], WITHIN, columns=["id"])
        for query in range(2):
            expected = set(truth.ids[truth.distances[query] < WITHIN - 1e-5].tolist())
            doubtful = set(truth.ids[np.abs(truth.distances[query] - WITHIN) <= 1e-5].tolist())
            ids = {row["id"] for row in result.rows.to_pylist() if row["query"] == query}
            assert expected <= ids <= expected | doubtful
    assert len(recalls) == SNAPSHOTS
    assert {Coverage.EXACT_VERSION, Coverage.NEAREST_VERSION_AND_TAIL} <= covered
    assert np.mean(recalls) >= 0.99
    assert min(recalls) >= 0.9


def test_tags_branches_and_times_mean_their_snapshots(history: History) -> None:
    by_id = {snapshot.snapshot_id: snapshot for snapshot in history.snapshots}
    names: list[tuple[str | datetime, int]] = [
        (name, ref.snapshot_id)
        for name, ref in history.table.metadata.refs.items()
        if name.startswith(("tag", "branch"))
    ]
    log = [entry for entry in history.table.metadata.snapshot_log if entry.snapshot_id in by_id]
    for entry, after in zip(log[::7], log[1::7], strict=False):
        if entry.timestamp_ms < after.timestamp_ms:
            names.append((datetime.fromtimestamp(entry.timestamp_ms / 1000, UTC), entry.snapshot_id))
    assert len(names) >= SNAPSHOTS // 4
    for name, snapshot_id in names:
        if snapshot_id in by_id:
            found = open_index(history.table, "e", snapshot=name, storage=STORAGE).search(QUERIES, K, columns=["id"])
            assert check(found, by_id[snapshot_id], history.truth(by_id[snapshot_id])) >= 0.9


def test_sql_travels_as_well(history: History) -> None:
    session = SqlSession.on(history.catalog, storage=STORAGE)
    text = "SELECT id, l2_distance(embedding, :q) AS d FROM db.t {at} ORDER BY d LIMIT 5"
    for number, snapshot in enumerate(history.snapshots[::11]):
        truth = history.truth(snapshot)
        log = next(e for e in history.table.metadata.snapshot_log if e.snapshot_id == snapshot.snapshot_id)
        moment = datetime.fromtimestamp(log.timestamp_ms / 1000, UTC).isoformat()
        at = f"TIMESTAMP AS OF '{moment}'" if number % 2 else f"VERSION AS OF {snapshot.snapshot_id}"
        result = session.sql(text.format(at=at), {"q": QUERIES[0]})
        nearest = np.sort(truth.distances[0])[:K]
        np.testing.assert_allclose(result.rows["d"].to_numpy(), nearest, rtol=0.2)
        assert result.search is not None
        assert result.search.snapshot_id == snapshot.snapshot_id
        assert set(result.rows["id"].to_pylist()) <= set(truth.ids.tolist())


def dated(table_factory: Callable[..., Table], count: int = 4) -> tuple[Table, list[int], list[datetime]]:
    """(a table, its snapshots, the times at which they came)."""
    table = table_factory()
    for number in range(count):
        table.append(make_rows(number, number + 1))
        time.sleep(0.002)
    log = table.refresh().metadata.snapshot_log
    times = [datetime.fromtimestamp(entry.timestamp_ms / 1000, UTC) for entry in log]
    return table, [entry.snapshot_id for entry in log], times


def test_a_time_is_refused_where_the_snapshot_of_then_has_expired(table_factory: Callable[..., Table]) -> None:
    """PyIceberg takes the entries of expired snapshots out of the history, and leaves the older ones."""
    table, snapshots, times = dated(table_factory)
    table.maintenance.expire_snapshots().by_ids(snapshots[1:3]).commit()
    assert [entry.snapshot_id for entry in table.refresh().metadata.snapshot_log] == [snapshots[0], snapshots[3]]
    assert resolve_snapshot(table, times[3]).snapshot_id == snapshots[3]
    assert resolve_snapshot(table, times[0]).snapshot_id == snapshots[0]
    for at in (times[0] + timedelta(milliseconds=1), *times[1:3], times[1].replace(tzinfo=None).isoformat(" ")):
        with pytest.raises(UnknownSnapshotError, match=r"is not known, because some of .* have expired"):
            resolve_snapshot(table, at)
    assert resolve_snapshot(table, snapshots[0]).snapshot_id == snapshots[0]


def test_a_time_is_refused_where_what_was_rolled_back_has_expired(table_factory: Callable[..., Table]) -> None:
    table, snapshots, times = dated(table_factory, 2)
    table.manage_snapshots().rollback_to_snapshot(snapshots[0]).commit()
    back = datetime.fromtimestamp(table.refresh().metadata.snapshot_log[-1].timestamp_ms / 1000, UTC)
    assert resolve_snapshot(table, times[1]).snapshot_id == snapshots[1]
    table.maintenance.expire_snapshots().by_ids(snapshots[1:]).commit()
    table.refresh().append(make_rows(5, 6))
    assert resolve_snapshot(table.refresh(), back).snapshot_id == snapshots[0]
    with pytest.raises(UnknownSnapshotError, match="have expired"):
        resolve_snapshot(table, times[1])


@pytest.mark.parametrize("derived", [False, True])
def test_a_time_before_a_table_was_replaced_is_read(table_factory: Callable[..., Table], *, derived: bool) -> None:
    """The first snapshot of the new table has no parent, either. A version that is still there leaves no gap."""
    table = table_factory()
    table.append(make_rows(0, 50))
    if derived:
        index_head(table, replace(DEFINITION, name="i"))
    table.refresh().append(make_rows(50, 60))
    first, second = table.refresh().metadata.snapshot_log
    snapshots = [
        snapshot.model_copy(update={"parent_snapshot_id": None})
        if snapshot.snapshot_id == second.snapshot_id
        else snapshot
        for snapshot in table.metadata.snapshots
    ]
    table.metadata = table.metadata.model_copy(update={"snapshots": snapshots})
    at = datetime.fromtimestamp((second.timestamp_ms - 1) / 1000, UTC)
    assert resolve_snapshot(table, at).snapshot_id == first.snapshot_id
