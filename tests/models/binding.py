"""A model of how versions are bound to a table among writers, expiry and sweeps, and a search of all that can happen.

A state is a table's metadata, its files, and what each process knows. A step is what one process does at once: to look
at the metadata, or to commit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

SERVERS = "pyiceberg", "java", "lax"
"""PyIceberg writes the metadata, and evaluates our own requirement; Java's library refuses numbers above the last one;
a server that compares no numbers of snapshots without a parent"""
TAG = "ann"


class Snap(NamedTuple):
    id: int
    number: int
    base: int = 0
    """The data snapshot of a version, which alone has a file; 0 for others"""
    packs: tuple[int, ...] = ()
    is_pack: bool = False

    @property
    def is_ours(self) -> bool:
        return bool(self.base) or self.is_pack


class Commit(NamedTuple):
    """A commit of a version, with all that it asserts."""

    last: int
    main: int
    tag: str
    expected: int
    shared: tuple[int, ...]
    snaps: tuple[Snap, ...]
    """The version, and its new pack"""


class Run(NamedTuple):
    """A refresh: what it plans, and how far it is."""

    base: int
    tag: str
    expected: int
    version: int
    """Id of its version, and of the file"""
    shared: tuple[int, ...]
    new_packs: tuple[int, ...]
    request: Commit | None = None
    attempts: int = 0
    is_unanswered: bool = False
    is_mending: bool = False


class Left(NamedTuple):
    """How often each thing may still happen."""

    refreshes: int = 0
    expiries: int = 0
    crashes: int = 0
    writes: int = 0
    staged: int = 0
    drops: int = 0
    losses: int = 0
    sweeps: int = 0
    rollbacks: int = 0


class State(NamedTuple):
    """At first the table has two snapshots, and a version of the older one with a pack."""

    left: Left
    last: int = 2
    highest: int = 2
    """The highest number that a user's snapshot has had"""
    ids: int = 5
    snaps: frozenset[Snap] = frozenset({Snap(1, 1), Snap(2, 2), Snap(3, 1, 1, (4,)), Snap(4, 1, is_pack=True)})
    refs: frozenset[tuple[str, int]] = frozenset({("main", 2), (TAG, 3), ("pack-4", 4)})
    files: frozenset[int] = frozenset({3, 4})
    runs: tuple[Run | None, ...] = (None, None)
    late: frozenset[Commit] = frozenset()
    writers: tuple[tuple[int, int], ...] = ((2, 2), (2, 2))
    """(last number, main) as each writer loaded them: handles are kept for long"""
    listed: frozenset[int] | None = None
    """Files that a sweep has listed as nobody's"""
    unnamed: tuple[frozenset[int], frozenset[tuple[str, int]]] | None = None
    """Packs that a sweep has seen unnamed, and the refs then"""

    def ref(self, name: str) -> int:
        return next((target for ref, target in self.refs if ref == name), 0)

    def with_ref(self, name: str, target: int) -> "State":
        others = frozenset(pair for pair in self.refs if pair[0] != name)
        return self._replace(refs=others | {(name, target)} if target else others)

    def without(self, ids: frozenset[int]) -> "State":
        """Snapshots removed, with the refs on them, and their files, as an expiry of any engine does."""
        snaps = frozenset(snap for snap in self.snaps if snap.id not in ids)
        refs = frozenset(pair for pair in self.refs if pair[1] not in ids)
        return self._replace(snaps=snaps, refs=refs, files=self.files - ids)

    def spend(self, what: str) -> "State":
        return self._replace(left=self.left._replace(**{what: getattr(self.left, what) - 1}))

    def with_run(self, place: int, run: Run | None) -> "State":
        return self._replace(runs=tuple(run if other == place else old for other, old in enumerate(self.runs)))

    def in_order(self) -> "State":
        """Which run or writer is which makes no difference."""
        runs = tuple(sorted(self.runs, key=lambda run: run.version if run else 0))
        return self._replace(runs=runs, writers=tuple(sorted(self.writers)))

    @property
    def top(self) -> int:
        return max(snap.number for snap in self.snaps)


@dataclass(frozen=True, slots=True)
class Model:
    server: str
    mutant: str = ""

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for place in range(len(state.runs)):
            yield from self._run(state, place)
        for commit in state.late:
            landed = self._commit(state._replace(late=state.late - {commit}), commit)
            yield "a late request lands", landed or state._replace(late=state.late - {commit})
        yield from self._users(state)
        yield from self._sweep(state)

    def _run(self, state: State, place: int) -> Iterator[tuple[str, State]]:
        run, left = state.runs[place], state.left
        if run is None:
            if left.refreshes:
                for base, is_new in product((snap for snap in state.snaps if not snap.is_ours), (True, False)):
                    yield from self._plan(state.spend("refreshes"), place, base.id, is_new)
            return
        if left.crashes:
            yield f"run {place} dies", state.spend("crashes").with_run(place, None)
        if run.is_mending:
            right = state if self.mutant == "no mending" else state._replace(last=max(state.last, state.top))
            yield f"run {place} mends", right.with_run(place, None)
        elif run.request is None:
            yield self._look(state, place, run)
        else:
            yield from self._send(state, place, run, run.request)

    def _plan(self, state: State, place: int, base: int, is_new: bool) -> Iterator[tuple[str, State]]:
        tag = TAG if base == state.ref("main") else f"{TAG}-{base}"
        head = next((snap for snap in state.snaps if snap.id == state.ref(TAG)), None)
        shared = head.packs if head and not is_new else ()
        if not is_new and not (shared and all(state.ref(f"pack-{pack}") for pack in shared)):
            return
        version, new_packs = state.ids, ((state.ids + 1,) if is_new else ())
        run = Run(base, tag, state.ref(tag), version, shared, new_packs)
        made = state._replace(ids=state.ids + 2, files=state.files | {version, *new_packs})
        yield f"run {place} makes {version} of {base}", made.with_run(place, run)

    def _look(self, state: State, place: int, run: Run) -> tuple[str, State]:
        if any(snap.id == run.version for snap in state.snaps):
            return f"run {place} finds its version", self._done(state, place, run)
        packs_stay = all(state.ref(f"pack-{pack}") == pack for pack in run.shared)
        if state.ref(run.tag) != run.expected or not packs_stay:
            if run.is_unanswered and self.mutant != "lost race deletes what may land":
                return f"run {place} leaves its file", state.with_run(place, None)
            files = state.files - {run.version, *run.new_packs}
            return f"run {place} lost the race", state._replace(files=files).with_run(place, None)
        if run.attempts == 2 or all(snap.id != run.base for snap in state.snaps):
            return f"run {place} gives up", state.with_run(place, None)
        last = max(state.last, state.top)
        number = last + (self.mutant == "next number")
        packs = tuple(Snap(pack, number, is_pack=True) for pack in run.new_packs)
        snap = Snap(run.version, number, run.base, (*run.shared, *run.new_packs))
        request = Commit(last, state.ref("main"), run.tag, run.expected, run.shared, (snap, *packs))
        return f"run {place} reads the table", state.with_run(place, run._replace(request=request))

    def _send(self, state: State, place: int, run: Run, request: Commit) -> Iterator[tuple[str, State]]:
        again = run._replace(request=None, attempts=run.attempts + 1)
        committed = self._commit(state, request)
        if committed is None:
            yield f"run {place} is refused", state.with_run(place, again)
        else:
            yield f"run {place} commits", self._done(committed, place, run)
        if state.left.losses:
            unknown = state.spend("losses").with_run(place, again._replace(is_unanswered=True))
            yield f"the request of run {place} is late", unknown._replace(late=unknown.late | {request})
            if committed is not None:
                lost = committed.spend("losses").with_run(place, again._replace(is_unanswered=True))
                yield f"the answer to run {place} is lost", lost

    def _done(self, state: State, place: int, run: Run) -> State:
        if self.mutant == "pack tagged later":
            for pack in run.new_packs:
                state = state.with_ref(f"pack-{pack}", pack if any(s.id == pack for s in state.snaps) else 0)
        return state.with_run(place, run._replace(is_mending=True) if self.server == "lax" else None)

    def _commit(self, state: State, request: Commit) -> State | None:
        """The state after it; None where the server, or PyIceberg in its place, refuses it."""
        number = request.snaps[0].number
        refusals = (
            self.mutant != "no tag asserted" and state.ref(request.tag) != request.expected,
            self.mutant != "no packs asserted" and any(state.ref(f"pack-{it}") != it for it in request.shared),
            self.mutant != "no branches asserted" and state.ref("main") != request.main,
            self.server == "pyiceberg"
            and self.mutant != "no numbers compared"
            and max(state.last, state.top) != request.last,
            self.server == "java" and self.mutant != "no numbers compared" and state.top > number,
            self.mutant == "next number" and number <= state.last,
        )
        if any(refusals):
            return None
        state = state._replace(snaps=state.snaps | {*request.snaps}, last=number)
        if self.mutant not in ("pack tagged later", "pack keeps no tag"):
            for pack in request.snaps[1:]:
                state = state.with_ref(f"pack-{pack.id}", pack.id)
        return state.with_ref(request.tag, request.snaps[0].id)

    def _users(self, state: State) -> Iterator[tuple[str, State]]:
        left, main = state.left, state.ref("main")
        for place, (last, head) in enumerate(state.writers):
            others = state.writers[:place] + state.writers[place + 1 :]

            def written(number: int, place: int = place, others: tuple[tuple[int, int], ...] = others) -> State:
                snap = Snap(state.ids, number)
                handles = (*others[:place], (number, snap.id), *others[place:])
                added = state._replace(ids=snap.id + 1, snaps=state.snaps | {snap}, last=number, writers=handles)
                return added._replace(highest=max(state.highest, number))

            if left.writes and head == main and last >= state.highest:
                if last + 1 <= state.last:  # nobody but us has committed since it loaded the table
                    raise BrokenLawError(f"writer {place} fails: its number {last + 1} is taken")
                yield f"writer {place} appends", written(last + 1).with_ref("main", state.ids).spend("writes")
            if left.staged and last >= state.highest:
                if last + 1 <= state.last:
                    raise BrokenLawError(f"writer {place} cannot stage: its number {last + 1} is taken")
                yield f"writer {place} stages", written(last + 1).spend("staged")
            if (last, head) != (state.last, main):
                handles = (*others[:place], (state.last, main), *others[place:])
                yield f"writer {place} loads the table", state._replace(writers=handles)
        if left.rollbacks and main != 1 and any(snap.id == 1 for snap in state.snaps):
            yield "main is rolled back", state.with_ref("main", 1).spend("rollbacks")
        if left.expiries:
            kept = {target for _, target in state.refs} | in_use(state)
            yield "expiry", state.without(frozenset(s.id for s in state.snaps if s.id not in kept)).spend("expiries")
        if left.drops:
            refs = frozenset(pair for pair in state.refs if pair[0] == "main")
            yield "the index is dropped", state._replace(refs=refs).spend("drops")

    def _sweep(self, state: State) -> Iterator[tuple[str, State]]:
        """Files that nobody names, and packs that no version names."""
        named = {snap.id for snap in state.snaps if snap.is_ours}
        if state.listed is not None:
            reads_late = self.mutant != "metadata read before the list of files"
            files = state.listed - named if reads_late else state.files - in_use(state) - state.listed
            yield "files are swept", state._replace(files=state.files - files, listed=None)
        elif state.unnamed is not None:
            packs, refs = state.unnamed
            free = state._replace(unnamed=None)
            may = self.mutant == "sweep asserts no refs" or refs == state.refs
            yield "packs are swept", free.without(packs) if may else free
        elif state.left.sweeps:
            swept = state.spend("sweeps")
            is_late = self.mutant != "metadata read before the list of files"
            yield (
                "files are listed",
                swept._replace(listed=state.files - in_use(state) if is_late else frozenset(named)),
            )
            in_versions = {pack for snap in state.snaps for pack in snap.packs}
            unnamed = frozenset(snap.id for snap in state.snaps if snap.is_pack and snap.id not in in_versions)
            if unnamed:
                yield "unnamed packs are listed", swept._replace(unnamed=(unnamed, state.refs))


def in_use(state: State) -> frozenset[int]:
    """What is younger than the grace period of a sweep, and than the age at which others expire snapshots: what a run
    is at work on, and what a request names that may land.
    """
    runs = {item for run in state.runs if run for item in (run.version, *run.new_packs)}
    return frozenset(runs | {snap.id for commit in state.late for snap in commit.snaps})


class BrokenLawError(Exception):
    """Raised where a state, or a step, breaks a law."""


def require_laws(state: State) -> None:
    if state.last < state.top and not any(run and run.is_mending for run in state.runs):
        raise BrokenLawError("Java cannot read the table: a snapshot is above the last number")
    by_id = {snap.id: snap for snap in state.snaps}
    if by_id[state.ref("main")].number > state.last:  # on any server: what moves main is refused
        raise BrokenLawError("Java cannot read the table: the head of main is above the last number")
    for name, target in state.refs:
        snap = by_id[target]
        lost = [item for item in (target, *snap.packs) if snap.is_ours and not (item in by_id and item in state.files)]
        if lost:
            raise BrokenLawError(f"{name} needs {lost}, which is gone")


def require_no_way_back(state: State, after: State) -> None:
    """A run that did not see the newest version does not put the tag on an older one."""
    bases = {snap.id: snap.base for each in (state, after) for snap in each.snaps}
    old, new = (bases.get(each.ref(TAG), 0) for each in (state, after))
    if 0 < new < old and new != after.ref("main"):
        raise BrokenLawError("the tag goes back to an older snapshot")
