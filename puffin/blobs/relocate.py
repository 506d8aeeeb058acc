"""A shard whose rows have moved to other files: new locations beside the graph, vectors and hashes that were there."""

import struct
import zlib
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from puffin.blobs.sections import SectionEntry
from puffin.blobs.shard import ALIGNMENT, CHECKSUM_AT, HEADER_BYTES, Section, ShardReader, pack_locations

Piece = bytes | tuple[int, int]
"""New bytes, or (offset, length) of the old blob's."""


def relocated(reader: ShardReader, slots: npt.NDArray[np.uint32], rows: npt.NDArray[np.int64]) -> tuple[Piece, ...]:
    """The pieces, in order, of the blob with other locations: u32[N] file slots, int64[N] row positions.

    What is large is not read: a store can copy it. Sections before the locations keep their place.
    """
    sections = reader.header.sections
    place = next(at for at, entry in enumerate(sections) if entry.kind == Section.LOCATIONS)
    _, stored, raw_length, framed = pack_locations(slots, rows)
    moved = replace(
        sections[place],
        framed=framed,
        stored_length=len(stored),
        raw_length=raw_length,
        checksum=zlib.crc32(stored),
    )
    entries = [*sections[:place], moved]
    table_end = HEADER_BYTES + SectionEntry.SIZE * len(sections)
    pieces: list[Piece] = [(table_end, moved.offset - table_end), bytes(stored)]
    for entry in sections[place + 1 :]:
        end = entries[-1].offset + entries[-1].stored_length
        gap = -end % ALIGNMENT
        entries.append(replace(entry, offset=end + gap))
        pieces += [bytes(gap), (entry.offset, entry.stored_length)]
    return (_head(reader, entries), *pieces)


def _head(reader: ShardReader, entries: list[SectionEntry]) -> bytes:
    """Header and section table, sealed again."""
    table = b"".join(entry.pack() for entry in entries)
    fields = reader.source.read_range(0, CHECKSUM_AT)
    rest = bytes(HEADER_BYTES - CHECKSUM_AT - 4)
    checksum = zlib.crc32(fields + bytes(4) + rest + table)
    return fields + struct.pack("<I", checksum) + rest + table
