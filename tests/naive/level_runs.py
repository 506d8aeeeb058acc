"""Numbers in runs, as Parquet has them: written and read bit by bit."""

from collections.abc import Sequence


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def repeated(value: int, count: int, bits: int) -> bytes:
    """A run of one number."""
    return varint(count << 1) + value.to_bytes((bits + 7) // 8, "little")


def packed(values: Sequence[int], bits: int) -> bytes:
    """A run of other numbers: groups of eight, filled up with zeros."""
    groups = -(-len(values) // 8)
    word = sum(value << bits * place for place, value in enumerate(values))
    return varint(groups << 1 | 1) + word.to_bytes(groups * bits, "little")


def unpacked(data: bytes, bits: int, count: int) -> list[int] | None:
    """The first numbers of runs; None where there are fewer."""
    values: list[int] = []
    while len(values) < count:
        header = shift = 0
        while True:
            if not data or shift > 28:
                return None
            byte, data = data[0], data[1:]
            header |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        size = (header >> 1) * bits if header & 1 else (bits + 7) // 8
        if not header >> 1 or size > len(data):
            return None
        word, data = int.from_bytes(data[:size], "little"), data[size:]
        if header & 1:
            places = range(min(8 * (header >> 1), count - len(values)))
            values += [word >> bits * place & (1 << bits) - 1 for place in places]
        else:
            values += [word] * min(header >> 1, count - len(values))
    return values
