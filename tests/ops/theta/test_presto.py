"""Presto's statistics at every moment of a table with sketches and an index: NDVs, no error, few bytes.

`presto_statistics` does what prestodb/presto does in `TableStatisticsMaker` of presto-iceberg (methods
`getClosestStatisticsFileForSnapshot` and `loadStatisticsFile`, commit 09d43afe), as read there: no server runs.
"""

import functools
import json
from collections.abc import Callable, Set
from pathlib import Path

import pytest
from pyiceberg.table import Table
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile
from pyiceberg.table.update import SetStatisticsUpdate

import icepuffin
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.model import Action, SnapshotId
from icepuffin.ops.table.blob_kind import BlobKind
from icepuffin.ops.table.ownership import own_snapshots
from icepuffin.ops.table.snapshots import is_derived
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta import ancestry, sketch_packs
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, index_head
from tests.ops.index.snapshot_times import set_times

COLUMNS = frozenset({1, 2, 3})
"""Field ids of `id`, `name`, `section`"""
FEW_BYTES = 4096


def presto_statistics(table: Table, snapshot_id: int) -> tuple[dict[int, int], int]:
    """(NDVs by field id, bytes read) of the statistics that Presto plans a query of a snapshot with."""
    entries = table.metadata.statistics
    if not entries:
        return {}, 0
    return load_statistics(min(entries, key=functools.cmp_to_key(nearer_to(table, snapshot_id))))


def nearer_to(table: Table, snapshot_id: int) -> Callable[[StatisticsFile, StatisticsFile], int]:
    """The order of entries: by the time between the entry's snapshot and this one, whatever its branch."""
    times = {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in table.metadata.snapshots}

    def compare(one: StatisticsFile, other: StatisticsFile) -> int:
        for entry, order in ((one, 1), (other, -1)):
            if entry.snapshot_id not in times:
                return order
        distances = [abs(times[snapshot_id] - times[entry.snapshot_id]) for entry in (one, other)]
        return distances[0] - distances[1]

    return compare


def load_statistics(entry: StatisticsFile) -> tuple[dict[int, int], int]:
    """Every blob of the last footer is read whole, and must have one field, before its type is looked at."""
    data = Path(entry.statistics_path.removeprefix("file://")).read_bytes()
    assert len(data) == entry.file_size_in_bytes
    size = int.from_bytes(data[-12:-8], "little")
    assert size + 16 == entry.file_footer_size_in_bytes
    ndvs, read = {}, size + 16
    for blob in json.loads(data[-12 - size : -12])["blobs"]:
        read += blob["length"]
        (field,) = blob["fields"]
        if blob["type"] == "apache-datasketches-theta-v1":
            ndvs[field] = int(blob["properties"]["ndv"])
    return ndvs, read


def sketch(table: Table) -> None:
    head = table.refresh().metadata.current_snapshot_id
    assert head is not None
    count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), SnapshotId(head)).publish()


def build(table: Table) -> None:
    index_head(table)


@pytest.fixture
def table(table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch) -> Table:
    """600 rows in three files, of which shards and sketches come to lie in packs."""
    monkeypatch.setattr(index_packs, "PACK_BYTES", 30_000)
    monkeypatch.setattr(index_packs, "WORTH_SHARE", 0.2)
    monkeypatch.setattr(sketch_packs, "PACK_BYTES", 2_000)
    new_table = table_factory()
    create_index(new_table, DEFINITION)
    for first in range(0, 600, 200):
        new_table.append(make_rows(first, first + 200))
    return new_table


def require_statistics(table: Table, columns: Set[int]) -> dict[int, int]:
    """NDVs of the head. Also reads the statistics of each entry, and those for each snapshot."""
    metadata = table.refresh().metadata
    derived = {snapshot.snapshot_id for snapshot in metadata.snapshots if is_derived(snapshot)}
    for entry in metadata.statistics:
        ndvs, read = load_statistics(entry)
        assert ndvs.keys() >= (columns if entry.snapshot_id not in derived else frozenset())
        assert read < (FEW_BYTES if entry.snapshot_id in derived else 1 << 20)
    for snapshot in metadata.snapshots:
        presto_statistics(table, snapshot.snapshot_id)
    head = metadata.current_snapshot_id
    assert head is not None
    ndvs, _ = presto_statistics(table, head)
    assert ndvs.keys() == columns
    return ndvs


@pytest.mark.parametrize("steps", [(sketch,), (build,), (sketch, build), (build, sketch)])
def test_presto_has_ndvs_once_there_are_sketches_and_no_error_before(
    table: Table, steps: tuple[Callable[[Table], None], ...]
) -> None:
    columns = frozenset[int]()
    require_statistics(table, columns)
    for first in (600, 700):
        for step in steps:
            step(table)
            columns = COLUMNS if step is sketch else columns
            ndvs = require_statistics(table, columns)
        if sketch in steps:
            assert ndvs == {entry.field_id: entry.ndv for entry in icepuffin.read_ndv(table).entries.values()}
        table.append(make_rows(first, first + 20))
        require_statistics(table, columns)
    assert any(entry.file_size_in_bytes > 2 * FEW_BYTES for entry in table.metadata.statistics)


@pytest.mark.parametrize("is_older", [True, False])
def test_an_index_of_a_snapshot_that_has_no_sketches_near_hides_no_ndv_from_the_head(
    table: Table, monkeypatch: pytest.MonkeyPatch, is_older: bool
) -> None:
    """Its entry is of now: the nearest to a head that came long after the sketches."""
    monkeypatch.setattr(ancestry, "MAX_ANCESTORS", 1)
    old, *_ = (snapshot.snapshot_id for snapshot in table.refresh().metadata.snapshots)
    sketch(table)
    for first in (600, 620):
        table.append(make_rows(first, first + 20))
    head = table.refresh().metadata.current_snapshot_id
    chosen = SnapshotId(old if is_older else head or 0)
    materialize_index(RunContext(table, STORAGE, LocalRunner(1)), DEFINITION, chosen)
    (version,) = index_versions(table.refresh(), DEFINITION.name)
    (entry,) = (entry for entry in table.metadata.statistics if entry.snapshot_id == version.index_snapshot_id)
    assert load_statistics(entry)[0].keys() == COLUMNS


def test_a_version_has_the_ndvs_of_its_own_snapshot_before_those_of_the_newest(table: Table) -> None:
    sketch(table)
    old = SnapshotId(table.refresh().metadata.current_snapshot_id or 0)
    before = icepuffin.read_ndv(table, old).entries["id"].ndv
    table.append(make_rows(600, 700))
    sketch(table)
    materialize_index(RunContext(table.refresh(), STORAGE, LocalRunner(1)), DEFINITION, old)
    (version,) = index_versions(table.refresh(), DEFINITION.name)
    (entry,) = (entry for entry in table.metadata.statistics if entry.snapshot_id == version.index_snapshot_id)
    field_id = table.schema().find_field("id").field_id
    assert load_statistics(entry)[0][field_id] == before
    assert icepuffin.read_ndv(table).entries["id"].ndv > before


def test_a_version_of_a_snapshot_before_all_sketches_has_the_newest_ndvs(table: Table) -> None:
    old = SnapshotId(table.refresh().metadata.current_snapshot_id or 0)
    for first in (600, 700):
        table.append(make_rows(first, first + 100))
        sketch(table)
    materialize_index(RunContext(table.refresh(), STORAGE, LocalRunner(1)), DEFINITION, old)
    (version,) = index_versions(table.refresh(), DEFINITION.name)
    (entry,) = (entry for entry in table.metadata.statistics if entry.snapshot_id == version.index_snapshot_id)
    field_id = table.schema().find_field("id").field_id
    assert load_statistics(entry)[0][field_id] == icepuffin.read_ndv(table).entries["id"].ndv


def test_a_version_from_before_the_first_ndvs_hides_them_from_the_snapshots_nearest_to_it_alone(table: Table) -> None:
    """Its file cannot get them, and no new entry of ours has an earlier time. That of a snapshot itself is nearest."""
    one = SnapshotId(table.refresh().metadata.current_snapshot_id or 0)
    build(table)
    table.append(make_rows(600, 620))
    two = table.refresh().metadata.current_snapshot_id
    count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), one).publish()
    table.append(make_rows(620, 640))
    three = table.refresh().metadata.current_snapshot_id

    def seen() -> list[Set[int]]:
        """Columns with NDVs of the three, written at 0, 110 and 300; the version is of 100, the sketches of 200."""
        owned = own_snapshots(table.metadata)
        bound = {item: 100 if owned[item].kind == BlobKind.INDEX else 200 for item in owned}
        times = {one: 0, two: 110, three: 300, **bound}
        set_times(table, tuple(times), tuple(times.values()))  # type: ignore[arg-type]
        return [presto_statistics(table, item)[0].keys() for item in (one, two, three) if item is not None]

    assert seen() == [COLUMNS, set(), COLUMNS]
    count_theta_sketches(RunContext(table.refresh(), STORAGE, LocalRunner(1)), SnapshotId(two or 0)).publish()
    assert seen() == [COLUMNS, COLUMNS, COLUMNS]


def test_numbers_of_others_that_no_footer_can_have_keep_no_version_back(table_factory: Callable[..., Table]) -> None:
    table = table_factory()
    create_index(table, DEFINITION)
    table.append(make_rows(0, 60))
    head = table.refresh().metadata.current_snapshot_id
    assert head is not None
    odd = [(2**40, 1, "5"), (99, 1, "5"), (1, 2**70, "5"), (2, 1, str(2**63)), (3, 1, "5")]
    entry = StatisticsFile(
        snapshot_id=head,
        statistics_path=f"{table.location()}/metadata/others.stats",
        file_size_in_bytes=100,
        file_footer_size_in_bytes=50,
        blob_metadata=[theta_entry(head, *numbers) for numbers in odd],
    )
    table.catalog.commit_table(table, (), (SetStatisticsUpdate(statistics=entry),))
    assert index_head(table).action is Action.BUILT
    (own,) = (entry for entry in table.refresh().metadata.statistics if entry.snapshot_id != head)
    assert load_statistics(own)[0] == {3: 5}


def theta_entry(snapshot_id: int, field_id: int, sequence_number: int, ndv: str) -> BlobMetadata:
    return BlobMetadata.model_validate(
        {
            "type": "apache-datasketches-theta-v1",
            "snapshot-id": snapshot_id,
            "sequence-number": sequence_number,
            "fields": [field_id],
            "properties": {"ndv": ndv},
        }
    )
