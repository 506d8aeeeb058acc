"""Reading Puffin files by range: one read for the tail, then one for each blob that does not lie in it."""

from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.puffin.codec import DEFAULT_MAX_BYTES, decompress
from icepuffin.puffin.errors import (
    BadFooterError,
    BadMagicError,
    BlobTooLargeError,
    TruncatedFileError,
    UnknownFlagsError,
)
from icepuffin.puffin.footer import BlobMetadata, Footer, decode_footer, own_bytes
from icepuffin.puffin.sources import RangeSource
from icepuffin.puffin.types import FLAG_FOOTER_COMPRESSED, FOOTER_TAIL, MAGIC

TAIL_READ = 64 * 1024
"""Bytes at the end of a file that are read at once"""
MAX_FOOTER = 256 * 1024 * 1024
"""Largest footer payload, in bytes, that is read"""
_SMALLEST_FILE = len(MAGIC) + len(MAGIC) + FOOTER_TAIL


class PuffinReader:
    """One Puffin file.

    `source` is read lazily: the footer when it is first needed, blobs on demand. Safe to share between threads.
    `max_blob_bytes` bounds what one blob may take in memory, stored or decompressed.
    Errors: the types of `icepuffin.puffin.errors`, raised by `footer` and the read methods.
    """

    def __init__(self, source: RangeSource, *, max_blob_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._source = source
        self._max_blob_bytes = max_blob_bytes
        self._tail = 0, b""
        """(its offset, the file's bytes from there on), in one, as other threads may be reading it"""

    @cached_property
    def footer(self) -> Footer:
        """The footer, parsed and checked. Also checks the magic at the start of the file.

        Of a file of ours with a public footer it is the one before that.
        """
        footer, start = self._footer_before(self._source.size())
        head = self._read(0, 4)
        if head != MAGIC:
            raise BadMagicError(f"the file starts with {head!r}, not with {MAGIC!r}")
        end = own_bytes(footer, start)
        return footer if end is None else self._footer_before(end)[0]

    def _footer_before(self, size: int) -> tuple[Footer, int]:
        """(the footer that ends at `size`, its offset)."""
        if size < _SMALLEST_FILE:
            raise TruncatedFileError(f"a Puffin file has at least {_SMALLEST_FILE} bytes, this one {size}")
        start, tail = self._tail
        if not tail or size - start < _SMALLEST_FILE:
            start = max(0, size - TAIL_READ)
            tail = self._read(start, size - start)
        tail = tail[: size - start]
        if tail[-4:] != MAGIC:
            raise BadMagicError(f"the file ends with {tail[-4:]!r} at {size - 4}, not with {MAGIC!r}")
        flags = int.from_bytes(tail[-8:-4], "little")
        if flags & ~FLAG_FOOTER_COMPRESSED:
            raise UnknownFlagsError(f"the footer sets unknown flags {flags:#010x} at {size - 8}")
        payload_size = int.from_bytes(tail[-12:-8], "little", signed=True)
        footer_start = size - FOOTER_TAIL - payload_size - len(MAGIC)
        if payload_size < 0 or footer_start < len(MAGIC):
            raise TruncatedFileError(f"a footer payload of {payload_size} bytes does not fit into {size} bytes")
        if payload_size > MAX_FOOTER:
            raise BadFooterError(f"a footer payload of {payload_size:,} bytes is over the limit of {MAX_FOOTER:,}")
        if footer_start < start:
            tail = self._read(footer_start, start - footer_start) + tail
            start = footer_start
        if (mark := tail[footer_start - start : footer_start - start + 4]) != MAGIC:
            raise BadMagicError(f"the footer at {footer_start} starts with {mark!r}, not with {MAGIC!r}")
        self._tail = start, tail
        payload = tail[footer_start - start + 4 : -FOOTER_TAIL]
        if flags & FLAG_FOOTER_COMPRESSED:
            payload = decompress(payload, "lz4", where="footer payload", max_bytes=MAX_FOOTER)
        return decode_footer(payload, blob_area_end=footer_start, stored=payload_size), footer_start

    def read_blob(self, blob: BlobMetadata) -> bytes:
        """The blob's payload, decompressed.

        Raises BlobTooLargeError, TruncatedFileError or BadCompressionError.
        """
        stored = self.read_blob_range(blob, 0, blob.length)
        where = f"blob {blob.type} at {blob.offset}"
        return decompress(stored, blob.compression_codec, where=where, max_bytes=self._max_blob_bytes)

    def read_blob_range(self, blob: BlobMetadata, offset: int, length: int) -> bytes:
        """Stored bytes `[offset, offset + length)` of the blob, as they are in the file (not decompressed)."""
        if length > self._max_blob_bytes:
            raise BlobTooLargeError(
                f"blob {blob.type} at {blob.offset}: {length:,} bytes are over the limit of {self._max_blob_bytes:,}"
            )
        if offset < 0 or length < 0 or offset + length > blob.length:
            raise TruncatedFileError(
                f"blob {blob.type} at {blob.offset}: bytes {offset} to {offset + length} of {blob.length} requested"
            )
        return self._read(blob.offset + offset, length)

    def _read(self, offset: int, length: int) -> bytes:
        start, tail = self._tail
        if 0 <= (at := offset - start) <= len(tail) - length:
            return tail[at : at + length]
        data = self._source.read_range(offset, length)
        if len(data) != length:
            raise TruncatedFileError(f"{length:,} bytes were expected at {offset}, the source gave {len(data):,}")
        return data
