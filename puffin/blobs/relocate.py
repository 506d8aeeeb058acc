"""A shard whose rows have moved to other files: new locations beside the graph, vectors and hashes that were there."""

import zlib
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from icepuffin.puffin.blobs.shard import ShardReader, pack_locations
from icepuffin.puffin.blobs.shard_header import ALIGNMENT, Section, start_of_sections

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
    start = start_of_sections(len(sections))
    pieces: list[Piece] = [(start, moved.offset - start), bytes(stored)]
    for entry in sections[place + 1 :]:
        end = entries[-1].offset + entries[-1].stored_length
        gap = -end % ALIGNMENT
        entries.append(replace(entry, offset=end + gap))
        pieces += [bytes(gap), (entry.offset, entry.stored_length)]
    return (replace(reader.header, sections=tuple(entries)).to_bytes(), *pieces)
