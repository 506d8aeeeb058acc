"""Blob `icepuffin-theta-directory-v1` (`ANTD`): where the sketches of each data file lie in the blob of all sketches.

Header, 20 bytes: magic, then u32 version, columns, files, CRC-32 of the whole blob (with this field 0). The columns
follow, then the files in the order of their sketches. So the footer of a file of sketches has two blobs, however many
data files there are.
"""

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from icepuffin.puffin.blobs.cursor import Cursor, packed_text
from icepuffin.puffin.blobs.formats import require_format
from icepuffin.puffin.errors import BadBlobError, ChecksumError

MAGIC = b"ANTD"
VERSION = 1
MAX_BYTES = 256 << 20
"""Bytes of a directory, at most"""
_HEAD = struct.Struct("<4s4I")
_CHECKSUM_AT = 16
_FILE = "qQQI"
_IMAGE = struct.Struct("<II")
_IN_MEMORY = 512
"""Bytes of memory of a file, about, beside its path and its columns"""
_ALWAYS_ALLOWED = 64 << 20
_PER_BYTE = 8


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """The sketches of one data file."""

    path: str
    """Path, relative to the table's location where the file lies under it"""
    deletes: str
    """Fingerprint of the deletes that apply to it, hex; empty without deletes"""
    added_by: int
    """Id of the snapshot that added it, where it has no sequence number; else 0"""
    stored_length: int
    """Bytes of its images as they are stored"""
    raw_length: int
    """Bytes of its images before compression; the same where they are stored as they are"""
    layout: bytes
    """(number of the column in the directory, bytes of the image) of each image, in their order, as the blob has them:
    of many files, numbers of Python's would take several times the memory
    """

    @property
    def images(self) -> list[tuple[int, int]]:
        """(number of the column, bytes of the image), in the order of the images."""
        return [(number, length) for number, length in _IMAGE.iter_unpack(self.layout)]


def layout_of(images: Iterable[tuple[int, int]]) -> bytes:
    """The `layout` of images."""
    return b"".join(_IMAGE.pack(number, length) for number, length in images)


@dataclass(frozen=True, slots=True)
class SketchDirectory:
    """All sketches of one file of sketches."""

    columns: tuple[tuple[int, str], ...]
    """(field id, type and mapped names) of each column"""
    files: tuple[DirectoryEntry, ...]
    """Data files, in the order of their sketches"""


def encode(directory: SketchDirectory) -> bytes:
    """The bytes of the blob."""
    parts = [bytes(_HEAD.size)]
    parts += [struct.pack("<I", field_id) + packed_text(kind) for field_id, kind in directory.columns]
    parts += [encode_entry(entry) for entry in directory.files]
    body = b"".join(parts)[_HEAD.size :]
    head = MAGIC, VERSION, len(directory.columns), len(directory.files)
    return _HEAD.pack(*head, zlib.crc32(body, zlib.crc32(_HEAD.pack(*head, 0)))) + body


def encode_entry(entry: DirectoryEntry) -> bytes:
    """The bytes of one file in the blob."""
    count = len(entry.layout) // _IMAGE.size
    numbers = struct.pack(f"<{_FILE}", entry.added_by, entry.stored_length, entry.raw_length, count)
    return b"".join((packed_text(entry.path), packed_text(entry.deletes), numbers, entry.layout))


def decode(data: bytes) -> SketchDirectory:
    """Raises BadBlobError, ChecksumError, EarlierFormatError, LaterFormatError."""
    what = "sketch directory"
    if len(data) > MAX_BYTES:
        raise BadBlobError(f"{what} of {len(data):,} bytes is over the limit of {MAX_BYTES:,}")
    read = Cursor(data, what)
    magic, version, columns, files, checksum = read.unpack("4s4I", "the header")
    require_format(what, (magic, version), (MAGIC, VERSION))
    if zlib.crc32(data[_HEAD.size :], zlib.crc32(data[:_CHECKSUM_AT] + bytes(4))) != checksum:
        raise ChecksumError(f"{what} does not have its checksum {checksum:08x}")
    if _IN_MEMORY * files > _ALWAYS_ALLOWED + _PER_BYTE * len(data):
        raise BadBlobError(f"{what} of {len(data):,} bytes declares {files:,} files, which would take too much memory")
    kept = []
    for _ in range(columns):
        (field_id,) = read.unpack("I", "a field id")
        kept.append((field_id, read.text("a type")))
    entries = tuple(_entry(read, columns) for _ in range(files))
    read.finish()
    return SketchDirectory(tuple(kept), entries)


def _entry(read: Cursor, columns: int) -> DirectoryEntry:
    path, deletes = read.text("a path"), read.text("a fingerprint")
    added_by, stored, raw, count = read.unpack(_FILE, "a file")
    layout = bytes(read.take(_IMAGE.size * count, "the columns of a file"))
    numbers = np.frombuffer(layout, "<u4")
    if (numbers[::2] >= columns).any() or int(numbers[1::2].sum(dtype=np.uint64)) != raw:
        raise BadBlobError(f"sketch directory: {path} has other columns, or images of another length, than it lists")
    return DirectoryEntry(path, deletes, added_by, stored, raw, layout)
