"""The footer that other engines see of files that only we read: it lists numbers of distinct values alone.

A table's metadata names our files in statistics entries, so that nobody's cleaner takes them for orphans. A planner may
read all blobs of the file of any entry, and take each to be about one column: as Presto does. So such a file is a
Puffin file, then this footer, which is short and says where that file ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from icepuffin.puffin.errors import BadFooterError
from icepuffin.puffin.footer import BlobMetadata, Footer
from icepuffin.puffin.types import BlobType

OWN_BYTES = "icepuffin.own-bytes"
"""Property of the public footer: the bytes of the file before it, which are a Puffin file with a footer of its own"""


@dataclass(frozen=True, slots=True)
class DistinctCount:
    """Number of distinct values of a column, for planners."""

    field_id: int
    snapshot_id: int
    """Id of the snapshot whose rows were counted"""
    sequence_number: int
    ndv: int


def public_footer(own_bytes: int, counts: Sequence[DistinctCount], properties: Mapping[str, str]) -> Footer:
    """The public footer of a file of `own_bytes`. A count is a property of a sketch that is not there: of no bytes."""
    blobs = (
        BlobMetadata(
            type=BlobType.THETA,
            fields=(count.field_id,),
            snapshot_id=count.snapshot_id,
            sequence_number=count.sequence_number,
            offset=own_bytes,
            length=0,
            properties={"ndv": str(count.ndv)},
        )
        for count in counts
    )
    return Footer(tuple(blobs), {**properties, OWN_BYTES: str(own_bytes)})


def own_bytes(footer: Footer, end: int) -> int | None:
    """Bytes of the file before a footer that starts at `end`, where that is a public one. Raises BadFooterError."""
    text = footer.properties.get(OWN_BYTES)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= end):
        raise BadFooterError(f"the public footer at {end} names a file of {text[:40]!r} bytes before it")
    return int(text)
