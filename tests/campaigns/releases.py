"""Three releases at one table: the wheel of 0.1.0, this tree, and a later release (`later_release`), each in a process.

Random histories: writes by PyIceberg, and what releases do, in turn and two at once. After each step every row is
there, every file that is named is, and each release answers as brute force does. What one cannot read it refuses by
name, leaves as it is, and never replaces; it goes on once that is dropped. Hypothesis shrinks a history that fails.
"""

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.expressions import In
from pyiceberg.table import Table

from icepuffin.ann_kernels.compiled_code import sources_digest
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.ownership import own_snapshots
from icepuffin.ops.table.snapshots import data_snapshots
from tests.campaigns.budget import BrokenPromiseError, Budget
from tests.campaigns.later_release import KIND, PARAMETERS
from tests.campaigns.release_process import Release
from tests.conftest import ROWS, make_rows, queries
from tests.repository import REPOSITORY

WHEEL = REPOSITORY / "tests" / "conformance" / "golden" / "icepuffin-0.1.0-py3-none-any.whl"
NEWER = "newer"
_RELEASES = st.sampled_from(["wheel", "tree", NEWER])
_NAMES = ("a", "b")
_ACTS = [
    *["refresh", "refresh", "refresh", "refresh_all", "refresh_all", "gc", "gc", "at_once", "at_once"],
    *["append", "append", "delete", "compact", "expire", "create", "create", "drop", "other_kind", "plan", "verify"],
]
_LATER = "a later"
"""Words of all messages about what a release does not know, as of `a later release`"""
_K = 5
_PROPERTIES = {"format-version": "2", "write.metadata.previous-versions-max": "1"}
_STEPS = 25
"""Steps of a history"""
_LOST_RACES = frozenset({"LostRaceError", "BindingError", "UnknownSnapshotError"})
"""What a run that meets another may end with, and succeeds when it is tried again"""
_numbers = itertools.count()


def run(budget: Budget, histories: int = 10, steps: int = _STEPS) -> None:
    """`histories` in each trial. Raises BrokenPromiseError."""
    with tempfile.TemporaryDirectory() as folder, _releases(Path(folder)) as releases:
        Releases.folder, Releases.releases, Releases.budget = Path(folder), releases, budget
        for number, rng in budget.trials():
            try:
                run_machine(
                    seed(rng.random())(Releases),
                    settings=settings(
                        max_examples=histories,
                        stateful_step_count=steps,
                        deadline=None,
                        database=None,
                        phases=(Phase.generate, Phase.shrink),
                        suppress_health_check=list(HealthCheck),
                    ),
                )
            except Exception as error:
                history = "\n".join(getattr(error, "__notes__", ()))
                raise BrokenPromiseError(f"trial {number}: {type(error).__name__}: {error}\n{history}") from error


@contextmanager
def _releases(folder: Path) -> Iterator[Mapping[str, Release]]:
    with ZipFile(WHEEL) as wheel:
        wheel.extractall(folder / "wheel")
    for package in ("ann_kernels", "puffin"):  # kernels that are compiled, of sources that are the same
        for kernels in (REPOSITORY / package).rglob(f"__pycache__/{sources_digest()}"):
            shutil.copytree(kernels, folder / "wheel" / "icepuffin" / kernels.relative_to(REPOSITORY))
    sites = {"wheel": folder / "wheel", "tree": REPOSITORY, NEWER: REPOSITORY}
    releases = {name: Release(name, site, folder, is_later=name == NEWER) for name, site in sites.items()}
    try:
        yield releases
    finally:
        for release in releases.values():
            release.close()


class Releases(RuleBasedStateMachine):
    """A table, and what writers and releases do to it in any order."""

    folder: ClassVar[Path]
    releases: ClassVar[Mapping[str, Release]]
    budget: ClassVar[Budget]
    """Counts of steps, by kind"""

    @initialize(release=_RELEASES, newly=st.booleans())
    def create_table(self, release: str, newly: bool) -> None:
        uri, warehouse = f"sqlite:///{self.folder}/catalog.db", f"file://{self.folder}/warehouse"
        self.catalog: Catalog = load_catalog("releases", type="sql", uri=uri, warehouse=warehouse)
        self.catalog.create_namespace_if_not_exists("db")
        self.name = f"db.t{next(_numbers)}"
        self.table: Table = self.catalog.create_table(self.name, ROWS, properties=_PROPERTIES)
        for name, process in self.releases.items():
            site = self.folder / name if name == "wheel" else REPOSITORY
            assert process.open(uri=uri, warehouse=warehouse, table=self.name).startswith(f"{site}/")
        self.rows, self.next_id = set[int](), 0
        self.indexes: dict[str, bool] = {}
        """Whether only the later release understands its definition, by index"""
        self.unreadable = set[int]()
        """Snapshots of versions that only the later release can read"""
        self.answered, self.asked = "", 0
        self.bound = set[int]()
        """Snapshots of the kind that only the later release has"""
        self._append(count=20)
        self._create(release, _NAMES[0], newly=newly and release == NEWER)

    def teardown(self) -> None:
        if hasattr(self, "table"):
            shutil.rmtree(to_path(self.table.location()))

    @rule(act=st.sampled_from(_ACTS), release=_RELEASES, index=st.sampled_from(_NAMES), newly=st.booleans())
    def step(self, act: str, release: str, index: str, newly: bool) -> None:
        """`newly`: whether the later release makes what only it has; at once, whether the second one collects."""
        self.budget.counts[act] += 1
        getattr(self, f"_{act}")(release, index, newly=newly and (release == NEWER or act == "at_once"))

    # -------------------------------------------------------------------------------------------------------- writers

    def _append(self, *_: str, newly: bool = False, count: int = 7) -> None:
        self.table.refresh().append(make_rows(self.next_id, self.next_id + count))
        self.rows.update(range(self.next_id, self.next_id + count))
        self.next_id += count

    def _delete(self, *_: str, newly: bool) -> None:
        gone = sorted(self.rows)[self.next_id % 3 :: 5]
        self.table.refresh().delete(In("id", gone))
        self.rows.difference_update(gone)

    def _compact(self, *_: str, newly: bool) -> None:
        self.table.refresh().overwrite(self.table.scan().to_arrow())

    def _expire(self, *_: str, newly: bool) -> None:
        """All snapshots that no ref needs."""
        metadata = self.table.refresh().metadata
        kept = {ref.snapshot_id for ref in metadata.refs.values()}
        old = [it.snapshot_id for it in metadata.snapshots if it.snapshot_id not in kept]
        if old:
            self.table.maintenance.expire_snapshots().by_ids(old).commit()

    # ------------------------------------------------------------------------------------------------------- releases

    def _create(self, release: str, index: str, *, newly: bool) -> None:
        if index not in self.indexes:
            more = PARAMETERS[self.next_id % 2] if newly else {}
            self._do(release, "create", index=index, **more)
            self.indexes[index] = newly
        elif not self._knows(release, index):
            self._refused(release, "create", index=index)

    def _drop(self, release: str, index: str, *, newly: bool) -> None:
        if index in self.indexes:
            self._do(release, "drop", index=index)
            assert self._tag(index) is None
            del self.indexes[index]

    def _refresh(self, release: str, index: str | None, *, newly: bool) -> None:
        indexes = [name for name in self.indexes if index in (None, name) and self._knows(release, name)]
        if index in self.indexes and not indexes:
            self._refused(release, "refresh", index=index)
        before = own_snapshots(self.table.refresh().metadata).keys()
        bits = {"bits": 2 if newly else 0} if release == NEWER else {}
        leaves_out = index is None and len(indexes) < len(self.indexes)  # as it says in the end
        if leaves_out or not all(self._reads(release, name) for name in indexes):
            self._refused(release, "refresh", index=index)
        elif indexes or index is None:
            self._do(release, "refresh", index=index, **bits)
        self._note_unreadable(before, newly)
        if index is None:
            assert self._do(release, "ndv").keys() == {"id", "name", "section"}, f"{release}: sketches"
        for name in indexes:
            if self._reads(release, name):
                self._require_fresh(release, name)

    def _refresh_all(self, release: str, _: str, *, newly: bool) -> None:
        """With the sketches. What cannot be refreshed keeps no other index back."""
        self._refresh(release, None, newly=newly)

    def _gc(self, release: str, _: str, *, newly: bool) -> None:
        tags = {index: self._tag(index) for index in self.indexes}
        self._do(release, "gc", grace_hours=0.0)
        assert tags == {index: self._tag(index) for index in self.indexes}, "tags moved by gc"

    def _plan(self, release: str, index: str, *, newly: bool) -> None:
        if index in self.indexes and not (self._knows(release, index) and self._reads(release, index)):
            self._refused(release, "plan", index=index)
        elif index in self.indexes:
            self._do(release, "plan", index=index)

    def _verify(self, release: str, index: str, *, newly: bool) -> None:
        if index not in self.indexes or self._tag(index) is None:
            return
        if not self._knows(release, index):
            self._refused(release, "verify", index=index)
            return
        faults = self._do(release, "verify", index=index)
        assert faults == [] if self._reads(release, index) else _LATER in faults[0], faults

    def _other_kind(self, *_: str, newly: bool) -> None:
        """Of the later release: bound, or all of them dropped."""
        if len(self.bound) < 2:
            self.bound.add(self._do(NEWER, "bind_later"))
        else:
            self._do(NEWER, "drop_later")
            self.bound.clear()

    def _at_once(self, release: str, _: str, *, newly: bool) -> None:
        """A refresh beside another, or beside a collection for which all that there is before is old enough."""
        before = own_snapshots(self.table.refresh().metadata).keys()
        unread = {index: tag for index in self.indexes if (tag := self._tag(index)) in self.unreadable}
        for path in to_path(self.table.location()).rglob("*"):
            os.utime(path, (0, 0))
        others = [name for name in self.releases if name != release]
        runs = {release: ("refresh", {"index": None}), others[self.next_id % 2]: ("refresh", {"index": None})}
        if newly:
            runs[others[self.next_id % 2]] = ("gc", {"grace_hours": 24.0})
        for name, (command, arguments) in runs.items():
            self.releases[name].ask(command, **arguments)
        for name, (command, _) in runs.items():
            answer = self.releases[name].answer()
            is_refused = command == "refresh" and any(it in unread or not self._knows(name, it) for it in self.indexes)
            is_refused = is_refused and name != NEWER and _LATER in answer.error
            assert not answer.error or is_refused or not _LOST_RACES.isdisjoint(answer.kinds), answer
        self._note_unreadable(before, False)
        if NEWER not in runs:
            assert unread == {index: self._tag(index) for index in unread}, "a later version was replaced"

    # ----------------------------------------------------------------------------------------------------------- laws

    @invariant()
    def everything_is_there(self) -> None:
        metadata = self.table.refresh().metadata
        snapshots = {snapshot.snapshot_id for snapshot in metadata.snapshots}
        named = [entry.statistics_path for entry in metadata.statistics if entry.snapshot_id in snapshots]
        named += [snapshot.manifest_list for snapshot in metadata.snapshots]
        assert [path for path in named if not to_path(path).exists()] == [], "named files are gone"
        assert self.bound <= snapshots, "snapshots of a later kind are gone"
        packs = {pack for it in own_snapshots(metadata).values() if it.kind == KIND for pack in it.pack_ids}
        assert packs <= snapshots, "packs of a later kind are gone"

    @invariant()
    def releases_answer(self) -> None:
        """One after the other, where the table has changed."""
        if self.table.refresh().metadata_location == self.answered:
            return
        self.answered = self.table.metadata_location
        rows = self.table.scan().to_arrow()
        assert set(rows["id"].to_pylist()) == self.rows
        assert len(rows) == len(self.rows)
        query = queries(1 + self.next_id % 50)[-1]
        nearest = _nearest(query, rows)
        distinct = {name: len(rows[name].unique()) for name in ("id", "name", "section")}
        release = list(self.releases)[self.asked % len(self.releases)]
        self.asked += 1
        for index in self.indexes:
            self._require_answer(release, index, query, nearest)
        ndv = self._do(release, "ndv")
        assert ndv == {column: distinct[column] for column in ndv}, f"{release}: distinct values"

    def _require_answer(self, release: str, index: str, query: npt.NDArray[np.float32], nearest: list[int]) -> None:
        search = {"index": index, "query": query.tolist(), "k": _K}
        if not self._knows(release, index):
            self._refused(release, "search", **search)
            return
        ids, warnings = self._do(release, "search", **search)
        assert ids == nearest, f"{release}, index {index}: {ids}, and not {nearest}"
        if self._reads(release, index):
            ours = [warning for warning in warnings if _LATER not in warning]
            assert not ours, f"{release}, index {index}: {warnings}"
        elif not self._has_readable(index):
            assert any(_LATER in warning for warning in warnings), f"{release}, index {index}: {warnings}"

    # -------------------------------------------------------------------------------------------------------- helpers

    def _do(self, release: str, command: str, **arguments: Any) -> Any:
        return self.releases[release].do(command, **arguments)

    def _refused(self, release: str, command: str, **arguments: Any) -> None:
        """By an error that names what is later; no tag has left a version of the later release."""
        self.budget.notes["refused"] += 1
        unread = {index: tag for index in self.indexes if (tag := self._tag(index)) in self.unreadable}
        self.releases[release].ask(command, **arguments)
        answer = self.releases[release].answer()
        assert not {"DefinitionError", "LaterReleaseError"}.isdisjoint(answer.kinds), f"{release}, {command}: {answer}"
        assert _LATER in answer.error, answer
        assert unread == {index: self._tag(index) for index in unread}, "a later version was replaced"

    def _knows(self, release: str, index: str) -> bool:
        return release == NEWER or not self.indexes[index]

    def _reads(self, release: str, index: str) -> bool:
        return release == NEWER or self._tag(index) not in self.unreadable

    def _tag(self, index: str) -> int | None:
        ref = self.table.refresh().metadata.refs.get(f"ann_{index}")
        return None if ref is None else ref.snapshot_id

    def _head(self) -> int:
        return data_snapshots(self.table.refresh())[-1].snapshot_id

    def _has_readable(self, index: str) -> bool:
        """Whether the head has a version of the index that each release can read."""
        return any(
            version.base_snapshot_id == self._head() and version.index_snapshot_id not in self.unreadable
            for version in index_versions(self.table, index)
        )

    def _note_unreadable(self, before: Any, of_feature: bool) -> None:
        """Note which of the versions that there were not `before` only the later release can read."""
        metadata = self.table.refresh().metadata
        for snapshot in metadata.snapshots:
            summary = snapshot.summary.additional_properties if snapshot.summary else {}
            index = summary.get("ann.index")
            if snapshot.snapshot_id not in before and index is not None and (of_feature or self.indexes[index]):
                self.unreadable.add(snapshot.snapshot_id)

    def _require_fresh(self, release: str, index: str) -> None:
        """The index's tag is on a version of the head, and the release answers by it without a warning."""
        tagged = own_snapshots(self.table.refresh().metadata)[self._tag(index)]
        assert tagged.base_id == self._head()
        _, warnings = self.releases[release].do("search", index=index, query=queries(1)[0].tolist(), k=_K)
        assert warnings == [], f"{release}, index {index}: {warnings}"


def _nearest(query: npt.NDArray[np.float32], rows: Any) -> list[int]:
    vectors = np.array(rows["embedding"].to_pylist(), np.float64).reshape(len(rows), -1)
    order = np.argsort(((vectors - query) ** 2).sum(axis=1))[:_K]
    return [rows["id"][int(number)].as_py() for number in order]
