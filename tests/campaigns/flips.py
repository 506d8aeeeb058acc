"""One flipped bit in a published version, in its packs, or in the sketches: noticed, or without effect.

First the bits of all headers and footers, each once, then bits of whole files at random. A reader that notices raises,
or answers from what it can trust and warns: each row of that answer is true. Any other answer must be the one that
sound files give.
"""

import math
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import icepuffin
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.cache import CacheSettings, use_settings
from icepuffin.ops.search.opening import open_exact
from icepuffin.ops.storage import normalize, open_storage
from icepuffin.ops.theta.build_id import sealed_as
from icepuffin.ops.theta.statistics_slot import listed_thetas, read_sketches
from icepuffin.puffin import BytesSource, PuffinReader
from icepuffin.puffin.blobs.shard_header import start_of_sections
from icepuffin.puffin.errors import PuffinError
from tests.campaigns.budget import BrokenPromiseError, Budget
from tests.conftest import STORAGE, queries
from tests.faults.stages import DEFINITION, make_stage

_HEADER = start_of_sections(7)
"""Bytes at the start of each blob that count as its header: those of a shard's header and section table"""
_ALL = 1_000
"""More rows than the table has"""
Read = Callable[[], Any]
"""Reads what a file is read for. Raises PuffinError, or returns None, where the reader notices that it is damaged, and
is not wrong all the same.
"""


def run(budget: Budget) -> None:
    """Raises BrokenPromiseError."""
    use_settings(CacheSettings.off())
    with tempfile.TemporaryDirectory() as folder:
        readers = published_files(Path(folder) / "stage")
        sound = {path: read() for path, read in readers.items()}
        headers = [(path, place, bit) for path in readers for place in _header_places(path) for bit in range(8)]
        random.Random(budget.seed).shuffle(headers)
        for number, rng in budget.trials():
            is_header = number < len(headers)
            path, place, bit = headers[number] if is_header else _drawn(list(readers), rng)
            with _flipped(path, place, bit):
                result = noticed_or(readers[path])
            if sound_but_fewer(result, sound[path]):
                result = None
            if result is not None and result != sound[path]:
                raise BrokenPromiseError(f"trial {number}: bit {bit} of byte {place} of {path.name} changes an answer")
            effect = "noticed" if result is None else "without effect"
            budget.counts[f"{effect} in {'headers' if is_header else 'whole files'}"] += 1


def published_files(folder: Path) -> dict[Path, Read]:
    """The files of a version that shares a pack and has new addresses, and of its sketches, and how each is read."""
    stage = make_stage(folder, "a compaction that shares a pack")
    stage.work()
    table = stage.load()
    vectors = queries(4)
    exact = (
        open_exact(table, "embedding", Metric.L2, storage=STORAGE)
        .search(vectors, _ALL, columns=["id"])
        .rows.to_pylist()
    )
    true = {(row["query"], row["id"]): row["distance"] for row in exact}

    def is_true(row: dict[str, Any]) -> bool:
        distance = true.get((row["query"], row["id"]))
        return distance is not None and math.isclose(distance, row["distance"], rel_tol=1e-5)

    def search() -> Any:
        reader = icepuffin.open_index(table, DEFINITION, threads=1)
        results = reader.search(vectors, k=60, columns=["id"]), reader.within(vectors[0], 4.0, columns=["id"])
        if any(result.warnings for result in results):
            wrong = [row for result in results for row in result.rows.to_pylist() if not is_true(row)]
            return wrong or None
        return [(result.coverage, result.rows.to_pylist()) for result in results]

    head = table.metadata.current_snapshot_id
    slot = find_statistics(table, head) if head is not None else None
    version = next(item for item in index_versions(table, "e") if item.base_snapshot_id == head)
    if slot is None:
        raise ValueError("the stage has no sketches")
    sealed = {(field, ""): sealed_as(blob.properties) for field, blob in listed_thetas(slot).items()}

    def sketches() -> Any:
        read = read_sketches(open_storage(slot.statistics_path, STORAGE), slot, sealed)
        return [(field, sketch.theta, sketch.hashes.tolist()) for field, sketch in read.items()] if read else None

    searched = (version.puffin_path, *(pack.path for pack in version.packs))
    return {**dict.fromkeys(map(_local, searched), search), _local(slot.statistics_path): sketches}


def _local(path: str) -> Path:
    return Path(normalize(path).removeprefix("file://"))


def _header_places(path: Path) -> Iterator[int]:
    """Places of the file's magic, of the blobs' headers, and of the footer."""
    data = path.read_bytes()
    blobs = PuffinReader(BytesSource(data)).footer.blobs
    yield from range(4)
    for blob in blobs:
        yield from range(blob.offset, blob.offset + min(blob.length, _HEADER))
    yield from range(max(blob.offset + blob.length for blob in blobs), len(data))


def _drawn(paths: list[Path], rng: random.Random) -> tuple[Path, int, int]:
    path = rng.choice(paths)
    return path, rng.randrange(path.stat().st_size), rng.randrange(8)


@contextmanager
def _flipped(path: Path, place: int, bit: int) -> Iterator[None]:
    data = path.read_bytes()
    changed = bytearray(data)
    changed[place] ^= 1 << bit
    path.write_bytes(changed)
    yield
    path.write_bytes(data)


def sound_but_fewer(result: Any, sound: Any) -> bool:
    """Whether some of the sketches are left out: one whose seal is broken is, and its column is counted again."""
    return isinstance(result, list) and len(result) < len(sound) and all(map(sound.count, result))


def noticed_or(read: Read) -> Any:
    """What a reader gives; None where it notices the damage."""
    try:
        return read()
    except PuffinError:
        return None
