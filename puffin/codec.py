"""Compression of blobs and footers: none, LZ4 single frame with content size, zstd single frame with content size.

Decompression trusts nothing: the declared size is checked against a limit before any memory is taken, and the result
against the declared size. Source: Puffin spec, "Compression codecs".
"""

import threading

import lz4.frame
import zstandard

from icepuffin.puffin.errors import BadCompressionError, PuffinError

CODECS = (None, "lz4", "zstd")
DEFAULT_MAX_BYTES = 2**31 - 1
_ZSTD_LEVEL = 3
_of_thread = threading.local()
_ALWAYS_EXPANDED = 8 << 20
EXPANDED_PER_BYTE = 8
# the most that each format can expand to: a zstd block of 4 bytes holds 128 KiB, an LZ4 match grows 255 per byte
_MAX_RATIO = {"zstd": 32_768, "lz4": 255}


def compress(data: bytes, codec: str | None, level: int = _ZSTD_LEVEL) -> bytes:
    """Compress whole `data` into one frame that declares its content size, and has a checksum. `level`: of zstd."""
    if codec is None:
        return data
    if codec == "zstd":
        return zstandard.ZstdCompressor(level=level, write_content_size=True, write_checksum=True).compress(data)
    if codec == "lz4":
        return bytes(lz4.frame.compress(data, content_checksum=True, store_size=True))
    raise PuffinError(f"compression codec {codec!r} is not one of none, lz4, zstd")


def most_expanded(stored: int) -> int:
    """Bytes that `stored` compressed bytes may expand to, for any codec. More is refused as a decompression bomb."""
    return _ALWAYS_EXPANDED + EXPANDED_PER_BYTE * stored


def encode(data: bytes, codec: str | None, level: int = _ZSTD_LEVEL) -> tuple[bytes, str | None]:
    """(bytes to store, their codec). Data that shrink so much that a reader would refuse them are not compressed."""
    compressed = compress(data, codec, level)
    return (data, None) if len(data) > most_expanded(len(compressed)) else (compressed, codec)


def decompress(data: bytes, codec: str | None, *, where: str, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """Undo `compress`. `where` names the bytes in errors.

    Raises BadCompressionError for a frame that is broken, has no content size, or declares more than `max_bytes`, or
    more than `most_expanded`.
    """
    max_bytes = min(max_bytes, most_expanded(len(data)))
    if codec is None:
        return data
    if codec == "zstd":
        return _decompress_zstd(data, where, max_bytes)
    if codec == "lz4":
        return _decompress_lz4(data, where, max_bytes)
    raise BadCompressionError(f"{where}: compression codec {codec!r} is not one of none, lz4, zstd")


def _decompress_zstd(data: bytes, where: str, max_bytes: int) -> bytes:
    try:
        size = zstandard.get_frame_parameters(data).content_size
    except zstandard.ZstdError as error:
        raise BadCompressionError(f"{where}: not a zstd frame ({error})") from error
    if size == zstandard.CONTENTSIZE_UNKNOWN:
        raise BadCompressionError(f"{where}: the zstd frame does not declare its content size")
    _check_declared(size, len(data) * _MAX_RATIO["zstd"], max_bytes, where)
    try:
        # zstandard ignores max_output_size for a frame that declares its size, so the check above is the guard
        out = _decompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadCompressionError(f"{where}: broken zstd frame ({error})") from error
    return _checked(out, size, where)


def _decompressor() -> zstandard.ZstdDecompressor:
    """The decompressor of this thread: to make one takes longer than to decompress a few kilobytes."""
    if not hasattr(_of_thread, "decompressor"):
        _of_thread.decompressor = zstandard.ZstdDecompressor()
    decompressor: zstandard.ZstdDecompressor = _of_thread.decompressor
    return decompressor


def _decompress_lz4(data: bytes, where: str, max_bytes: int) -> bytes:
    try:
        size = lz4.frame.get_frame_info(data)["content_size"]
    except RuntimeError as error:
        raise BadCompressionError(f"{where}: not an LZ4 frame ({error})") from error
    if not size and len(data) > _SMALLEST_LZ4_FRAME:
        raise BadCompressionError(f"{where}: the LZ4 frame does not declare its content size")
    _check_declared(size, len(data) * _MAX_RATIO["lz4"], max_bytes, where)
    decompressor = lz4.frame.LZ4FrameDecompressor()
    try:
        out = decompressor.decompress(data, max_length=size + 1)
    except RuntimeError as error:
        raise BadCompressionError(f"{where}: broken LZ4 frame ({error})") from error
    if not decompressor.eof or decompressor.unused_data:
        raise BadCompressionError(f"{where}: the LZ4 frame does not end where its bytes end")
    return _checked(bytes(out), size, where)


# magic 4, descriptor 2 to 10, header checksum 1, end mark 4, content checksum 4
_SMALLEST_LZ4_FRAME = 23


def _check_declared(size: int, possible: int, max_bytes: int, where: str) -> None:
    if size > possible:
        raise BadCompressionError(f"{where}: declares {size:,} bytes, but can hold {possible:,} at most")
    if size > max_bytes:
        raise BadCompressionError(f"{where}: declares {size:,} bytes, over the limit of {max_bytes:,}")


def _checked(out: bytes, size: int, where: str) -> bytes:
    if len(out) != size:
        raise BadCompressionError(f"{where}: decompressed to {len(out):,} bytes, {size:,} were declared")
    return out
