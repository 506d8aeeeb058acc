"""Plans a Puffin file out of blobs that already lie in a store, for assembly by server-side concatenation. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from icepuffin.puffin.footer import BlobMetadata, Footer
from icepuffin.puffin.public_footer import DistinctCount
from icepuffin.puffin.puffin_writer import closing_bytes
from icepuffin.puffin.types import MAGIC


@dataclass(frozen=True, slots=True)
class PlannedBlob:
    """A blob whose stored bytes lie somewhere; only their length matters here."""

    type: str
    fields: tuple[int, ...]
    snapshot_id: int
    sequence_number: int
    length: int
    codec: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    align: int = 1


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
    blobs: Sequence[PlannedBlob],
    properties: Mapping[str, str] | None = None,
    counts: Sequence[DistinctCount] | None = None,
) -> PuffinLayout:
    """Place the blobs in order, each at its alignment, and write the footer that belongs to them, and a public one with
    `counts` unless that is None.
    """
    position = 0
    gaps: list[bytes] = []
    placed: list[BlobMetadata] = []
    for number, blob in enumerate(blobs):
        lead = MAGIC if number == 0 else b""
        lead += bytes(-(position + len(lead)) % blob.align)
        gaps.append(lead)
        placed.append(
            BlobMetadata(
                type=blob.type,
                fields=blob.fields,
                snapshot_id=blob.snapshot_id,
                sequence_number=blob.sequence_number,
                offset=position + len(lead),
                length=blob.length,
                compression_codec=blob.codec,
                properties=blob.properties,
            )
        )
        position += len(lead) + blob.length
    footer = Footer(tuple(placed), dict(properties or {}))
    lead = b"" if blobs else MAGIC
    end, footer_size = closing_bytes(footer, position + len(lead), counts)
    return PuffinLayout(tuple(gaps), lead + end, footer, position + len(lead + end), footer_size)
