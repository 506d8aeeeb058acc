"""Shards whose rows have moved, and no more: their new addresses, beside the bytes that they have."""

import hashlib
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from icepuffin.ops.model import How, ObjectRange, StorageConfig
from icepuffin.ops.storage import open_storage
from icepuffin.ops.tasks.base_shard import BaseShard
from icepuffin.ops.tasks.shard import ShardResult
from icepuffin.puffin.blobs import deletion_vector
from icepuffin.puffin.blobs.relocate import Piece, relocated
from icepuffin.puffin.blobs.routing import UNKNOWN_SHA256
from icepuffin.puffin.blobs.shard import ShardReader
from icepuffin.puffin.writer import ByteSink


@dataclass(frozen=True, slots=True, eq=False)
class RelocateTask:
    """Some shards."""

    shards: tuple[tuple[int, BaseShard], ...]
    """(number in the new version, shard)"""
    staging: str
    storage: StorageConfig
    threads: int = 1


def relocate(task: RelocateTask) -> tuple[ShardResult, ...]:
    """Graphs, vectors and hashes are not decoded: they are read once, for the checksums. What is new of all shards is
    one staged object.

    Raises ChecksumError where something that is kept has changed.
    """
    path = f"{task.staging}/moved-{uuid.uuid4().hex}.bin"
    out, at = [], 0
    with (
        open_storage(task.staging, task.storage).open_output(path, durable=False) as sink,
        ThreadPoolExecutor(task.threads) as threads,
    ):
        digests = []
        for number, base in task.shards:
            reader = base.reader()
            slots, positions = base.locations(reader)
            pieces = relocated(reader, slots, positions)
            digests.append(threads.submit(_sha256, reader, pieces))
            result = _relocate(number, base, reader, slots, _write(pieces, base.blob, sink, path, at))
            at += sum(part.length for part in result.parts if part.path == path)
            out.append(result)
        return tuple(replace(result, sha256=digest.result()) for result, digest in zip(out, digests, strict=True))


def _sha256(reader: ShardReader, pieces: tuple[Piece, ...]) -> bytes:
    """Of the new blob. What is kept must have its checksums: who finds the sha256 right looks at no other."""
    digest = hashlib.sha256()
    for piece in pieces:
        for part in (piece,) if isinstance(piece, bytes) else reader.checked(*piece):
            digest.update(part)
    return digest.digest()


def _write(pieces: tuple[Piece, ...], old: ObjectRange, sink: ByteSink, path: str, at: int) -> Iterator[ObjectRange]:
    """Where each piece lies, of those that are new after they were written."""
    for piece in pieces:
        if isinstance(piece, bytes):
            sink.write(piece)
            yield ObjectRange(path, at, len(piece))
            at += len(piece)
        else:
            yield ObjectRange(old.path, old.offset + piece[0], piece[1])


def _relocate(
    number: int, base: BaseShard, reader: ShardReader, slots: npt.NDArray[np.uint32], parts: Iterator[ObjectRange]
) -> ShardResult:
    return ShardResult(
        number=number,
        how=How.REMAPPED,
        parts=tuple(part for part in parts if part.length),
        sha256=UNKNOWN_SHA256,
        count=reader.header.count,
        medoid=reader.header.medoid,
        recall=base.recall,
        curve=base.curve,
        tombstones=deletion_vector.decode(base.tombstones),
        inserted=0,
        remapped=base.moved,
        slots=np.unique(slots),
    )
