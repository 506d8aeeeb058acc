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
SKETCHES = "theta"
SIDE_TAG = "ann-side"
"""The tag that each version moves which shares packs under a tag of its own"""


class Snap(NamedTuple):
    id: int
    number: int
    base: int = 0
    """The data snapshot of a version, of the index or of sketches, which alone has a file; 0 for others"""
    packs: tuple[int, ...] = ()
    is_pack: bool = False

    @property
    def is_ours(self) -> bool:
        return bool(self.base) or self.is_pack


class Part(NamedTuple):
    """A version that a run makes: of the index, or of the sketches beside it."""

    tag: str
    expected: int
    version: int
    """Id of the version, and of the file"""
    shared: tuple[int, ...] = ()
    new_packs: tuple[int, ...] = ()

    @property
    def files(self) -> frozenset[int]:
        return frozenset((self.version, *self.new_packs))


class Commit(NamedTuple):
    """A commit of parts, with all that it asserts."""

    last: int
    main: int
    base: int
    number: int
    parts: tuple[Part, ...]

    @property
    def snaps(self) -> frozenset[Snap]:
        """The versions, and their new packs"""
        packs = {Snap(pack, self.number, is_pack=True) for part in self.parts for pack in part.new_packs}
        versions = (Snap(it.version, self.number, self.base, (*it.shared, *it.new_packs)) for it in self.parts)
        return frozenset(packs.union(versions))


class Run(NamedTuple):
    """A refresh: what it plans, and how far it is."""

    id: int
    base: int
    parts: tuple[Part, ...]
    """Parts without an outcome"""
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
    """Packs that a sweep has seen unnamed, and the refs then that its commit asserts"""

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
        runs = tuple(sorted(self.runs, key=lambda run: run.id if run else 0))
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
        side = "" if base == state.ref("main") else f"-{base}"
        head = next((snap for snap in state.snaps if snap.id == state.ref(TAG)), None)
        shared = head.packs if head and not is_new else ()
        if not is_new and not (shared and all(state.ref(f"pack-{pack}") for pack in shared)):
            return
        version, new_packs = state.ids, ((state.ids + 1,) if is_new else ())
        index = Part(TAG + side, state.ref(TAG + side), version, shared, new_packs)
        sketches = Part(SKETCHES + side, state.ref(SKETCHES + side), state.ids + 2)
        run = Run(version, base, (index, sketches))
        made = state._replace(ids=state.ids + 3, files=state.files | index.files | sketches.files)
        yield f"run {place} makes {version} of {base}", made.with_run(place, run)

    def _look(self, state: State, place: int, run: Run) -> tuple[str, State]:
        present = {snap.id for snap in state.snaps}
        pending = tuple(part for part in run.parts if part.version not in present)
        open_parts = tuple(part for part in pending if self._is_open(state, part))
        overtaken = tuple(part for part in pending if part not in open_parts)
        kept = run.parts if run.is_unanswered and self.mutant != "lost race deletes what may land" else ()
        if self.mutant == "the answer to the first part alone is lost":
            kept = kept[:1]
        if self.mutant == "a lost part takes the others' files" and overtaken:
            overtaken = run.parts
        gone = frozenset().union(*(part.files for part in overtaken if part not in kept))
        state = state._replace(files=state.files - gone)
        if not open_parts:
            return f"run {place} has an outcome for each part", self._done(state, place, run)
        if run.attempts == 2 or run.base not in present:
            return f"run {place} gives up", state.with_run(place, None)
        last = max(state.last, state.top)
        request = Commit(last, state.ref("main"), run.base, last + (self.mutant == "next number"), open_parts)
        return f"run {place} reads the table", state.with_run(place, run._replace(parts=open_parts, request=request))

    def _is_open(self, state: State, part: Part) -> bool:
        """Whether nobody has overtaken it."""
        return state.ref(part.tag) == part.expected and all(state.ref(f"pack-{it}") == it for it in part.shared)

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
            for pack in run.parts[0].new_packs:
                state = state.with_ref(f"pack-{pack}", pack if any(s.id == pack for s in state.snaps) else 0)
        return state.with_run(place, run._replace(is_mending=True) if self.server == "lax" else None)

    def _commit(self, state: State, request: Commit) -> State | None:
        """The state after it; None where the server, or PyIceberg in its place, refuses it."""
        number, parts = request.number, request.parts
        shared = {pack for part in parts for pack in part.shared}
        refusals = (
            self.mutant != "no tag asserted" and any(state.ref(part.tag) != part.expected for part in parts),
            self.mutant != "no packs asserted" and any(state.ref(f"pack-{it}") != it for it in shared),
            self.mutant != "no branches asserted" and state.ref("main") != request.main,
            self.server == "pyiceberg"
            and self.mutant != "no numbers compared"
            and max(state.last, state.top) != request.last,
            self.server == "java" and self.mutant != "no numbers compared" and state.top > number,
            self.mutant == "next number" and number <= state.last,
        )
        if any(refusals):
            return None
        state = state._replace(snaps=state.snaps | request.snaps, last=number)
        for part in parts:
            if self.mutant not in ("pack tagged later", "pack keeps no tag"):
                for pack in part.new_packs:
                    state = state.with_ref(f"pack-{pack}", pack)
            if part.shared and part.tag not in (TAG, SKETCHES) and self.mutant != "no side tag":
                state = state.with_ref(SIDE_TAG, part.version)
            state = state.with_ref(part.tag, part.version)
        return state

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
            for kept_names in (("main",), ("main", SKETCHES)):
                refs = frozenset(pair for pair in state.refs if pair[0].startswith(kept_names))
                yield f"all refs but {kept_names} are dropped", state._replace(refs=refs).spend("drops")

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
            may = self.mutant == "sweep asserts no refs" or refs == _asserted(state, packs)
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
                yield "unnamed packs are listed", swept._replace(unnamed=(unnamed, _asserted(state, unnamed)))


def _asserted(state: State, packs: frozenset[int]) -> frozenset[tuple[str, int]]:
    """What a commit that removes packs asserts of the refs: where versions are published, and the tags of the packs."""
    names = {TAG, SIDE_TAG, SKETCHES, *(f"pack-{pack}" for pack in packs)}
    return frozenset(pair for pair in state.refs if pair[0] in names)


def in_use(state: State) -> frozenset[int]:
    """What is younger than the grace period of a sweep, and than the age at which others expire snapshots: what a run
    is at work on, and what a request names that may land.
    """
    commits = *(run for run in state.runs if run), *state.late
    return frozenset().union(*(part.files for commit in commits for part in commit.parts))


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
