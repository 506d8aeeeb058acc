"""Headers of Parquet pages: structs of Thrift's compact protocol, as far as reading vectors takes it."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

DATA, DICTIONARY, DATA_V2 = 0, 2, 3
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)
_DEEPEST = 8
_VARINT_BITS = 64
_OWN_FIELD = MappingProxyType({DATA: 5, DICTIONARY: 7, DATA_V2: 8})
"""Number of the field that holds the rest of the header, by the kind of page"""
_NUMBERS = MappingProxyType(
    {
        DATA: {"values": 1, "encoding": 2, "definition_encoding": 3, "repetition_encoding": 4},
        DICTIONARY: {"values": 1, "encoding": 2},
        DATA_V2: {"values": 1, "encoding": 4, "definition_length": 5, "repetition_length": 6},
    }
)
"""Numbers of the fields of the rest, by the kind of page"""
_COMPRESSED_FIELD = 7
"""Number of the field that says whether a page of version 2 is compressed"""


@dataclass(frozen=True, slots=True)
class PageHeader:
    """What a page says of itself. Numbers that its kind does not have are -1."""

    kind: int
    raw_length: int
    """Bytes of the page when it is not compressed"""
    stored_length: int
    """Bytes that follow the header"""
    values: int
    encoding: int
    definition_encoding: int = -1
    repetition_encoding: int = -1
    definition_length: int = -1
    """Bytes of the definition levels of a page of version 2"""
    repetition_length: int = -1
    """Bytes of the repetition levels of a page of version 2"""
    is_compressed: bool = True


def read_page_header(data: memoryview) -> tuple[PageHeader, int] | None:
    """(header, its length) at the start of `data`; None where there is none of a kind that this module knows."""
    values = _CompactStruct(data)
    try:
        page = values.struct()
        kind = page[1]
        own = page[_OWN_FIELD[kind]]
        numbers = {name: own[field] for name, field in _NUMBERS[kind].items()}
        if min(page[2], page[3], *numbers.values()) < 0:
            return None
        is_compressed = bool(own.get(_COMPRESSED_FIELD, True))
        return PageHeader(kind, page[2], page[3], **numbers, is_compressed=is_compressed), values.position
    except (LookupError, TypeError):  # it ends early, or lacks a field
        return None


class _CompactStruct:
    """Reads values one after the other. Raises IndexError at the end of the data, and TypeError at what is no value."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.position = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Fields by their numbers; of lists and maps nothing is kept."""
        fields: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != _STOP:
            number = number + (head >> 4) if head >> 4 else self._signed()
            fields[number] = self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind == _BYTE:
            return self._byte()
        if kind in (_I16, _I32, _I64):
            return self._signed()
        if kind in (_DOUBLE, _BINARY):
            length = 8 if kind == _DOUBLE else self._unsigned()
            self.position += length
            return None
        if kind == _STRUCT and depth < _DEEPEST:
            return self.struct(depth + 1)
        raise TypeError(f"a page header has no values of type {kind}")

    def _byte(self) -> int:
        value = self._data[self.position]
        self.position += 1
        return int(value)

    def _unsigned(self) -> int:
        value = 0
        for shift in range(0, _VARINT_BITS, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise TypeError("a number of a page header is too long")

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
