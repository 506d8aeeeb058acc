"""Statistics of a table that Trino analyzes, writes to and compacts. `make trino` runs them.

Bare PyIceberg is a process that does not import icepuffin, which lets PyIceberg read entries with blobs of any type.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.statistics import BlobMetadata

import icepuffin
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.tasks.sketches.statistic import Kind, StatisticKey, kind_of
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.requested_statistics import RequestedStatistics
from icepuffin.ops.theta.statistics_slot import BLOB_TYPES, OtherSketch, read_others
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.puffin import PuffinReader
from tests.conftest import STORAGE
from tests.interop.trino_server import TrinoServer
from tests.ops.theta.foreign import add_unlisted
from tests.services.rest import rest_catalog

pytestmark = [pytest.mark.trino, pytest.mark.services]

OURS = {"id", "name"}
"""Columns of `rows` that icepuffin counts unasked; Trino counts `weight`, too"""
THETA, KLL, SIZE, FREQUENT, JOINT = BLOB_TYPES.values()
BARE = """import sys; from pyiceberg.catalog import load_catalog
print(len(load_catalog("bare", type="rest", uri=sys.argv[1]).load_table(sys.argv[2]).scan().to_arrow()))"""


@dataclass
class Lake:
    """One table of a REST catalog as PyIceberg and Trino see it."""

    catalog: Catalog
    trino: TrinoServer
    uri: str
    table: Table
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = ".".join(self.table.name()[-2:])

    def sql(self, text: str) -> list[list[Any]]:
        return self.trino.sql(text.format(t=f"lake.{self.name}"))

    def listed(self) -> Mapping[tuple[str, int], BlobMetadata]:
        """Blobs that the entry of the head lists, by type and field id."""
        entry = find_statistics(self.table.refresh(), self.head())
        return {(blob.type, blob.fields[0]): blob for blob in entry.blob_metadata} if entry else {}

    def stored(self) -> list[tuple[str, int]]:
        """Type and field id of the blobs in the file of the head."""
        entry = find_statistics(self.table.refresh(), self.head())
        assert entry is not None
        footer = PuffinReader(LocalStorage().source(entry.statistics_path)).footer
        return sorted((blob.type, blob.fields[0]) for blob in footer.blobs)

    def head(self) -> int:
        snapshot = self.table.refresh().current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def bare_pyiceberg(self) -> str:
        """How many rows a process without icepuffin reads, or why it reads none."""
        done = subprocess.run(
            [sys.executable, "-c", BARE, self.uri, self.name], capture_output=True, text=True, check=False, timeout=120
        )
        return done.stdout.strip() or done.stderr.strip()

    def distinct(self) -> dict[str, int]:
        rows = self.table.refresh().scan().to_arrow()
        return {name: len(set(rows[name].to_pylist())) for name in rows.column_names}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TrinoServer, str]]:
    with rest_catalog(tmp_path_factory.mktemp("rest"), {}) as uri:
        server = TrinoServer(tmp_path_factory.mktemp("trino"), uri)
        yield server, uri
        server.close()


@pytest.fixture
def lake(engines: tuple[TrinoServer, str], request: pytest.FixtureRequest) -> Iterator[Lake]:
    """A table of two files, of 600 rows, and our sketches of it."""
    trino, uri = engines
    catalog = open_catalog("lake", {"type": "rest", "uri": uri})
    catalog.create_namespace_if_not_exists("db")
    table = catalog.create_table(f"db.t{abs(hash(request.node.name))}", rows(0, 1).schema)
    for first in (0, 300):
        table.append(rows(first, first + 300))
    icepuffin.refresh(table)
    yield Lake(catalog, trino, uri, table)
    catalog.close()


def rows(start: int, stop: int) -> pa.Table:
    numbers = range(start, stop)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": [f"n{number % 9}" for number in numbers],
            "weight": [number / 2 for number in numbers],
        }
    )


STATEMENTS = {
    "analyze all": "ANALYZE {t}",
    "analyze one": "ANALYZE {t} WITH (columns = ARRAY['id'])",
    "insert": "INSERT INTO {t} VALUES (9001, 'new', 0.25), (9002, 'n1', 0.75)",
    "delete": "DELETE FROM {t} WHERE id % 3 = 0",
    "update": "UPDATE {t} SET name = 'changed' WHERE id < 200",
    "optimize": "ALTER TABLE {t} EXECUTE optimize",
    "drop statistics": "ALTER TABLE {t} EXECUTE drop_extended_stats",
}
STILL_FRESH = {"analyze one": {"name"}}
"""Columns whose NDV is ours and of the head after the statement, if any"""
COPIED_AND_LISTED = {"analyze one", "optimize"}
"""Statements after which the entry of the head lists what only the file had; after others neither has it"""


@pytest.mark.parametrize("statement", STATEMENTS)
def test_after_a_statement_of_trino_no_ndv_is_fresh_that_does_not_count(lake: Lake, statement: str) -> None:
    lake.sql(STATEMENTS[statement])
    truth = lake.distinct()
    found = icepuffin.read_ndv(lake.table).entries
    assert {name for name, entry in found.items() if entry.fresh} == STILL_FRESH.get(statement, set())
    assert lake.bare_pyiceberg() == str(len(lake.table.scan().to_arrow()))
    theirs = {name: entry.ndv for name, entry in found.items() if name not in OURS}
    assert theirs == ({"weight": 600} if statement == "analyze all" else {})
    icepuffin.refresh(lake.table)
    again = icepuffin.read_ndv(lake.table.refresh()).entries
    assert {name: entry.ndv for name, entry in again.items()} == {**{name: truth[name] for name in OURS}, **theirs}
    assert {name for name, entry in again.items() if entry.fresh} == OURS
    assert lake.bare_pyiceberg() == str(len(lake.table.scan().to_arrow()))


@pytest.mark.parametrize("statement", STATEMENTS)
def test_trino_lists_what_only_a_file_had_and_a_run_puts_it_right(lake: Lake, statement: str) -> None:
    """PyIceberg's model of an entry refuses the table then, in processes that do not import icepuffin."""
    add_unlisted(lake.table, [(KLL, 1, b"sketch", {}), (SIZE, 2, b"", {"data_size": "1200"})])
    assert lake.bare_pyiceberg() == "600"
    lake.sql(STATEMENTS[statement])
    lists = {KLL, SIZE} & {kind for kind, _ in lake.listed()}
    if statement in COPIED_AND_LISTED:
        assert lists == {KLL, SIZE}
        assert "Input should be 'apache-datasketches-theta-v1' or 'deletion-vector-v1'" in lake.bare_pyiceberg()
    else:
        assert not lists
    icepuffin.refresh(lake.table.refresh())
    assert {kind for kind, _ in lake.listed()} == {THETA}
    assert lake.bare_pyiceberg() == str(len(lake.table.scan().to_arrow()))
    of_the_head = statement in COPIED_AND_LISTED - {"optimize"}  # whose copies name the snapshot before
    assert ({(KLL, 1), (SIZE, 2)} & set(lake.stored()) != set()) == of_the_head


@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_next_run_makes_all_kinds_again_that_are_named(lake: Lake, statement: str) -> None:
    kinds = named_statistics(lake).keys()
    assert {kind_of(key) for key in kinds} == {Kind.HISTOGRAM, Kind.SIZE, Kind.FREQUENT, Kind.JOINT}
    assert lake.bare_pyiceberg() == "600"
    lake.sql(STATEMENTS[statement])
    others = named_statistics(lake)
    assert others.keys() == kinds
    assert {other.blob.snapshot_id for other in others.values() if other.blob} == {lake.head()}
    blobs = [(THETA, 1), (THETA, 2), (KLL, 1), (KLL, 3), (SIZE, 2), (FREQUENT, 2), (JOINT, 1)]
    assert lake.stored() == sorted(blobs + ([(THETA, 3)] if statement == "analyze all" else []))
    assert lake.bare_pyiceberg() == str(len(lake.table.scan().to_arrow()))


def named_statistics(lake: Lake) -> Mapping[StatisticKey, OtherSketch]:
    """Count statistics of all kinds of the head; those that are no NDVs."""
    requested = RequestedStatistics(
        histogram=("id", "weight"), size=("name",), frequent=("name",), joint=(("id", "name"),)
    )
    run = RunContext(lake.table.refresh(), STORAGE, LocalRunner(1))
    count_theta_sketches(run, SnapshotId(lake.head()), requested=requested).publish()
    entry = find_statistics(lake.table.refresh(), lake.head())
    assert entry is not None
    return read_others(LocalStorage(), entry)
