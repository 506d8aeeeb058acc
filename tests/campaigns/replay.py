"""Refreshers, writers, a compactor, an expirer, `gc` and a reader at one table, in an order that a seed gives, while
hours pass: see `tests.campaigns.scheduler`. The same seed gives the same trace, byte for byte.

After each commit and each deletion the files that versions name are there, unless they had been older than the grace
period before they were named, and the index's tag has not gone back. Each answer is right for its snapshot. In the end
the laws of a crowd hold.

`run_all` plays all orders of two publications and a `gc` that stop two of them, at most, before they end.
`python -m tests.campaigns.replay SEED NUMBER` prints the trace of a trial.
"""

import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path

import numpy as np
from pyiceberg.expressions import In
from pyiceberg.table import Table

from icepuffin.ops.binding import bindings
from icepuffin.ops.binding.bound_versions import index_versions, tag_target
from icepuffin.ops.binding.errors import LostRaceError
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.table.blob_kind import index_tag
from icepuffin.ops.table.snapshots import data_snapshots
from tests.campaigns.budget import BrokenPromiseError, Budget
from tests.campaigns.laws import named_files, require_whole, sketch
from tests.campaigns.scheduler import Choose, Schedule, all_within, by_seed
from tests.conftest import STORAGE, make_rows, queries
from tests.interop.lakes import Lake, open_lake
from tests.interop.test_concurrency import at_last, compact, index_head
from tests.ops.catalog.bindings import binding
from tests.ops.index.comparison import DEFINITION
from tests.repeatable import LOCATION, lying_in

Actors = Mapping[str, Callable[[], None]]
OpenLake = Callable[[], Lake]
_INDEX = DEFINITION.name
_ROWS, _ROWS_PER_WRITE = 40, 10
_GRACE_SECONDS = 24 * 3600
_HOURS = 0.1, 5.0, 25.0, 200.0
"""Steps of the clock: less and more than the grace period, and than the age of a tag"""
_TRIES = 10
"""Attempts of a refresh that fails with an error of ours"""
_SEARCHES = 3
_PREEMPTIONS = 2


def run(budget: Budget, show: Callable[[str], object] = str) -> None:
    """Raises BrokenPromiseError. `show` is called with each trace."""
    with tempfile.TemporaryDirectory() as folder:
        stage = cache(lambda pack_bytes: Stage(Path(folder) / str(pack_bytes), _indexed, pack_bytes))
        for number, rng in budget.trials():
            show(play(stage(rng.choice((10_000, 64 << 20))), f"{budget.seed}-{number}", rng, budget))
            budget.counts["schedules"] += 1


def run_all(budget: Budget, actors: Sequence[str] = ("old", "new", "gc")) -> None:
    """Raises BrokenPromiseError."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder), _written)

        def publish_all(choose: Choose) -> None:
            publish(stage, str(budget.counts["schedules"]), choose, actors)
            budget.counts["schedules"] += 1

        all_within(_PREEMPTIONS, publish_all)


class Stage:
    """A table as schedules begin with it."""

    def __init__(self, folder: Path, fill: Callable[[Lake], None], pack_bytes: int = 64 << 20) -> None:
        self._ready, self._live = folder / "ready", folder / "live"
        self._pack_bytes = pack_bytes
        (self._live / "t").mkdir(parents=True)
        with self._opened(Schedule(self._live / "t", max), "stage") as open_one:
            fill(open_one())
        self._live.rename(self._ready)

    @contextmanager
    def play(self, name: str, choose: Choose) -> Iterator[tuple[Schedule, OpenLake]]:
        """A schedule, and what opens the lake again and again. Raises BrokenPromiseError, with its trace."""
        shutil.rmtree(self._live, ignore_errors=True)
        shutil.copytree(self._ready, self._live)
        schedule = Schedule(self._live / "t", choose)
        with self._opened(schedule, name) as open_one:
            schedule.check = _Watch(schedule, open_one()).check
            schedule.check()
            try:
                yield schedule, open_one
            except Exception as error:
                reason = f"trial {name}: {type(error).__name__}: {error}"
                raise BrokenPromiseError(f"{schedule.trace}{reason}") from error

    @contextmanager
    def _opened(self, schedule: Schedule, name: str) -> Iterator[OpenLake]:
        with ExitStack() as stack:
            patch = stack.enter_context(schedule.entered(name))
            patch.setattr(index_packs, "PACK_BYTES", self._pack_bytes)
            stack.enter_context(lying_in(self._live))

            def open_one() -> Lake:
                lake = stack.enter_context(open_lake("lake", f"sqlite:///{self._live}/catalog.db", self._live))
                return replace(lake, root=LOCATION)

            yield open_one


def _written(lake: Lake) -> None:
    """Two snapshots without a version."""
    lake.create("t").append(make_rows(0, _ROWS // 2))
    lake.load("t").append(make_rows(_ROWS // 2, _ROWS))


def _indexed(lake: Lake) -> None:
    """Two snapshots; the first has a version and sketches."""
    lake.create("t").append(make_rows(0, _ROWS // 2))
    index_head(lake, _INDEX)
    sketch(lake)
    lake.load("t").append(make_rows(_ROWS // 2, _ROWS))


class _Watch:
    """The laws of each commit, and of each step that deleted files."""

    def __init__(self, schedule: Schedule, lake: Lake) -> None:
        self._schedule = schedule
        self._lake = lake
        self._numbers: dict[int, int] = {}
        self._base = 0
        self._ages: dict[str, float] = {}
        """Age of each file when it was first named"""

    def check(self) -> None:
        for path in named_files(self._lake, (_INDEX,)):
            self._ages.setdefault(path, self._schedule.age(path.removeprefix(f"{LOCATION}/t/")))
        young = [path for path in lost_files(self._schedule, self._lake) if self._ages[path] <= _GRACE_SECONDS]
        assert not young, f"files that are named were collected: {young}"
        table = self._lake.load("t")
        numbers = {entry.snapshot_id: entry.sequence_number or 0 for entry in table.snapshots()}
        self._numbers |= numbers
        for version in index_versions(table, _INDEX):
            if index_tag(_INDEX) in version.tags:
                before, self._base = self._base, version.base_snapshot_id
                is_back = self._numbers[self._base] < numbers.get(before, 0)  # of one that expired it is taken back
                assert not is_back, f"the tag went back from snapshot {before} to {self._base}"


def lost_files(schedule: Schedule, lake: Lake) -> set[str]:
    """Files that versions name, and that are gone."""
    return named_files(lake, (_INDEX,)) & {f"{LOCATION}/t/{path}" for path in schedule.ages_of_gone}


def publish(stage: Stage, name: str, choose: Choose, actors: Sequence[str]) -> str:
    """Play publications of an older and a newer snapshot, and `gc` after a day. Returns the trace."""
    with stage.play(name, choose) as (schedule, open_one):

        def bind(place: int) -> None:
            lake = open_one()
            schedule.watch(lake.catalog)
            table = lake.load("t")
            base, target = data_snapshots(table)[place].snapshot_id, tag_target(table, index_tag(_INDEX))
            new = replace(binding(table, place, name=_INDEX, expected=target), base_snapshot_id=base)
            schedule.point("writes")
            if target is None or place:  # the tag of a newer snapshot stays
                with suppress(LostRaceError):
                    bindings.publish(table, new)

        def collect() -> None:
            lake = open_one()
            schedule.watch(lake.catalog)
            schedule.now += _GRACE_SECONDS + 1
            collect_garbage(lake.load("t"), storage=STORAGE)

        parts: Actors = {"old": partial(bind, 0), "new": partial(bind, 1), "gc": collect}
        schedule.run({actor: parts[actor] for actor in actors})
    return schedule.trace


def play(stage: Stage, name: str, rng: random.Random, budget: Budget) -> str:
    """Play some actors, in an order that is drawn. Returns the trace. Raises BrokenPromiseError."""
    choose = by_seed(rng)
    with stage.play(name, choose) as (schedule, open_one):
        cast = _Cast(schedule, open_one, rng, budget)
        schedule.run(cast.drawn())
        lake = open_one()
        require_whole(lake, cast.ids, (_INDEX,), lost=lost_files(schedule, lake))
        budget.notes["files of runs that stalled are gone"] += len(lost_files(schedule, lake))
    budget.notes["steps"] += len(schedule.lines)
    return schedule.trace


class _Cast:
    """Actors at one table, each with a lake of its own."""

    def __init__(self, schedule: Schedule, open_one: OpenLake, rng: random.Random, budget: Budget) -> None:
        self.ids = set(range(_ROWS))
        """Ids of the rows that the table is to have in the end"""
        self._schedule = schedule
        self._open_one = open_one
        self._rng = rng
        self._budget = budget

    def drawn(self) -> Actors:
        actors: dict[str, Callable[[], None]] = {
            "index": partial(self._refresh, partial(index_head, self._lake(), _INDEX)),
            "index too": partial(self._refresh, partial(index_head, self._lake(), _INDEX)),
            "sketches": partial(self._refresh, partial(sketch, self._lake())),
            "gc": partial(self._collect, self._lake()),
            "writer": partial(self._write, self._lake(), 0),
            "writer too": partial(self._write, self._lake(), 1),
            "compactor": partial(at_last, self._lake(), compact),
            "expirer": partial(at_last, self._lake(), self._expire),
            "reader": partial(self._search, self._lake()),
            "hours": self._hours,
        }
        names = self._rng.sample(sorted(actors), self._rng.randint(3, len(actors)))
        return {name: actors[name] for name in names}

    def _lake(self) -> Lake:
        lake = self._open_one()
        self._schedule.watch(lake.catalog)
        return lake

    def _refresh(self, work: Callable[[], object]) -> None:
        """As Dagster does: what ends with an error of ours is tried again."""
        for _ in range(_TRIES):
            try:
                work()
            except IcepuffinError as error:
                self._budget.notes[f"{type(error).__name__} and another try"] += 1
                self._schedule.point(f"fails with {type(error).__name__}: {error}")
            else:
                return
        raise AssertionError(f"{_TRIES} tries failed")

    def _collect(self, lake: Lake) -> None:
        for _ in range(3):
            collect_garbage(lake.load("t"), storage=STORAGE)

    def _write(self, lake: Lake, number: int) -> None:
        start = _ROWS + number * _ROWS_PER_WRITE
        added, deleted = range(start, start + _ROWS_PER_WRITE), range(number, _ROWS, 9)
        at_last(lake, lambda table: table.append(make_rows(added.start, added.stop)))
        at_last(lake, lambda table: table.delete(In("id", list(deleted))))
        self.ids = self.ids.union(added).difference(deleted)

    def _expire(self, table: Table) -> None:
        table.maintenance.expire_snapshots().older_than(datetime.fromtimestamp(self._schedule.now, UTC)).commit()

    def _search(self, lake: Lake) -> None:
        """Readers that are kept open."""
        for _ in range(_SEARCHES):
            table = lake.load("t")
            live = table.scan(selected_fields=("id", "embedding")).to_arrow()
            apart = queries(3)[:, None] - np.array(live["embedding"].to_pylist(), np.float32)
            far = dict(zip(live["id"].to_pylist(), np.linalg.norm(apart, axis=2).T, strict=True))
            reader = open_index(table, DEFINITION, storage=STORAGE)
            for _ in range(2):
                self._schedule.point("searches")
                answer = reader.search(queries(3), 5, columns=["id"])
                found = [(row["query"], row["id"]) for row in answer.rows.to_pylist()]
                assert len(set(found)) == 15, f"rows {found}"
                true = [far[row][query] for query, row in found]
                np.testing.assert_allclose(answer.rows["distance"], true, rtol=1e-3)
                nearest = np.sort(np.stack([*far.values()]), axis=0)[4][[query for query, _ in found]]
                assert np.mean(true <= nearest * 1.001) >= DEFINITION.target_recall, f"rows {found}"
                self._budget.notes["answers with a warning" if answer.warnings else "answers"] += 1

    def _hours(self) -> None:
        for _ in range(4):
            self._schedule.now += 3600 * self._rng.choice(_HOURS)
            self._schedule.point("hours pass")


if __name__ == "__main__":  # python -m tests.campaigns.replay SEED NUMBER
    run(Budget(600.0, *map(int, sys.argv[1:]), is_enough=lambda counts: counts.total() == 1), sys.stdout.write)
