"""The codes of a column's values, for conditions that name a value: the places of the values, which are in order."""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

_MOST_LISTED = 1 << 16
"""Values that a dictionary lists, of some 100 bytes each. More are searched by halves: that takes microseconds, and no
memory"""


class ValueCodes:
    """The distinct values of a column, ascending: texts or whole numbers, which Python compares as Arrow does."""

    def __init__(self, values: pa.Array) -> None:
        self.are_texts = pa.types.is_string(values.type)
        self._values = values
        self._listed: dict[Any, int] | None = None
        if len(values) <= _MOST_LISTED:
            self._listed = {value: code for code, value in enumerate(values.to_pylist())}
        elif self.are_texts:
            _, offsets, texts = values.buffers()
            self._offsets = memoryview(offsets).cast("i")[values.offset :]
            self._texts = memoryview(texts)
        else:
            self._numbers = values.to_numpy()

    @classmethod
    def of(cls, values: pa.Array) -> "ValueCodes | None":
        """None where Python compares values of the type in another way."""
        fits = pa.types.is_string(values.type) or pa.types.is_integer(values.type)
        return cls(values) if fits else None

    def codes(self, values: Iterable[Any]) -> list[int]:
        """Codes, ascending, of those of some values that the column has."""
        codes = map(self._code if self._listed is None else self._listed.get, values)
        return sorted({code for code in codes if code is not None})

    def _code(self, value: Any) -> int | None:
        """The code of a value by bisection; None where the column has no such value."""
        if self.are_texts:
            text = value.encode()
            code = bisect_left(range(len(self._values)), text, key=self._text)
            return code if code < len(self._values) and self._text(code) == text else None
        if not self._numbers[0] <= value <= self._numbers[-1]:  # of another size, perhaps, than the column's type
            return None
        code = int(np.searchsorted(self._numbers, self._numbers.dtype.type(value)))
        return code if self._numbers[code] == value else None

    def _text(self, code: int) -> bytes:
        """The text of a code, as UTF-8, whose order is that of the characters."""
        return bytes(self._texts[self._offsets[code] : self._offsets[code + 1]])
