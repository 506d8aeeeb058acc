"""Writing Puffin files: blobs are streamed one after the other, the footer comes last, nothing is sought back.

Or a file is planned out of blobs that lie in a store already, for assembly by server-side concatenation.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from icepuffin.puffin.codec import encode
from icepuffin.puffin.errors import PuffinError
from icepuffin.puffin.footer import BlobMetadata, DistinctCount, Footer, encode_footer, public_footer
from icepuffin.puffin.types import MAGIC


class ByteSink(Protocol):
    """Anything that takes bytes in order."""

    def write(self, data: bytes, /) -> object: ...


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What a statistics entry of the table's metadata needs to know of a finished file."""

    file_size: int
    footer_size: int
    """Bytes of the last footer as Iceberg counts it: both magics, payload, size and flags."""
    footer: Footer
    """Footer of the file's own blobs."""


def closing_bytes(footer: Footer, position: int, counts: Sequence[DistinctCount] | None) -> tuple[bytes, int]:
    """(all that comes after the blobs, which end at `position`; bytes of the last footer). `counts`: of the public
    footer behind the file's own; None where it has none.
    """
    footer_alone = footer_bytes(footer)
    if counts is None:
        return footer_alone, len(footer_alone)
    public = footer_bytes(public_footer(position + len(footer_alone), counts, footer.properties))
    return footer_alone + public, len(public)


def footer_bytes(footer: Footer) -> bytes:
    """The whole footer, from its magic to the end of the file; never compressed, since Java cannot read it then."""
    payload = encode_footer(footer)
    return b"".join((MAGIC, payload, len(payload).to_bytes(4, "little"), bytes(4), MAGIC))


class PuffinWriter:
    """Streams one Puffin file into `sink`; call `finish` last. Publication is the sink's affair."""

    def __init__(self, sink: ByteSink) -> None:
        self._sink = sink
        self._blobs: list[BlobMetadata] = []
        self._position = 0
        self._finished = False
        self._write(MAGIC)

    def add_blob(
        self,
        blob_type: str,
        *,
        fields: Iterable[int],
        snapshot_id: int,
        sequence_number: int,
        data: bytes | Iterable[bytes],
        codec: str | None = None,
        properties: Mapping[str, str] | None = None,
        align: int = 1,
        is_stored: bool = False,
    ) -> BlobMetadata:
        """Append one blob. Chunks are streamed when they are not compressed; `align` pads the offset with zeros.

        is_stored: whether the data are compressed by the codec already, as another file has them.
        """
        self._check_open()
        if align < 1:
            raise PuffinError(f"blob {len(self._blobs)} ({blob_type}): alignment {align} is not positive")
        self._write(bytes(-self._position % align))
        offset = self._position
        if codec is not None and not is_stored:
            data, codec = encode(data if isinstance(data, bytes) else b"".join(data), codec)
        for chunk in (data,) if isinstance(data, bytes) else data:
            self._write(chunk)
        blob = BlobMetadata(
            type=blob_type,
            fields=tuple(fields),
            snapshot_id=snapshot_id,
            sequence_number=sequence_number,
            offset=offset,
            length=self._position - offset,
            compression_codec=codec,
            properties=dict(properties or {}),
        )
        self._blobs.append(blob)
        return blob

    def finish(
        self, properties: Mapping[str, str] | None = None, counts: Sequence[DistinctCount] | None = None
    ) -> FileInfo:
        """Write the footer, and a public one with `counts` unless that is None. The writer takes no blob afterwards."""
        self._check_open()
        self._finished = True
        footer = Footer(tuple(self._blobs), dict(properties or {}))
        tail, footer_size = closing_bytes(footer, self._position, counts)
        self._write(tail)
        return FileInfo(self._position, footer_size, footer)

    def _check_open(self) -> None:
        if self._finished:
            raise PuffinError(f"the footer was written after {len(self._blobs)} blobs; the file takes nothing more")

    def _write(self, data: bytes) -> None:
        if data:
            self._sink.write(data)
            self._position += len(data)


@dataclass(frozen=True, slots=True)
class PuffinLayout:
    """File = `gaps[0]` blob 0 `gaps[1]` blob 1 ... `tail`."""

    gaps: tuple[bytes, ...]
    """Bytes to write before each blob: the magic first, then padding."""
    tail: bytes
    """Everything after the last blob."""
    footer: Footer
    file_size: int
    footer_size: int


def plan_puffin(
    blobs: Sequence[BlobMetadata],
    properties: Mapping[str, str] | None = None,
    counts: Sequence[DistinctCount] | None = None,
    *,
    align: int = 1,
) -> PuffinLayout:
    """Place the blobs in order, each at a multiple of `align`, and write the footer that belongs to them, and a public
    one with `counts` unless that is None. The offsets that the blobs have are ignored.
    """
    position = 0
    gaps: list[bytes] = []
    placed: list[BlobMetadata] = []
    for number, blob in enumerate(blobs):
        lead = MAGIC if number == 0 else b""
        lead += bytes(-(position + len(lead)) % align)
        gaps.append(lead)
        placed.append(replace(blob, offset=position + len(lead)))
        position += len(lead) + blob.length
    footer = Footer(tuple(placed), dict(properties or {}))
    lead = b"" if blobs else MAGIC
    end, footer_size = closing_bytes(footer, position + len(lead), counts)
    return PuffinLayout(tuple(gaps), lead + end, footer, position + len(lead + end), footer_size)
