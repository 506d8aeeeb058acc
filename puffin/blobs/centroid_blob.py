"""Blob `flockdb-ann-centroid-v1` (`ANNI`): where each data file's vectors lie. Stored zstd as a whole.

Header, 32 bytes: magic `ANNI`, then u32 version, dims D, entries, files, metric, entry size (4 D + 8), offset of the
file table. Entries: f32[D] centroid, u32 file, f32 max_distance. File table: per file u32 length and UTF-8 path.
"""

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icepuffin.puffin.blobs.cursor import Cursor, packed_text
from icepuffin.puffin.blobs.formats import require_format
from icepuffin.puffin.errors import BadBlobError
from icepuffin.puffin.types import MAX_DIMS, MAX_METRIC

MAGIC = b"ANNI"
VERSION = 1
_HEADER = struct.Struct("<4s7I")
_PATH_BYTES = 96
"""Bytes that a short path takes in memory"""
_ALWAYS_ALLOWED = 32 << 20


@dataclass(frozen=True, slots=True, eq=False)
class CentroidIndex:
    """Balls that hold the vectors of files; a file may have several."""

    metric: int
    dims: int
    centroids: npt.NDArray[np.float32]
    """f32[entries, dims]"""
    file_ordinals: npt.NDArray[np.uint32]
    """u32[entries], into `files`"""
    max_distances: npt.NDArray[np.float32]
    """f32[entries]: no vector of the entry is farther from its centroid, in the index's metric"""
    files: tuple[str, ...]


def encoded_bytes(index: CentroidIndex) -> int:
    """How long `encode` makes it."""
    paths = sum(4 + len(path.encode()) for path in index.files)
    return _HEADER.size + len(index.centroids) * (4 * index.dims + 8) + paths


def encode(index: CentroidIndex) -> bytes:
    """Serialise; the caller stores it with codec zstd."""
    entries = np.zeros(len(index.centroids), dtype=_entry_type(index.dims))
    entries["centroid"] = index.centroids
    entries["file"] = index.file_ordinals
    entries["max_distance"] = index.max_distances
    table = b"".join(map(packed_text, index.files))
    entry_size = entries.dtype.itemsize
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        index.dims,
        len(entries),
        len(index.files),
        index.metric,
        entry_size,
        _HEADER.size + len(entries) * entry_size,
    )
    return header + entries.tobytes() + table


def decode(data: bytes) -> CentroidIndex:
    """Parse and check. Raises BadBlobError."""
    if len(data) < _HEADER.size:
        raise BadBlobError(f"centroid blob of {len(data)} bytes has no header")
    magic, version, dims, count, files, metric, entry_size, table_at = _HEADER.unpack_from(data)
    require_format("centroid blob", (magic, version), (MAGIC, VERSION))
    if not 1 <= dims <= MAX_DIMS or entry_size != 4 * dims + 8 or table_at != _HEADER.size + count * entry_size:
        raise BadBlobError(
            f"centroid blob: {dims} dims, entry size {entry_size}, file table at {table_at} do not agree"
        )
    if metric > MAX_METRIC:
        raise BadBlobError(f"centroid blob: unknown metric {metric}")
    if table_at > len(data):
        raise BadBlobError(f"centroid blob of {len(data)} bytes: {count} entries end at {table_at}")
    entries = np.frombuffer(data, _entry_type(dims), count, _HEADER.size)
    paths = _decode_paths(data, table_at, files)
    if count and int(entries["file"].max()) >= files:
        raise BadBlobError(f"centroid blob: entry of file {int(entries['file'].max())}, there are {files}")
    distances = np.ascontiguousarray(entries["max_distance"])
    centroids = np.ascontiguousarray(entries["centroid"]).reshape(count, dims)
    if not np.isfinite(centroids).all() or not (distances >= 0).all():
        raise BadBlobError("centroid blob: a centroid is not finite, or a distance is negative or not a number")
    return CentroidIndex(metric, dims, centroids, np.ascontiguousarray(entries["file"]), distances, paths)


def _entry_type(dims: int) -> np.dtype[np.void]:
    return np.dtype([("centroid", "<f4", (dims,)), ("file", "<u4"), ("max_distance", "<f4")])


def _decode_paths(data: bytes, offset: int, count: int) -> tuple[str, ...]:
    cursor = Cursor(memoryview(data)[offset:], "centroid blob")
    paths, texts, most_texts = [], 0, (_ALWAYS_ALLOWED + 5 * len(data)) // _PATH_BYTES
    for number in range(count):
        paths.append(cursor.text(f"path of file {number}"))
        texts += paths[-1] != ""  # an empty one, of a slot without a file, is the same object as all others
        if texts > most_texts:  # far shorter texts than paths are
            raise BadBlobError(f"centroid blob: {count:,} files in {len(data):,} bytes")
    cursor.finish()
    return tuple(paths)
