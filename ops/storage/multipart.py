"""Plans of multipart uploads of bytes and stored ranges. Pure: the caller uploads and copies.

A stored range that is large enough is copied inside the store. Smaller ones are read, and sent with their neighbours.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from icepuffin.ops.model import ObjectRange

_PARTS_OF_ONE_SIZE = 1000
_MIN_COPY = 4
"""Ranges that a part that is sent has room for, where they are too small to be copied"""


@dataclass(frozen=True, slots=True)
class PartLimits:
    """Sizes and counts of parts that a store allows, by default S3's, and the sizes in use within them; in bytes."""

    min_part: int = 5 * 1024**2
    """Smallest size of every part but the last"""
    max_part: int = 5 * 1024**3
    max_parts: int = 10_000
    part: int = 16 * 1024**2
    """Size of the first parts that are sent, each of which is held in memory"""
    copy: int = 1024**3
    """Largest size of a part that the store copies by itself"""

    def __post_init__(self) -> None:
        if not self.min_part <= self.part <= self.max_part or not 2 * self.min_part <= self.copy <= self.max_part:
            raise ValueError("part sizes must lie within the limits, and two of the smallest within one copy")

    def size_of(self, number: int) -> int:
        """Bytes of the part after `number` others, doubled every 1,000 parts: 10,000 hold the largest object."""
        return int(min(self.max_part, self.part << number // _PARTS_OF_ONE_SIZE))

    def least_copy(self, number: int) -> int:
        """Bytes from which a range is copied after `number` parts: a share of a part, so that small ones never take all
        parts.
        """
        return max(self.min_part, self.size_of(number) // _MIN_COPY)


S3_LIMITS = PartLimits()


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


def plan_parts(
    segments: Iterable[bytes | ObjectRange], limits: PartLimits = S3_LIMITS
) -> Iterator[UploadPart | CopyPart]:
    """Parts in order, each within the limits and as soon as it is complete. Their number is not checked."""
    plan = _Plan(limits)
    for segment in segments:
        rest: bytes | ObjectRange | None = segment
        if isinstance(rest, ObjectRange) and plan.waiting:
            # lend the head of the range to the bytes that wait, so that its tail can be copied
            rest = plan.fill(rest, limits.min_part)
        if isinstance(rest, ObjectRange) and rest.length >= limits.least_copy(plan.number):
            plan.close()
            plan.add(_copies(rest, limits.copy))
            rest = None
        while rest:
            rest = plan.fill(rest, limits.size_of(plan.number))
            if rest:
                plan.close()
        yield from plan.take()
    plan.close()
    yield from plan.take()


def part_share(length: int, limits: PartLimits = S3_LIMITS) -> float:
    """Parts that a stored range of so many bytes adds to an upload, at most: for `length` of `plan_parts`.

    A range that is copied may end a part that is sent. One that is sent has its share of a part.
    """
    return 1 + -(-length // limits.copy) if length >= limits.min_part else length / limits.part


class _Plan:
    """Complete parts, and pieces that wait to become the next one."""

    def __init__(self, limits: PartLimits) -> None:
        self._limits = limits
        self._parts: list[UploadPart | CopyPart] = []
        self.number = 0
        """Number of parts so far, taken or not"""
        self.waiting: list[bytes | ObjectRange] = []
        self._size = 0

    def add(self, parts: Sequence[UploadPart | CopyPart]) -> None:
        self._parts += parts
        self.number += len(parts)

    def take(self) -> list[UploadPart | CopyPart]:
        """Parts that have not been taken yet."""
        ready, self._parts = self._parts, []
        return ready

    def fill(self, piece: bytes | ObjectRange, size: int) -> bytes | ObjectRange | None:
        """Buffer as much of `piece` as makes a part of `size`. Returns the rest, None where there is none."""
        room = max(0, size - self._size)
        head, tail = _split(piece, room)
        if _length(head):
            self.waiting.append(head)
            self._size += _length(head)
        return tail if _length(tail) else None

    def close(self) -> None:
        if self.waiting:
            self.add([UploadPart(tuple(self.waiting))])
            self.waiting, self._size = [], 0


def _length(piece: bytes | ObjectRange) -> int:
    return len(piece) if isinstance(piece, bytes) else piece.length


def _split(whole: bytes | ObjectRange, length: int) -> tuple[bytes | ObjectRange, bytes | ObjectRange]:
    if isinstance(whole, bytes):
        return whole[:length], whole[length:]
    length = min(length, whole.length)
    head = ObjectRange(whole.path, whole.offset, length)
    return head, ObjectRange(whole.path, whole.offset + length, whole.length - length)


def _copies(whole: ObjectRange, size: int) -> list[CopyPart]:
    count = -(-whole.length // size)
    bounds = [whole.offset + whole.length * i // count for i in range(count + 1)]
    return [CopyPart(ObjectRange(whole.path, start, end - start)) for start, end in pairwise(bounds)]
