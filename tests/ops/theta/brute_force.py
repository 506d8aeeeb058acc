"""The statistics of a snapshot by brute force: from the rows that a scan finds, with Python's own types."""

import datetime as dt
import math
import struct
import uuid
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table

from icepuffin.ann_kernels.sketches.kll import KllSketch
from icepuffin.ann_kernels.sketches.theta_estimates import estimate
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.storage import open_storage
from icepuffin.ops.tasks.sketches.frequent_values import frequent_values
from icepuffin.ops.tasks.sketches.images import Sketch
from icepuffin.ops.tasks.sketches.statistic import TYPES, Kind, StatisticKey, fields_of, kind_of
from icepuffin.ops.theta.build_id import sealed_as
from icepuffin.ops.theta.ndv import read_ndv
from icepuffin.ops.theta.requested_statistics import RequestedStatistics
from icepuffin.ops.theta.statistics_slot import listed_thetas, read_others, read_sketches
from icepuffin.puffin.blobs import frequent_items_blob
from icepuffin.puffin.blobs.theta_blob import ThetaSketch
from tests.conftest import STORAGE

Statistics = dict[tuple[Kind, tuple[int, ...]], Sketch]
"""Sketches by kind and field ids"""


def all_kinds(*joint: tuple[str, ...], ndv: Sequence[str] | None = None) -> RequestedStatistics:
    """Each kind, of all columns that it takes."""
    return RequestedStatistics(None if ndv is None else tuple(ndv), "*", "*", "*", joint)


def statistics_at(table: Table, snapshot_id: int) -> Statistics:
    """All sketches of ours in the slot of a snapshot, as a reader finds them."""
    entry = find_statistics(table.refresh(), snapshot_id)
    if entry is None:
        return {}
    store = open_storage(table.location(), STORAGE)
    seals: dict[StatisticKey, str] = {key: other.build_id for key, other in read_others(store, entry).items()}
    listed = {i: seal for i, blob in listed_thetas(entry).items() if (seal := sealed_as(blob.properties))}
    read = read_sketches(store, entry, seals | {(i, ""): seal for i, seal in listed.items()})
    assert len(read) == len(seals) + len(listed)
    return {(kind_of(key), tuple(fields_of(key))): sketch for key, sketch in read.items()}


def possible(table: Table, snapshot_id: int, kind: Kind) -> set[tuple[int, ...]]:
    """Field ids of the columns of which `*` makes a kind of statistics."""
    then = schema_of(table, snapshot_id)
    kept = {
        field.field_id: str(field.field_type) for field in then.fields if field.field_id in table.schema().field_ids
    }
    return {(i,) for i, text in kept.items() if text.partition("(")[0].partition("[")[0] in TYPES[kind]}


def schema_of(table: Table, snapshot_id: int) -> Any:
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    return table.schemas()[snapshot.schema_id or 0]


def require_exact(table: Table, snapshot_id: int) -> Statistics:
    """The statistics of a snapshot, each of which is that of the snapshot's live rows within its stated error."""
    then, read = schema_of(table, snapshot_id), statistics_at(table, snapshot_id)
    rows = table.scan(snapshot_id=snapshot_id).to_arrow().rename_columns([field.name for field in then.fields])
    ndvs = {entry.field_id: entry.ndv for entry in read_ndv(table, snapshot_id).entries.values()}
    for (kind, field_ids), sketch in read.items():
        columns = [rows[str(then.find_column_name(i))] for i in field_ids]
        types = [str(then.find_type(i)) for i in field_ids]
        if isinstance(sketch, KllSketch):
            require_histogram(sketch, columns[0], types[0])
        elif isinstance(sketch, int):
            assert sketch == sum(map(len, map(as_bytes, present(columns[0]))))
        elif isinstance(sketch, bytes):
            require_frequent(sketch, [text_of(value, types[0]) for value in present(columns[0])], types[0])
        elif kind is Kind.NDV:
            counted = {plain(value) for value in present(columns[0]) if value not in ("", b"")}
            require_count(sketch, len(counted))
            assert ndvs[field_ids[0]] == len(counted) or len(counted) > 4_096
        else:
            require_count(sketch, len(set(zip(*(map(plain, column.to_pylist()) for column in columns), strict=True))))
    return read


def present(column: pa.ChunkedArray) -> list[Any]:
    return [value for value in column.to_pylist() if value is not None]


def as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def plain(value: Any) -> Any:
    """Floats by their bits."""
    return struct.pack("<d", value) if isinstance(value, float) else value


def require_count(sketch: ThetaSketch, count: int) -> None:
    """Exact up to 4,096, else within three standard errors."""
    error = 3 * count / math.sqrt(4_096 - 1) if count > 4_096 else 0
    assert abs(estimate(sketch.theta, len(sketch.hashes)) - count) <= error


def require_histogram(sketch: KllSketch, column: pa.ChunkedArray, kind: str) -> None:
    values = present(column)
    if kind == "date":
        values = [(value - dt.date(1970, 1, 1)).days for value in values]
    ordered = np.sort(np.array([value for value in values if value == value], sketch.levels[0].dtype)) + 0  # noqa: PLR0124
    assert sketch.count == len(ordered)
    if len(ordered) == 0:
        return
    assert (sketch.minimum, sketch.maximum) == (ordered[0], ordered[-1])
    if sketch.rank_error == 0:
        assert sketch.levels[0].tolist() == ordered.tolist()
        return
    assert len(ordered) > sketch.k
    true = np.searchsorted(ordered, ordered, side="right") / len(ordered)
    assert np.abs(sketch.ranks(ordered) - true).max() <= sketch.rank_error


def require_frequent(image: bytes, texts: list[Any], kind: str) -> None:
    counts = Counter(texts)
    values = {key_of(value.text, kind): value for value in frequent_values(image)}
    assert frequent_items_blob.decode(image).total == len(texts)
    for text, value in values.items():
        assert value.lower <= counts[text] <= value.upper
        assert value.upper - value.lower <= len(texts) / 385
    if len(counts) <= 384:
        assert {text: value.lower for text, value in values.items()} == counts


def key_of(text: str, kind: str) -> Any:
    """What a text stands for, where there are several forms of it."""
    if kind in ("float", "double"):
        return bits(float(text))
    return dt.datetime.fromisoformat(text) if kind.startswith("timestamp") else text


def bits(value: float) -> bytes:
    return b"NaN" if math.isnan(value) else struct.pack("<d", value)


def text_of(value: Any, kind: str) -> Any:
    """The key of a value's text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return bits(value)
    if isinstance(value, dt.datetime):
        return value
    if isinstance(value, bytes):
        return str(uuid.UUID(bytes=value)) if kind == "uuid" else short(value.hex())
    return str(value) if kind == "uuid" else short(str(value))


def short(text: str) -> str:
    octets = text.encode()
    if len(octets) <= 64:
        return text
    return octets[:45].decode(errors="ignore") + "…" + blake2b(octets, digest_size=8).hexdigest()
