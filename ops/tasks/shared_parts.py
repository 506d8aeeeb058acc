"""Pickled tasks without the large parts that they share, as a version's codebook: these are pickled once for all.

With each of a large build's tasks they would be many gigabytes in the driver, and one task more than Spark sends.
"""

import io
import pickle
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

LARGE_ARRAY = 16 << 10
"""Bytes of an array from which on it travels once"""
LONG_TUPLE = 256
"""Items of a tuple from which on it travels once"""


class _LargeParts(pickle.Pickler):
    """The large parts of what it pickles, by their identity. Its pickle lacks them, and is thrown away."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.parts: dict[int, object] = {}

    def persistent_id(self, value: object) -> int | None:
        if not _is_large(value):
            return None
        self.parts[id(value)] = value
        return id(value)


class _Pickler(pickle.Pickler):
    """Writes the number of a shared part in its place."""

    def __init__(self, sink: io.BytesIO, numbers: dict[int, int]) -> None:
        super().__init__(sink)
        self._numbers = numbers

    def persistent_id(self, value: object) -> int | None:
        return self._numbers.get(id(value))


class _Unpickler(pickle.Unpickler):
    """Puts shared parts where their numbers stand."""

    def __init__(self, data: bytes, parts: Sequence[object]) -> None:
        super().__init__(io.BytesIO(data))
        self._parts = parts

    def persistent_load(self, number: int) -> object:
        return self._parts[number]


def shared_parts(tasks: Sequence[object]) -> list[object]:
    """Large arrays and long tuples that several tasks have, as the same object."""
    parts: dict[int, object] = {}
    counts = Counter[int]()
    for task in tasks:
        large = _LargeParts()
        large.dump(task)
        parts |= large.parts
        counts.update(large.parts.keys())
    return [parts[identity] for identity, count in counts.items() if count > 1]


def pickle_without(task: object, parts: Sequence[object]) -> bytes:
    """The task, pickled without these parts."""
    sink = io.BytesIO()
    _Pickler(sink, {id(part): number for number, part in enumerate(parts)}).dump(task)
    return sink.getvalue()


def unpickle_with(data: bytes, parts: Sequence[object]) -> Any:
    """The task that was pickled without these parts."""
    return _Unpickler(data, parts).load()


def _is_large(value: object) -> bool:
    if type(value) is np.ndarray:
        return value.nbytes >= LARGE_ARRAY
    return type(value) is tuple and len(value) >= LONG_TUPLE
