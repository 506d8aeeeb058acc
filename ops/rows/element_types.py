"""Types of the numbers in a column of vectors. Imports nothing: definitions are checked without numpy."""

from collections.abc import Mapping
from types import MappingProxyType

OF_COLUMN = "column"
"""Element type of lists: that of the column"""
OF_BITS = "bit"
"""Element type of packed bits, the first of a byte being its highest"""
ELEMENT_BITS: Mapping[str, int] = MappingProxyType({"f32": 32, "f16": 16, "i8": 8, "u8": 8, OF_BITS: 1})
"""Element type of bytes -> bits of one element"""
ELEMENT_TYPES = (OF_COLUMN, *ELEMENT_BITS)
"""All values of an index's `element_type`"""


def dims_of(byte_count: int, element_type: str) -> int:
    """Whole elements of a vector of so many bytes."""
    return 8 * byte_count // ELEMENT_BITS[element_type]


def spare_bytes(byte_count: int, element_type: str) -> int:
    """Bytes after the last whole element of a vector of so many bytes."""
    return 8 * byte_count % ELEMENT_BITS[element_type] // 8
