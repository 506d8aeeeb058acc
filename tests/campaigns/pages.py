"""A damaged file: pages that are zero, stale or exchanged, a file that is cut, longer, or in place of another.

Of a published version, its packs and its sketches, of the shard cache's files, and of what a run that ended has
staged. It is noticed, or without effect: see `tests.campaigns.flips`. A retry over staged objects publishes the bytes
of an undisturbed run; where it fails, the next one does.
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
from icepuffin.puffin.errors import PuffinError
from tests.campaigns.budget import BrokenPromiseError, Budget
from tests.campaigns.flips import Read, noticed_or, published_files, sound_but_fewer
from tests.faults.stages import Outcome, Stage, make_stage

_STAGED = 1 / 100
"""Share of the trials that damage a staged object: each takes a whole run"""
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
        for number, rng in budget.trials():
            kind, files = rng.choice([("published", list(readers)), ("cached", list(cached))])
            if rng.random() < _STAGED:
                staged = rng.choice(runs)
                kind, files = "staged", staged.files()
            harm, path = rng.choice(list(HARMS)), rng.choice(files)
            data, damaged = _damaged(path, harm, rng.choice([it for it in files if it != path]), rng)
            if data == damaged:
                continue
            where = f"trial {number}, {kind} {path.name}: {harm}"
            with _holding(path, damaged, data):
                if kind == "staged":
                    outcome = staged.outcome(where)
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
