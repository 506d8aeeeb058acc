"""Sixteen refreshers of indexes and sketches, four writers, a compactor, an expirer, garbage collection and another
engine's ANALYZE at one table at once, in rounds.

After each round every row is there. After one more refresh each index is right, the sketches count what the table
holds, and those of the other engine stand beside them. `gc` leaves what is named and nothing else. On SQLite,
PostgreSQL, or Iceberg's own REST server.
"""

import contextlib
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyiceberg.expressions import In

from icepuffin.ops.binding.bound_versions import index_versions, sketch_versions
from icepuffin.ops.binding.errors import BindingError, LostRaceError
from icepuffin.ops.index import collect_garbage
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.snapshots import UnknownSnapshotError, data_snapshots
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.ndv import read_ndv
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.ops.theta.theta_report import ThetaReport
from tests.campaigns.budget import BrokenPromiseError, Budget
from tests.conftest import STORAGE, make_rows
from tests.interop.lakes import Lake, open_lake
from tests.interop.test_concurrency import at_last, compact, expire, index_files, index_head
from tests.ops.index.comparison import DEFINITION, answer_with_recall
from tests.ops.theta import foreign
from tests.services.postgres import postgres, uri
from tests.services.rest import rest_catalog

CATALOGS = ("sqlite", "postgres", "rest")
_REFRESHERS = 16
_WRITERS = 4
_FIRST_ROWS = 60
_ROWS_PER_WRITE = 20
_NAMES = ("a", "b")
_SKETCHED = ("name", "section")
_ANALYZED = ("id", "name")
"""Columns of the other engine; one is sketched by both"""
_PAUSE_SECONDS = 0.2
"""Between two collections of garbage, and two ANALYZEs"""
_ROUND_SECONDS = 600
"""A round that takes longer is stuck"""
OpenLake = Callable[[], Lake]


def run(budget: Budget, catalog: str) -> None:
    """Raises BrokenPromiseError."""
    with tempfile.TemporaryDirectory() as folder, _address(catalog, Path(folder)) as address:
        for number, rng in budget.trials():
            index_packs.PACK_BYTES = rng.choice((10_000, 64 << 20))
            with ExitStack() as lakes:
                open_one = partial(_opened, lakes, f"crowd_{budget.seed}_{number}", address, Path(folder))
                try:
                    _round(open_one, rng, budget)
                except Exception as error:
                    raise BrokenPromiseError(f"trial {number}: {type(error).__name__}: {error}") from error
            budget.counts["rounds"] += 1


@contextmanager
def _address(catalog: str, folder: Path) -> Iterator[str]:
    if catalog == "postgres":
        with postgres() as port:
            yield uri(port)
    elif catalog == "rest":
        (folder / "rest").mkdir()
        with rest_catalog(folder / "rest", {}) as address:
            yield address
    else:
        yield f"sqlite:///{folder}/catalog.db"


def _opened(lakes: ExitStack, name: str, address: str, folder: Path) -> Lake:
    return lakes.enter_context(open_lake(name, address, folder))


def _round(open_one: OpenLake, rng: random.Random, budget: Budget) -> None:
    lake = open_one()
    lake.create("t").append(make_rows(0, _FIRST_ROWS))
    deleted = [rng.sample(range(_FIRST_ROWS), 5) for _ in range(_WRITERS)]
    jobs: list[Callable[[], None]] = [partial(_write, open_one(), number, ids) for number, ids in enumerate(deleted)]
    refreshes = [partial(_index, name=name) for name in _NAMES] + [_sketch]
    jobs += [
        partial(_at_last_refresh, open_one(), refreshes[number % len(refreshes)], budget)
        for number in range(_REFRESHERS)
    ]
    jobs += [partial(at_last, open_one(), change) for change in (compact, expire)]
    rng.shuffle(jobs)
    analyzed: list[str] = []
    steps = [partial(_collect, open_one()), partial(_analyze, open_one(), analyzed)]
    others_done = threading.Event()
    with ThreadPoolExecutor(len(jobs) + len(steps)) as pool:
        begun = time.monotonic()
        repeated = [pool.submit(_repeat, step, others_done) for step in steps]
        try:
            for job in [pool.submit(job) for job in jobs]:
                job.result(timeout=max(1.0, _ROUND_SECONDS - (time.monotonic() - begun)))
        finally:
            others_done.set()
        for step in repeated:
            step.result()
    budget.notes["ANALYZEs"] += len(analyzed)
    _require_whole(lake, deleted)
    lost = [path for path in analyzed if not to_path(path).exists()]
    assert not lost, f"statistics of the other engine were deleted: {lost}"


def _write(lake: Lake, number: int, ids: Sequence[int]) -> None:
    start = _FIRST_ROWS + number * _ROWS_PER_WRITE
    at_last(lake, lambda table: table.append(make_rows(start, start + _ROWS_PER_WRITE)))
    at_last(lake, lambda table: table.delete(In("id", ids)))


def _at_last_refresh(lake: Lake, refresh: Callable[[Lake], object], budget: Budget) -> None:
    """As Dagster does: what lost a race, or met a snapshot that has expired, is tried again."""
    while True:
        try:
            refresh(lake)
        except (UnknownSnapshotError, LostRaceError, BindingError) as error:
            budget.notes[f"{type(error).__name__} and another try"] += 1
        else:
            return


def _index(lake: Lake, name: str) -> None:
    index_head(lake, name)


def _sketch(lake: Lake) -> ThetaReport:
    table = lake.load("t")
    head = data_snapshots(table)[-1].snapshot_id
    return count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), head, columns=_SKETCHED).publish()


def _repeat(step: Callable[[], None], others_done: threading.Event) -> None:
    """Until others are done, and once more."""
    is_last = False
    while not is_last:
        is_last = others_done.wait(_PAUSE_SECONDS)
        step()


def _analyze(lake: Lake, analyzed: list[str]) -> None:
    at_last(lake, lambda table: analyzed.append(foreign.analyze(table, _ANALYZED)))


def _collect(lake: Lake) -> None:
    """As if all that is published were older than the grace period: what is named stays."""
    aged = _named(lake)
    for path in aged:
        with contextlib.suppress(FileNotFoundError):  # nobody names it any more
            os.utime(to_path(path), (0, 0))
    at_last(lake, lambda table: collect_garbage(table, storage=STORAGE))
    gone = aged.difference(index_files(lake)) & _named(lake)
    assert not gone, f"files that are named were collected: {gone}"


def _named(lake: Lake) -> set[str]:
    """Files of the versions and file sketches, and those of their packs that have not expired."""
    table = lake.load("t")
    versions = [*sketch_versions(table), *(version for name in _NAMES for version in index_versions(table, name))]
    packs_of = {pack.path for version in versions for pack in version.packs if pack.path}
    return {version.puffin_path for version in versions} | packs_of


def _require_whole(lake: Lake, deleted: Sequence[Sequence[int]]) -> None:
    """Raises AssertionError."""
    written = set(range(_FIRST_ROWS + _WRITERS * _ROWS_PER_WRITE)).difference(*deleted)
    rows = lake.load("t").scan().to_arrow()
    assert sorted(rows["id"].to_pylist()) == sorted(written), "rows of the writers"
    for name in _NAMES:
        assert index_head(lake, name).rows == len(written), f"rows of index {name}"
        result, recall = answer_with_recall(lake.load("t"), definition=replace(DEFINITION, name=name))
        assert not result.warnings, f"index {name} warns: {result.warnings}"
        assert recall >= DEFINITION.target_recall, f"recall {recall} of index {name}"
    _require_counted(lake, rows)
    collect_garbage(lake.load("t"), storage=STORAGE, grace=timedelta(0))
    assert set(index_files(lake)) == _named(lake), "files of indexes and sketches"


def _require_counted(lake: Lake, rows: pa.Table) -> None:
    """Raises AssertionError."""
    assert _sketch(lake).merged_columns == ("id",), "columns of the other engine's last ANALYZE"
    counted = {name: (entry.ndv, entry.fresh) for name, entry in read_ndv(lake.load("t")).entries.items()}
    distinct = {name: len(rows[name].unique()) for name in {*_SKETCHED, *_ANALYZED}}
    assert counted == {name: (distinct[name], name in _SKETCHED) for name in distinct}, "distinct values"
