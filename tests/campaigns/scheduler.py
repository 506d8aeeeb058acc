"""Actors of which one runs at a time, from point to point, and a clock that stands still in between.

Points are steps of runs, the loading and the commits of tables, lists and deletions of files, and pauses. What runs
between two points, PyArrow, kernels and threads of its own among it, is one step. Who goes on is chosen by a seed, or
by a plan. Each point is a line of the trace, with the files that came and went since the one before.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icepuffin.ops import steps
from icepuffin.ops.index.files.background_file import BackgroundFile
from icepuffin.ops.model import ObjectInfo
from icepuffin.ops.storage.local_storage import LocalStorage
from tests.repeatable import START, repeatable

Choose = Callable[[Sequence[str], str], str]
"""Chooses the actor that goes on, of those that have not ended; takes the one that was at work, too"""
_PAUSE_SECONDS = 0.1
"""How long a pause lasts, whatever was drawn for it"""
_STUCK_SECONDS = 600
"""A schedule that takes longer is stuck"""


def by_seed(rng: random.Random) -> Choose:
    """The first in a random order goes on, until it falls behind all others: so some stall while others come far."""
    ranks: dict[str, float] = {}
    share = rng.choice((0.02, 0.1, 0.3, 1.0))

    def choose(ready: Sequence[str], at_work: str) -> str:
        for name in ready:
            ranks.setdefault(name, rng.random())
        if rng.random() < share:
            ranks[at_work] = min(ranks.values()) - 1
        return max(ready, key=ranks.__getitem__)

    return choose


def all_within(preemptions: int, run: Callable[[Choose], object]) -> None:
    """Run every schedule in which actors that could go on are stopped so often, at most."""
    plans: list[dict[int, str]] = [{}]
    while plans:
        plan, seen = plans.pop(0), list[tuple[Sequence[str], str]]()

        def choose(ready: Sequence[str], at_work: str, plan: dict[int, str] = plan, seen: list[Any] = seen) -> str:
            usual = at_work if at_work in ready else ready[0]
            seen.append((ready, at_work))
            return plan.get(len(seen) - 1, usual)

        run(choose)
        stopped = sum(seen[number][1] in seen[number][0] for number in plan)
        for number in range(max(plan, default=-1) + 1, len(seen)):
            ready, at_work = seen[number]
            if stopped + (at_work in ready) <= preemptions:
                usual = at_work if at_work in ready else ready[0]
                plans += [{**plan, number: name} for name in ready if name != usual]


class Schedule:
    """One schedule of actors, and its trace."""

    def __init__(self, folder: Path, choose: Choose, now: float = START) -> None:
        """`folder`: the table's, whose files are those of the trace."""
        self.now = now
        self.lines: list[str] = []
        self.ages_of_gone: dict[str, float] = {}
        """Ages of the files that were deleted, in seconds, by path"""
        self.check: Callable[[], None] = lambda: None
        """Law of the table after each commit, and each step that deleted a Puffin file"""
        self._folder = folder
        self._choose = choose
        self._batons: dict[str, threading.Semaphore] = {}
        self._actors: dict[int, str] = {}
        self._error: BaseException | None = None
        self._all_ended = threading.Event()
        self._ages = dict.fromkeys(self._files(), now)

    @property
    def trace(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    def run(self, actors: Mapping[str, Callable[[], None]]) -> None:
        """Run all to their ends. Raises the first error of one."""
        self._batons = {name: threading.Semaphore(0) for name in actors}
        threads = [threading.Thread(target=self._act, args=item, daemon=True) for item in actors.items()]
        for thread in threads:
            thread.start()
        self._pass_on("")
        if not self._all_ended.wait(_STUCK_SECONDS):
            raise TimeoutError("an actor waits for one that does not run")
        if self._error is not None:
            raise self._error
        for thread in threads:
            thread.join()

    def point(self, what: str) -> None:
        """The end of a step of the actor that calls it; in other threads nothing."""
        if (name := self._actors.get(threading.get_ident())) is None:
            return
        self._end_step(name, what)
        self.now += 0.001
        self._pass_on(name)
        self._batons[name].acquire()

    def _act(self, name: str, work: Callable[[], None]) -> None:
        self._actors[threading.get_ident()] = name
        try:
            self._batons[name].acquire()
            work()
            self._end_step(name, "ends")
        except BaseException as error:
            self._error = error
        del self._batons[name]
        if self._error is None and self._batons:
            self._pass_on(name)
        else:
            self._all_ended.set()

    def _pass_on(self, at_work: str) -> None:
        self._batons[self._choose(tuple(self._batons), at_work)].release()

    def _end_step(self, name: str, what: str) -> None:
        files = self._files()
        changes = [f"+{path}" for path in sorted(files - self._ages.keys())]
        gone = self._ages.keys() - files
        changes += [f"-{path}" for path in sorted(gone)]
        self.ages_of_gone |= {path: self.now - self._ages[path] for path in gone}
        self._ages = {path: self._ages.get(path, self.now) for path in files}
        self.lines.append(" ".join((f"{len(self.lines)} {self.now - START:.3f} {name} {what}", *changes)))
        if what.startswith("commits") or any(path.endswith(".puffin") for path in gone):
            self.check()

    def _files(self) -> set[str]:
        return {str(path.relative_to(self._folder)) for path in self._folder.rglob("*") if path.is_file()}

    def age(self, path: str) -> float:
        """How old a file is, or was when it went."""
        return self.ages_of_gone[path] if path in self.ages_of_gone else self.now - self._ages[path]

    def watch(self, catalog: Catalog) -> None:
        """A look at a table, and a commit, end a step."""
        load, commit = catalog.load_table, catalog.commit_table

        def load_table(*args: Any) -> Table:
            table = load(*args)
            self.point("loads")
            return table

        def commit_table(table: Table, requirements: Any, updates: Any) -> Any:
            done = "commits " + ",".join(sorted({update.action for update in updates}))
            try:
                return commit(table, requirements, updates)
            except Exception as error:
                done += f": {type(error).__name__}"
                raise
            finally:
                self.point(done)

        catalog.load_table, catalog.commit_table = load_table, commit_table  # type: ignore[method-assign]

    @contextmanager
    def entered(self, salt: str) -> Iterator[pytest.MonkeyPatch]:
        """While it is entered, clocks, ids and points are those of the schedule."""
        listed, delete, begin = LocalStorage.list, LocalStorage.delete, BackgroundFile.begin

        def list_in_order(store: LocalStorage, prefix: str) -> Iterator[ObjectInfo]:
            infos = sorted(listed(store, prefix), key=lambda info: info.path)
            self.point("lists")
            for info in infos:
                name = str(Path(info.path.removeprefix("file://")).relative_to(self._folder))
                yield replace(info, modified_ms=int(self._ages.get(name, self.now) * 1000))

        def delete_after(store: LocalStorage, path: str) -> None:
            self.point("deletes")
            delete(store, path)

        def sleep(_: float) -> None:
            self.now += _PAUSE_SECONDS
            self.point("pauses")

        with repeatable(lambda: self.now, salt), pytest.MonkeyPatch.context() as patch:
            patch.setattr(steps, "observer", lambda step: self.point(step.value))
            patch.setattr(LocalStorage, "list", list_in_order)
            patch.setattr(LocalStorage, "delete", delete_after)
            patch.setattr(LocalStorage, "now_ms", lambda *_: int(self.now * 1000))
            patch.setattr(BackgroundFile, "begin", lambda file, first, most: begin(file, (), most))
            patch.setattr(time, "sleep", sleep)
            yield patch
