"""The footer: what blobs a file holds, and where. Parsed strictly, since it may come from anybody.

A table's metadata names our files in statistics entries, so that nobody's cleaner takes them for orphans. A planner may
read all blobs of the file of any entry, and take each to be about one column: as Presto does. So a file that only we
read is a Puffin file, then a public footer that lists numbers of distinct values alone, and says where that file ends.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icepuffin.puffin.codec import CODECS
from icepuffin.puffin.errors import BadBlobLocationError, BadFooterError
from icepuffin.puffin.types import MAGIC, BlobType

OWN_BYTES = "icepuffin.own-bytes"
"""Property of the public footer: the bytes of the file before it, which are a Puffin file with a footer of its own"""
_I64 = 2**63
_ALWAYS_ALLOWED = 40 << 20
_A_BYTE = 8
"""Bytes of memory, the payload's own included, for each stored byte of a footer"""
_A_TEXT = 60


@dataclass(frozen=True, slots=True)
class BlobMetadata:
    """One blob, as the footer describes it."""

    type: str
    fields: tuple[int, ...]
    """Field ids that the blob is about."""
    snapshot_id: int
    sequence_number: int
    offset: int
    """Bytes from the start of the file."""
    length: int
    """Stored bytes, after compression."""
    compression_codec: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Footer:
    """The whole footer payload."""

    blobs: tuple[BlobMetadata, ...]
    properties: Mapping[str, str] = field(default_factory=dict)

    def of_type(self, blob_type: str) -> tuple[BlobMetadata, ...]:
        return tuple(blob for blob in self.blobs if blob.type == blob_type)


def encode_footer(footer: Footer) -> bytes:
    """Footer payload, UTF-8 JSON in the spec's names; byte for byte the same for equal footers."""
    blobs = [_blob_to_json(blob) for blob in footer.blobs]
    payload: dict[str, Any] = {"blobs": blobs}
    if footer.properties:
        payload["properties"] = dict(sorted(footer.properties.items()))
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()


def _blob_to_json(blob: BlobMetadata) -> dict[str, Any]:
    out: dict[str, Any] = {
        "type": blob.type,
        "fields": list(blob.fields),
        "snapshot-id": blob.snapshot_id,
        "sequence-number": blob.sequence_number,
        "offset": blob.offset,
        "length": blob.length,
    }
    if blob.compression_codec is not None:
        out["compression-codec"] = blob.compression_codec
    if blob.properties:
        out["properties"] = dict(sorted(blob.properties.items()))
    return out


def decode_footer(payload: bytes, *, blob_area_end: int, stored: int | None = None) -> Footer:
    """Parse a footer payload and check that every blob lies in `[4, blob_area_end)` and overlaps none.

    `stored`: its bytes as they are in the file, where it was compressed there: by them goes how much memory its values
    may take. Raises BadFooterError and BadBlobLocationError.
    """
    _require_room(payload, len(payload) if stored is None else stored)
    try:
        text = payload.decode("utf-8")
        document = json.loads(text, object_pairs_hook=_reject_duplicates, parse_constant=_reject_constant)
    except BadFooterError:
        raise
    except (ValueError, RecursionError) as error:  # ValueError also where an integer has thousands of digits
        raise BadFooterError(f"footer payload is not JSON in UTF-8: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("blobs"), list):
        raise BadFooterError("footer payload is not an object with a list of blobs")
    blobs = tuple(_blob_from_json(number, blob) for number, blob in enumerate(document["blobs"]))
    _check_locations(blobs, blob_area_end)
    return Footer(blobs, _properties(document.get("properties"), "footer"))


def _require_room(payload: bytes, stored: int) -> None:
    """Refuse JSON of many small values, of which a few bytes make a Python object each, before there are any.

    In memory are the payload, its text, and the values, of which marks inside of texts count as some. A letter takes
    the bytes that the widest of its text takes.
    """
    width = _width(payload)
    room = _ALWAYS_ALLOWED + _A_BYTE * stored - (1 + width) * len(payload)
    objects, lists, commas, quotes = (payload.count(mark) for mark in (b"{", b"[", b",", b'"'))
    widest = 4 if b"\\u" in payload else width
    size = 240 * objects + 96 * lists + 44 * commas + _A_TEXT * (quotes // 2) + widest * len(payload)
    if size > room:
        raise BadFooterError(f"the values of a footer of {stored:,} bytes take about {size:,} in memory, over {room:,}")


def _width(payload: bytes) -> int:
    """Bytes that Python keeps for each letter of a text, by the first bytes of its letters in UTF-8."""
    return 4 if re.search(rb"[\xf0-\xff]", payload) else 2 if re.search(rb"[\xc4-\xef]", payload) else 1


def _reject_constant(name: str) -> None:
    raise BadFooterError(f"footer payload holds {name}, which is not JSON")


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise BadFooterError(f"footer payload repeats a key among {sorted(key for key, _ in pairs)}")
    return out


def _blob_from_json(number: int, blob: Any) -> BlobMetadata:
    where = f"blob {number}"
    if not isinstance(blob, dict):
        raise BadFooterError(f"{where} is not an object")
    if not isinstance(blob.get("type"), str) or not blob["type"]:
        raise BadFooterError(f"{where}: 'type' is not a non-empty string")
    fields = blob.get("fields")
    if not isinstance(fields, list):
        raise BadFooterError(f"{where}: 'fields' is not a list")
    _check_text(blob["type"], where)
    codec = blob.get("compression-codec")
    if codec not in CODECS:
        raise BadFooterError(f"{where}: compression codec {codec!r} is not one of none, lz4, zstd")
    return BlobMetadata(
        type=blob["type"],
        fields=tuple(_integer(value, where, "fields", 2**31) for value in fields),
        snapshot_id=_integer(blob.get("snapshot-id"), where, "snapshot-id"),
        sequence_number=_integer(blob.get("sequence-number"), where, "sequence-number"),
        offset=_integer(blob.get("offset"), where, "offset"),
        length=_integer(blob.get("length"), where, "length"),
        compression_codec=codec,
        properties=_properties(blob.get("properties"), where),
    )


def _integer(value: Any, where: str, key: str, bound: int = _I64) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -bound <= value < bound:
        raise BadFooterError(f"{where}: {key!r} is {value!r}, not an integer that fits")
    return value


def _properties(value: Any, where: str) -> Mapping[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise BadFooterError(f"{where}: 'properties' is not an object of strings")
    for key, text in value.items():
        _check_text(key + text, where)
    return value


def _check_text(text: str, where: str) -> None:
    """JSON can spell half a surrogate pair, which no UTF-8 text holds and no footer could be written with."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadFooterError(f"{where}: text with half a surrogate pair at {error.start}") from error


def _check_locations(blobs: tuple[BlobMetadata, ...], blob_area_end: int) -> None:
    for number, blob in enumerate(blobs):
        if blob.offset < len(MAGIC) or blob.length < 0 or blob.offset + blob.length > blob_area_end:
            raise BadBlobLocationError(
                f"blob {number} ({blob.type}): bytes {blob.offset} to {blob.offset + blob.length} are not between "
                f"{len(MAGIC)} and the footer at {blob_area_end}"
            )
    end, last = 0, -1
    for number, blob in sorted(enumerate(blobs), key=lambda item: item[1].offset):
        if blob.length and blob.offset < end:
            raise BadBlobLocationError(f"blob {number} at {blob.offset} overlaps blob {last}, which ends at {end}")
        if blob.length:
            end, last = blob.offset + blob.length, number


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
