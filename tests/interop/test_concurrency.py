"""Several at one table at once, and lost messages, against real catalogs."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier

import pytest
from pyiceberg.exceptions import BadRequestError, CommitFailedException, ValidationException
from pyiceberg.table import Table

from icepuffin.ops.binding import bindings, commit
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.binding.errors import LostRaceError, UnknownOutcomeError
from icepuffin.ops.catalog import time_limits
from icepuffin.ops.errors import CatalogUnavailableError
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.snapshots import UnknownSnapshotError, data_snapshots
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import STORAGE, make_rows
from tests.interop.lakes import Lake, open_lake
from tests.ops.catalog.bindings import binding
from tests.ops.index.comparison import DEFINITION, answer_with_recall
from tests.selection import some
from tests.services.faulty import FaultyLine, faulty_line

pytestmark = pytest.mark.services
OpenLake = Callable[[], Lake]


@pytest.fixture(params=some(["sqlite", "postgres", "rest"], 1))
def lakes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenLake]:
    """Opens the same lake again and again, each time with a catalog of its own."""
    kind = request.param
    uri = f"sqlite:///{tmp_path}/catalog.db" if kind == "sqlite" else request.getfixturevalue(f"{kind}_uri")
    name = f"many_{tmp_path.name}"
    opened = []

    def open_one() -> Lake:
        context = open_lake(name, uri, tmp_path)
        opened.append(context)
        return context.__enter__()

    yield open_one
    for context in opened:
        context.__exit__(None, None, None)


def index_head(lake: Lake, name: str = "e") -> IndexReport:
    table = lake.load("t")
    definition = replace(DEFINITION, name=name)
    head = data_snapshots(table)[-1].snapshot_id
    return materialize_index(RunContext(table, lake.storage, LocalRunner(1)), definition, head)


def index_files(lake: Lake) -> list[str]:
    location = lake.load("t").location()
    store = open_storage(location, lake.storage)
    return [item.path for item in store.list(location) if item.path.endswith(".puffin")]


def test_two_runs_for_one_snapshot_end_with_one_version(lakes: OpenLake) -> None:
    lake = lakes()
    lake.create("t").append(make_rows(0, 200))
    meet = Barrier(2)

    def run(own_lake: Lake) -> IndexReport:
        meet.wait()
        return index_head(own_lake)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(run, [lakes(), lakes()])
    assert first.index_snapshot_id == second.index_snapshot_id
    assert first.build_id == second.build_id
    (version,) = index_versions(lake.load("t"), "e")
    assert version.tags == ("ann_e",)
    assert index_files(lake) == [version.puffin_path]
    assert answer_with_recall(lake.load("t"), storage=lake.storage)[1] >= 0.95


def test_indexes_and_sketches_of_one_table_at_once_all_land_among_writes(lakes: OpenLake) -> None:
    lake = lakes()
    lake.create("t").append(make_rows(0, 100))
    names = ["a", "b", "c"]

    def index(work: tuple[Lake, str]) -> None:
        for _ in range(3):
            index_head(*work)

    def sketch(own_lake: Lake) -> None:
        for _ in range(3):
            table = own_lake.load("t")
            head = data_snapshots(table)[-1].snapshot_id
            count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), head).publish()

    def write(own_lake: Lake) -> None:
        for start in range(100, 200, 20):
            append_at_last(own_lake, start)

    with ThreadPoolExecutor(5) as pool:
        jobs = [pool.submit(index, (lakes(), name)) for name in names]
        jobs += [pool.submit(sketch, lakes()), pool.submit(write, lakes())]
        for job in jobs:
            job.result()
    table = lake.load("t")
    assert table.scan().to_arrow()["id"].to_pylist() != []
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(200))
    for name in names:
        assert index_head(lake, name).rows == 200
        known = index_versions(lake.load("t"), name)
        assert sum(f"ann_{name}" in version.tags for version in known) == 1
        assert all(open_storage(item.puffin_path, STORAGE).exists(item.puffin_path) for item in known)
        assert answer_with_recall(lake.load("t"), definition=replace(DEFINITION, name=name))[1] >= 0.95
    assert {version.puffin_path for name in names for version in index_versions(lake.load("t"), name)} == {
        path for path in index_files(lake) if "/ann-" in path
    }


def append_at_last(lake: Lake, start: int) -> None:
    at_last(lake, lambda table: table.append(make_rows(start, start + 20)))


def at_last(lake: Lake, change: Callable[[Table], None]) -> None:
    """A writer that tries again, as engines do."""
    while True:
        try:
            change(lake.load("t"))
        except (CommitFailedException, BadRequestError, ValidationException, ValueError):
            time.sleep(0.02)
        else:
            return


def compact(table: Table) -> None:
    """Every row into one new file. An append that came meanwhile makes it fail, and nothing is lost."""
    table.overwrite(table.scan().to_arrow())


def expire(table: Table) -> None:
    """All that no ref points at and that is not the newest: bases and versions alike."""
    table.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()


def test_refreshers_a_writer_a_compactor_and_an_expirer_at_once_leave_every_row_and_no_orphan(lakes: OpenLake) -> None:
    lake = lakes()
    lake.create("t").append(make_rows(0, 60))
    names, rounds = ["a", "b"], 3

    def refresh(work: tuple[Lake, str]) -> None:
        for _ in range(rounds):
            while True:
                try:
                    index_head(*work)
                except (UnknownSnapshotError, LostRaceError):
                    continue  # the head of a moment ago has expired, or another made a version: as Dagster tries again
                break

    def change(work: tuple[Lake, Callable[[Table], None]]) -> None:
        for _ in range(rounds):
            at_last(*work)

    def write(own_lake: Lake) -> None:
        for start in range(60, 120, 20):
            append_at_last(own_lake, start)

    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(refresh, (lakes(), name)) for name in ["a", *names]]
        jobs += [pool.submit(change, (lakes(), step)) for step in (compact, expire)]
        jobs.append(pool.submit(write, lakes()))
        for job in jobs:
            job.result()
    assert sorted(lake.load("t").scan().to_arrow()["id"].to_pylist()) == list(range(120))
    for name in names:
        assert index_head(lake, name).rows == 120
        definition = replace(DEFINITION, name=name)
        assert answer_with_recall(lake.load("t"), definition=definition, storage=lake.storage)[1] >= 0.95
    collect_garbage(lake.load("t"), storage=lake.storage, grace=timedelta(0))
    known = {version.puffin_path for name in names for version in index_versions(lake.load("t"), name)}
    assert known == {path for path in index_files(lake) if "/ann-" in path}


@contextmanager
def over_a_bad_line(rest_uri: str, folder: Path) -> Iterator[tuple[Lake, FaultyLine]]:
    with faulty_line(rest_uri) as line, open_lake(f"bad_{folder.name}", line.uri, folder) as lake:
        lake.create("t").append(make_rows(0, 10))
        line.name = "t"
        yield lake, line


@pytest.mark.parametrize("fault", ["lose answer", "lose request", "gateway timeout", "gateway timeout after"])
def test_a_lost_message_costs_nothing_but_time(rest_uri: str, tmp_path: Path, fault: str) -> None:
    with over_a_bad_line(rest_uri, tmp_path) as (lake, line):
        line.faults.extend([fault, fault])  # type: ignore[list-item]
        version = bindings.publish(lake.load("t"), binding(lake.load("t")))
        table = lake.load("t")
        assert index_versions(table, "e") == (version,)
        assert table.scan(snapshot_id=version.index_snapshot_id).to_arrow().num_rows == 10


def test_a_catalog_that_hangs_is_given_up_and_nothing_is_deleted(
    rest_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "COMMIT_ATTEMPTS", 2)
    with over_a_bad_line(rest_uri, tmp_path) as (lake, line):
        new_binding, table = binding(lake.load("t")), lake.load("t")
        line.faults.extend(["hang", "hang"])
        with monkeypatch.context() as patch:
            patch.setattr(time_limits, "ANSWER_SECONDS", 2)
            with pytest.raises(UnknownOutcomeError, match="the catalog's answer was lost"):
                bindings.publish(table, new_binding)
        line.released.set()
        assert open_storage(new_binding.puffin_path, STORAGE).exists(new_binding.puffin_path)
        assert bindings.publish(lake.load("t"), new_binding).tags == ("ann_e",)


def test_a_catalog_that_goes_away_is_named_within_bounds(
    rest_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "_PATIENCE_SECONDS", 1)
    with over_a_bad_line(rest_uri, tmp_path) as (lake, _):
        table = lake.load("t")
        new_binding = binding(table)
    begun = time.monotonic()
    with pytest.raises(CatalogUnavailableError, match="does not answer"):
        bindings.publish(table, new_binding)
    assert time.monotonic() - begun < 30
    with open_lake(f"bad_{tmp_path.name}", rest_uri, tmp_path) as again:
        assert index_versions(again.load("t"), "e") == ()
