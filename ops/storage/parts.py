"""Plans a multipart upload out of bytes and stored ranges. Pure: the caller uploads and copies.

S3 takes parts of 5 MiB to 5 GiB, the last one may be smaller, 10,000 at most. A stored range that is large enough is
copied inside the store; what is too small for a part of its own is read and sent with its neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ops.model import ObjectRange

MIN_PART = 5 * 1024**2
MAX_COPY = 1024**3


@dataclass(frozen=True, slots=True)
class UploadPart:
    """Bytes to send: literals, and ranges to read first."""

    pieces: tuple[bytes | ObjectRange, ...]

    @property
    def length(self) -> int:
        return sum(_length(piece) for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class CopyPart:
    """A range that the store copies by itself."""

    range: ObjectRange

    @property
    def length(self) -> int:
        return self.range.length


def plan_parts(segments: Sequence[bytes | ObjectRange]) -> list[UploadPart | CopyPart]:
    """Parts in order; every part but the last has at least `MIN_PART` bytes."""
    parts: list[UploadPart | CopyPart] = []
    pending: list[bytes | ObjectRange] = []
    size = 0
    for segment in segments:
        rest = segment
        if pending and size < MIN_PART and isinstance(rest, ObjectRange):
            # lend the head of the range to the bytes that wait, so that its tail can be copied
            head, tail = _split(rest, MIN_PART - size)
            pending.append(head)
            size += head.length
            if tail is None:
                continue
            rest = tail
        if isinstance(rest, ObjectRange) and rest.length >= MIN_PART:
            if pending:
                parts.append(UploadPart(tuple(pending)))
                pending, size = [], 0
            parts += _copies(rest)
        elif _length(rest):
            pending.append(rest)
            size += _length(rest)
    if pending:
        parts.append(UploadPart(tuple(pending)))
    return parts


def _length(piece: bytes | ObjectRange) -> int:
    return len(piece) if isinstance(piece, bytes) else piece.length


def _split(whole: ObjectRange, at: int) -> tuple[ObjectRange, ObjectRange | None]:
    if at >= whole.length:
        return whole, None
    head = ObjectRange(whole.path, whole.offset, at)
    return head, ObjectRange(whole.path, whole.offset + at, whole.length - at)


def _copies(whole: ObjectRange) -> list[UploadPart | CopyPart]:
    count = -(-whole.length // MAX_COPY)
    bounds = [whole.offset + whole.length * i // count for i in range(count + 1)]
    pairs = pairwise(bounds)
    return [CopyPart(ObjectRange(whole.path, start, end - start)) for start, end in pairs]
