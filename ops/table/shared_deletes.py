"""Deletes of data files, as bits of a pool that many files share.

In a history of upserts no two data files have all of their deletes in common, and each has thousands. A reference for
each pair of a file and a delete would take 64 times as much as a bit.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any, TypeVar

import numpy as np

from icepuffin.ann_kernels.arrays import Bool
from icepuffin.ops.model import DeleteFile, DeleteKind, LiveFile

T = TypeVar("T")
_POOL_SHARE = 4
"""Divisor of a pool's length: so many of its deletes, and more, go to a task as the whole pool"""


def path_and_offset(delete: DeleteFile) -> tuple[str, int]:
    """What deletes are ordered by."""
    return delete.path, delete.content_offset or 0


def compares_keys(delete: DeleteFile) -> bool:
    """Whether it is an equality delete."""
    return delete.kind is DeleteKind.EQUALITY


class DeletePool:
    """Deletes that many data files choose from, ordered by path and offset."""

    __slots__ = ("_values", "deletes")

    def __init__(self, deletes: Iterable[DeleteFile]) -> None:
        self.deletes = tuple(sorted(deletes, key=path_and_offset))
        self._values: dict[Callable[[DeleteFile], Any], list[Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return DeletePool, (self.deletes,)

    def values(self, value: Callable[[DeleteFile], T]) -> list[T]:
        """The value of each delete: made once, for all data files. `value` is a function of a module."""
        if value not in self._values:
            self._values[value] = [value(delete) for delete in self.deletes]
        return self._values[value]


@dataclass(frozen=True, slots=True)
class ChosenDeletes:
    """Some of the deletes of a pool."""

    pool: DeletePool
    bits: int
    """Number whose bit i is set where delete i of the pool is chosen"""

    @classmethod
    def of_mask(cls, pool: DeletePool, mask: Bool) -> "ChosenDeletes":
        """Those where the mask, bool[deletes of the pool], is true."""
        return cls(pool, int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little"))

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __iter__(self) -> Iterator[DeleteFile]:
        return compress(self.pool.deletes, self.mask().tolist())

    def mask(self) -> Bool:
        """bool[deletes of the pool], true for those that are chosen."""
        count = len(self.pool.deletes)
        raw = np.frombuffer(self.bits.to_bytes(-(-count // 8), "little"), np.uint8)
        return np.unpackbits(raw, count=count, bitorder="little").astype(np.bool_)


class Deletes(Collection[DeleteFile]):
    """Deletes of a data file, ordered by path and offset, with their fingerprint once it is made: plans compare it
    often. Equal to a tuple of the same.
    """

    __slots__ = ("chosen", "fingerprint", "unpooled")

    def __init__(self, unpooled: Iterable[DeleteFile] = (), chosen: Iterable[ChosenDeletes] = ()) -> None:
        """`unpooled`: deletes that are in no pool."""
        self.unpooled = tuple(sorted(unpooled, key=path_and_offset))
        self.chosen = tuple(part for part in chosen if part.bits)
        self.fingerprint: bytes | None = None

    def __len__(self) -> int:
        return len(self.unpooled) + sum(map(len, self.chosen))

    def __iter__(self) -> Iterator[DeleteFile]:
        return iter(self.values(_itself))

    def __contains__(self, delete: object) -> bool:
        return delete in tuple(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Deletes | tuple):
            return NotImplemented
        return self is other or tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """A pool goes to a task once, and not at all for a data file that has a few of its deletes."""
        dense = [part for part in self.chosen if _POOL_SHARE * len(part) >= len(part.pool.deletes)]
        sparse = chain.from_iterable(part for part in self.chosen if part not in dense)
        return _restored, ((*self.unpooled, *sparse), tuple(dense), self.fingerprint)

    def values(self, value: Callable[[DeleteFile], T]) -> list[T]:
        """The value of each delete, in order. `value` is a function of a module."""
        if len(self.chosen) != 1:
            return [value(delete) for delete in sorted(chain(self.unpooled, *self.chosen), key=path_and_offset)]
        pool, mask = self.chosen[0].pool, self.chosen[0].mask()
        values = list(compress(pool.values(value), mask.tolist()))
        for delete in reversed(self.unpooled):  # few beside a pool
            index = bisect_left(pool.deletes, path_and_offset(delete), key=path_and_offset)
            values.insert(np.count_nonzero(mask[:index]), value(delete))
        return values


def _restored(unpooled: Sequence[DeleteFile], chosen: Sequence[ChosenDeletes], fingerprint: bytes | None) -> Deletes:
    restored = Deletes(unpooled, chosen)
    restored.fingerprint = fingerprint
    return restored


def _itself(delete: DeleteFile) -> DeleteFile:
    return delete


def parts_of(deletes: Collection[DeleteFile]) -> tuple[Collection[DeleteFile], tuple[ChosenDeletes, ...]]:
    """(deletes that are in no pool, deletes of pools)"""
    return (deletes.unpooled, deletes.chosen) if isinstance(deletes, Deletes) else (deletes, ())


def values_of(deletes: Collection[DeleteFile], value: Callable[[DeleteFile], T]) -> list[T]:
    """The value of each delete, in order. `value` is a function of a module."""
    return deletes.values(value) if isinstance(deletes, Deletes) else [value(delete) for delete in deletes]


def distinct_deletes(files: Iterable[LiveFile]) -> list[DeleteFile]:
    """The delete files of some data files, each object once: data files may have thousands in common."""
    by_id: dict[int, DeleteFile] = {}
    of_pools: dict[DeletePool, int] = {}
    for deletes in {id(file.deletes): file.deletes for file in files}.values():
        unpooled, chosen = parts_of(deletes)
        by_id.update((id(delete), delete) for delete in unpooled)
        for part in chosen:
            of_pools[part.pool] = of_pools.get(part.pool, 0) | part.bits
    for pool, bits in of_pools.items():
        by_id.update((id(delete), delete) for delete in ChosenDeletes(pool, bits))
    return list(by_id.values())


class DeleteFilter:
    """A condition on deletes, asked once for each delete of a pool: thousands of files may choose from it."""

    def __init__(self, condition: Callable[[DeleteFile], bool]) -> None:
        self._condition = condition
        self._of_pools: dict[DeletePool, ChosenDeletes] = {}

    def select(self, deletes: Collection[DeleteFile]) -> Deletes:
        """Those that meet the condition."""
        unpooled, chosen = parts_of(deletes)
        meeting = (ChosenDeletes(part.pool, part.bits & self._all_of(part.pool).bits) for part in chosen)
        return Deletes(filter(self._condition, unpooled), meeting)

    def _all_of(self, pool: DeletePool) -> ChosenDeletes:
        if pool not in self._of_pools:
            mask = np.array([self._condition(delete) for delete in pool.deletes], np.bool_)
            self._of_pools[pool] = ChosenDeletes.of_mask(pool, mask)
        return self._of_pools[pool]
