"""The frequent values of a column: counters of at most 384 texts, and what a count may lack.

Where there are more texts, what the one after the 384th has is taken from each counter, and added to the offset.
A count is at most the offset above its counter, and the offset at most 1 / 385 (0.26 %) of the values, in any batches
and after any merges. Exact while there are at most 384 distinct values.

Source: Misra, Gries 1982; merges: Agarwal et al. 2012, "Mergeable Summaries", section 3.1. The image is that of
DataSketches, whose own bound for it is 0.68 %: it makes room by the median counter.
"""

import uuid
from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icepuffin.ops.tasks.sketches.canonical_columns import canonical_chunks
from icepuffin.ops.tasks.sketches.sketch_types import type_name_of
from icepuffin.ops.tasks.sketches.statistic import Kind
from icepuffin.puffin.blobs.frequent_items_blob import CAPACITY, FrequentItems, decode, encode

MAX_TEXT_BYTES = 64
"""Bytes of the longest text that is kept as it is; images are of 29 KiB at most"""
_KEPT_BYTES = MAX_TEXT_BYTES - 16 - len("…".encode())


class FrequentValue(NamedTuple):
    """A value in its text form, and how often it is there."""

    text: str
    lower: int
    upper: int


class FrequentAccumulator:
    """Counters that grow with each update and merge; `result` at any time. Memory: 384 texts, and those of a batch."""

    __slots__ = ("_counts", "_offset", "_total")

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._offset = self._total = 0

    def update(self, array: pa.Array | pa.ChunkedArray, iceberg_type: str) -> None:
        """Add a column's values, but nulls; NaNs are one value. `array` as in `canonical_chunks`.

        Text forms are those of Iceberg's JSON, floats' the shortest. Of a text over 64 bytes the first 45, "…" and a
        hash stand for it. Raises SketchTypeError for types without a theta sketch, and for other data.
        """
        for chunk in canonical_chunks(array, iceberg_type, Kind.FREQUENT):
            present = chunk.drop_null()
            if pa.types.is_floating(present.type):  # NaNs of different bits have one text
                present = pc.if_else(pc.is_nan(present), pa.scalar(float("nan"), present.type), present)
            values, counts = present.value_counts().flatten()
            numbers = counts.to_numpy()
            self._total += int(numbers.sum())
            loss = 0
            if len(numbers) > CAPACITY:  # as _make_room does, before texts are made of values
                loss = int(np.partition(numbers, -CAPACITY - 1)[-CAPACITY - 1])
                kept = np.flatnonzero(numbers > loss)
                values, numbers = values.take(pa.array(kept)), numbers[kept] - loss
            counts_by_text: Counter[str] = Counter()  # bytes that are not UTF-8 may have the text of others
            for text, number in zip(_texts(values, iceberg_type), numbers.tolist(), strict=True):
                counts_by_text[text] += number
            self._add(counts_by_text, loss)

    def merge(self, image: bytes) -> None:
        """Add all that a sketch has seen. Raises BadBlobError where it is none."""
        items = decode(image)
        self._total += items.total
        self._add(items.lower_bounds, items.offset)

    def result(self) -> bytes:
        """The image of what has been added so far, the most frequent first; equal counters by text."""
        ordered = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        return encode(FrequentItems(self._total, self._offset, dict(ordered)))

    def _add(self, counts: Mapping[str, int], offset: int) -> None:
        self._counts.update(counts)
        self._offset += offset
        if len(self._counts) > CAPACITY:
            loss = sorted(self._counts.values())[-CAPACITY - 1]
            self._counts = Counter({text: count - loss for text, count in self._counts.items() if count > loss})
            self._offset += loss


def frequent_values(image: bytes) -> list[FrequentValue]:
    """The values that a sketch keeps, the most frequent first. Raises BadBlobError where it is none."""
    items = decode(image)
    listed = [FrequentValue(text, count, count + items.offset) for text, count in items.lower_bounds.items()]
    return sorted(listed, key=lambda value: (-value.lower, value.text))


def _texts(values: pa.Array, iceberg_type: str) -> list[str]:
    type_name = type_name_of(iceberg_type)
    if type_name == "uuid":
        return [str(uuid.UUID(bytes=value)) for value in values.to_pylist()]
    if type_name in ("binary", "fixed"):
        return [_short(value.hex()) for value in values.to_pylist()]
    if type_name.startswith("timestamp"):  # without a zone: Arrow would look for a database of zones
        zone = "+00:00" if "tz" in type_name else ""
        plain = values.cast(pa.timestamp(values.type.unit)).cast(pa.string())
        return [text.replace(" ", "T") + zone for text in plain.to_pylist()]
    octets = values.cast(pa.large_string()).cast(pa.large_binary()).to_pylist()
    return [_short(value.decode(errors="backslashreplace")) for value in octets]


def _short(text: str) -> str:
    octets = text.encode()
    if len(octets) <= MAX_TEXT_BYTES:
        return text
    return f"{octets[:_KEPT_BYTES].decode(errors='ignore')}…{blake2b(octets, digest_size=8).hexdigest()}"
