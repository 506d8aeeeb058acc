"""A damaged file: pages that are zero, stale or exchanged, a file that is cut, longer, or in place of another.

Of a published version, its packs and its sketches, of the shard cache's files, of what a run that ended has staged,
and of the version and sketches that a refresh begins with. It is noticed, or without effect: see
`tests.campaigns.flips`. A retry over staged objects publishes the bytes of an undisturbed run; where it fails, the next
one does. A refresh publishes sound files.
"""

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from icepuffin.ops.cache import CacheSettings, use_settings
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index import new_version, refresh
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.puffin.errors import PuffinError
from tests.campaigns.budget import BrokenPromiseError, Budget
from tests.campaigns.flips import Read, noticed_or, published_files, sound_but_fewer
from tests.conftest import STORAGE
from tests.faults.stages import DEFINITION, Outcome, Stage, assert_sound, make_stage

_RUNS = 1 / 50
"""Share of the trials that damage what a run takes: each takes a whole run"""
_SCENARIOS = "a first build of a pack", "deletes and an append", "a compaction that shares a pack"
_PAGES = 512, 4_096
"""Bytes of a sector, and of a page"""


def _zeroed(data: bytearray, _: bytes, start: int, end: int, __: random.Random) -> None:
    data[start:end] = bytes(end - start)


def _stale(data: bytearray, other: bytes, start: int, end: int, _: random.Random) -> None:
    """The page is that of another file: a write was lost."""
    data[start:end] = other[start:end].ljust(end - start, b"\0")


def _exchanged(data: bytearray, _: bytes, start: int, end: int, rng: random.Random) -> None:
    """Two pages are in each other's place."""
    first = rng.randrange(-(-len(data) // (end - start))) * (end - start)
    page = data[start:end]
    data[start:end] = data[first : first + len(page)]
    data[first : first + len(page)] = page


def _other_file(data: bytearray, other: bytes, *_: object) -> None:
    data[:] = other


def _cut(data: bytearray, _: bytes, start: int, end: int, rng: random.Random) -> None:
    del data[rng.randrange(start, end) :]


def _padded(data: bytearray, other: bytes, start: int, end: int, rng: random.Random) -> None:
    data += rng.choice([bytes(end - start), other[start:end], rng.randbytes(rng.randrange(1, 64))])


Harm = Callable[[bytearray, bytes, int, int, random.Random], None]
"""Damages the bytes of a file. Takes those of another one, a page from start to end, and a generator."""
HARMS: Mapping[str, Harm] = {
    "zeroed page": _zeroed,
    "stale page": _stale,
    "exchanged pages": _exchanged,
    "exchanged file": _other_file,
    "cut": _cut,
    "padded": _padded,
}


def run(budget: Budget) -> None:
    """Raises BrokenPromiseError."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        use_settings(CacheSettings.off())
        readers = published_files(folder / "stage")
        cached = _cached_files(folder / "cache", next(iter(readers.values())))
        sound = {path: read() for path, read in (readers | cached).items()}
        runs = [_Staged(folder / str(number), scenario) for number, scenario in enumerate(_SCENARIOS)]
        runs += [_Base(folder / f"base-{number}", scenario) for number, scenario in enumerate(_SCENARIOS[1:])]
        for number, rng in budget.trials():
            kind, files = rng.choice([("published", list(readers)), ("cached", list(cached))])
            run_of = rng.choice(runs) if rng.random() < _RUNS else None
            if run_of is not None:
                kind, files = run_of.kind, run_of.files()
            harm, path = rng.choice(list(HARMS)), rng.choice(files)
            data, damaged = _damaged(path, harm, rng.choice([it for it in files if it != path]), rng)
            if data == damaged:
                continue
            where = f"trial {number}, {kind} {path.name}: {harm}"
            with _holding(path, damaged, data):
                if run_of is not None:
                    outcome = run_of.outcome(where)
                else:
                    read = (readers | cached)[path]
                    outcome = _outcome(read, sound[path], where)
            budget.counts[f"{outcome}, {kind}"] += 1


def _damaged(path: Path, harm: str, other: Path, rng: random.Random) -> tuple[bytes, bytes]:
    """(content of a file, the same with a page of it damaged)."""
    data = path.read_bytes()
    size = rng.choice(_PAGES)
    start = rng.randrange(-(-len(data) // size)) * size
    damaged = bytearray(data)
    HARMS[harm](damaged, other.read_bytes(), start, min(start + size, len(data)), rng)
    return data, bytes(damaged)


@contextmanager
def _holding(path: Path, damaged: bytes, data: bytes) -> Iterator[None]:
    path.write_bytes(damaged)
    yield
    path.write_bytes(data)


def _outcome(read: Read, sound: object, where: str) -> str:
    result = noticed_or(read)
    if result is None or sound_but_fewer(result, sound):
        return "noticed"
    if result != sound:
        raise BrokenPromiseError(f"{where} changes an answer")
    return "without effect"


def _cached_files(folder: Path, search: Read) -> dict[Path, Read]:
    """Files of a shard cache, and a search by each that reads them from the disk again."""

    def read() -> object:
        use_settings(CacheSettings(folder, 1 << 30, 0))
        try:
            return search()
        finally:
            use_settings(CacheSettings.off())

    read()
    return dict.fromkeys(sorted(folder.glob("*/*.shard")), read)


class _Staged:
    """A run that ended before its version was assembled, all of whose work was recorded."""

    kind = "staged"

    def __init__(self, folder: Path, scenario: str) -> None:
        self._stage: Stage = make_stage(folder, scenario)
        self._undisturbed = self._run()
        self._stage.restore()

        def end(*_: object, **__: object) -> None:
            raise InterruptedError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(new_version, "included_columns", end)
            with pytest.raises(InterruptedError):
                self._run()
        self._ended = folder / "ended"
        shutil.copytree(folder / "live", self._ended)

    def files(self) -> list[Path]:
        """Staged objects, in the place where the next run looks for them."""
        live = self._stage.folder / "live"
        shutil.rmtree(live)
        shutil.copytree(self._ended, live)
        return sorted(path for path in live.rglob("_icepuffin/**/*") if path.is_file())

    def _run(self) -> Outcome:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(refresh, "_small_work", lambda _: 0)
            return self._stage.work()

    def outcome(self, where: str) -> str:
        """What a retry makes of it."""
        effect = "without effect"
        try:
            published = self._run()
        except (IcepuffinError, PuffinError):
            effect, published = "noticed", self._run()
        if published != self._undisturbed:
            raise BrokenPromiseError(f"{where}: a retry publishes other bytes")
        return effect


class _Base:
    """A refresh of a version and of sketches: it takes what is sound of them, and makes the rest anew."""

    kind = "base"

    def __init__(self, folder: Path, scenario: str) -> None:
        self._stage = make_stage(folder, scenario)
        self._undisturbed = self._stage.work().statistics

    def files(self) -> list[Path]:
        """Puffin files of the table before the refresh."""
        self._stage.restore()
        return sorted(path for path in (self._stage.folder / "live").rglob("*") if path.suffix in (".puffin", ".stats"))

    def outcome(self, where: str) -> str:
        """What a refresh makes of it."""
        try:
            published = self._stage.work().statistics
        except (IcepuffinError, PuffinError) as error:
            raise BrokenPromiseError(f"{where}: a refresh fails: {error}") from error
        if published != self._undisturbed:
            raise BrokenPromiseError(f"{where}: a refresh publishes other statistics")
        if self._is_sound():
            return "without effect"
        table = self._stage.load()  # a shard that two versions share is not read by each refresh, but by readers
        materialize_index(
            RunContext(table, STORAGE, LocalRunner(1)), DEFINITION, table.metadata.current_snapshot_id, verify=True
        )
        if not self._is_sound():
            raise BrokenPromiseError(f"{where}: a refresh that verifies publishes it")
        return "noticed"

    def _is_sound(self) -> bool:
        """Whether the integrity check finds no fault."""
        try:
            assert_sound(self._stage)
        except AssertionError:
            return False
        return True
