"""Types of the numbers in a column of vectors. Imports nothing: definitions are checked without numpy."""

from collections.abc import Mapping
from types import MappingProxyType

OF_COLUMN = "column"
"""Element type of lists: that of the column"""
ELEMENT_BYTES: Mapping[str, int] = MappingProxyType({"f32": 4, "f16": 2, "i8": 1, "u8": 1})
"""Element type of bytes -> bytes of one element"""
ELEMENT_TYPES = (OF_COLUMN, *ELEMENT_BYTES)
"""All values of an index's `element_type`"""


def dims_of(byte_count: int, element_type: str) -> int:
    """Whole elements of a vector of so many bytes."""
    return byte_count // ELEMENT_BYTES[element_type]
