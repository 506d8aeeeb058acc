"""Relocation: new addresses for shards whose rows have only moved, beside the bytes that stay."""

import hashlib
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from icepuffin.ops.model import How, ObjectRange, ShardId, StorageConfig
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
    """Shards whose addresses are to be written."""

    shards: tuple[tuple[ShardId, BaseShard], ...]
    """(shard id in the new version, shard of the base version)"""
    staging: str
    storage: StorageConfig
    threads: int = 1


def relocate(task: RelocateTask) -> tuple[ShardResult, ...]:
    """Write the new addresses of all shards into one staged object.

    Graphs, vectors and hashes are not decoded: they are read once, for the checksums. Raises ChecksumError where bytes
    that are kept are not those that were written.
    """
    path = f"{task.staging}/moved-{uuid.uuid4().hex}.bin"
    results, offset = [], 0
    with (
        open_storage(task.staging, task.storage).open_output(path, durable=False) as sink,
        ThreadPoolExecutor(task.threads) as threads,
    ):
        digests = []
        for shard_id, base in task.shards:
            reader = base.reader()
            slots, positions = base.locations(reader)
            pieces = relocated(reader, slots, positions)
            digests.append(threads.submit(_sha256, reader, pieces))
            result = _relocate(shard_id, base, reader, slots, _write(pieces, base.blob, sink, path, offset))
            offset += sum(part.length for part in result.parts if part.path == path)
            results.append(result)
        return tuple(replace(result, sha256=digest.result()) for result, digest in zip(results, digests, strict=True))


def _sha256(reader: ShardReader, pieces: tuple[Piece, ...]) -> bytes:
    """The sha256 of the new blob. Checks the checksums of what is kept, since readers that compare the sha256 skip
    them.
    """
    digest = hashlib.sha256()
    for piece in pieces:
        for part in (piece,) if isinstance(piece, bytes) else reader.checked(*piece):
            digest.update(part)
    return digest.digest()


def _write(
    pieces: tuple[Piece, ...], old: ObjectRange, sink: ByteSink, path: str, offset: int
) -> Iterator[ObjectRange]:
    """The place of each piece of a blob; new pieces are written first."""
    for piece in pieces:
        if isinstance(piece, bytes):
            sink.write(piece)
            yield ObjectRange(path, offset, len(piece))
            offset += len(piece)
        else:
            yield ObjectRange(old.path, old.offset + piece[0], piece[1])


def _relocate(
    shard_id: ShardId, base: BaseShard, reader: ShardReader, slots: npt.NDArray[np.uint32], parts: Iterator[ObjectRange]
) -> ShardResult:
    return ShardResult(
        shard_id=shard_id,
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
