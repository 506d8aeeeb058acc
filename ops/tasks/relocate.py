"""Shards whose rows have moved, and no more: their new addresses, beside the bytes that they have."""

import uuid
from dataclasses import dataclass

import numpy as np

from ops.model import ObjectRange, StorageConfig
from ops.storage import open_storage
from ops.tasks.base import BaseShard
from ops.tasks.shard import How, ShardResult
from puffin.blobs import deletion_vector
from puffin.blobs.relocate import relocated
from puffin.blobs.routing import UNKNOWN_SHA256
from puffin.writer import ByteSink


@dataclass(frozen=True, slots=True, eq=False)
class RelocateTask:
    """Some shards."""

    shards: tuple[tuple[int, BaseShard], ...]
    """(number in the new version, shard)"""
    staging: str
    storage: StorageConfig


def relocate(task: RelocateTask) -> tuple[ShardResult, ...]:
    """Graphs, vectors and hashes are not read. What is new of all of them is one staged object."""
    path = f"{task.staging}/moved-{uuid.uuid4().hex}.bin"
    out, at = [], 0
    with open_storage(task.staging, task.storage).open_output(path, durable=False) as sink:
        for number, base in task.shards:
            result = _relocate(number, base, sink, path, at)
            at += sum(part.length for part in result.parts if part.path == path)
            out.append(result)
    return tuple(out)


def _relocate(number: int, base: BaseShard, sink: ByteSink, path: str, at: int) -> ShardResult:
    reader = base.reader()
    slots, positions = base.locations(reader)
    parts = []
    for piece in relocated(reader, slots, positions):
        if isinstance(piece, bytes):
            sink.write(piece)
            parts.append(ObjectRange(path, at, len(piece)))
            at += len(piece)
        else:
            parts.append(ObjectRange(base.blob.path, base.blob.offset + piece[0], piece[1]))
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
