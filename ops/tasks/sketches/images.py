"""Sketches of all kinds as bytes: the images that are kept of each data file, and that tasks return."""

import struct

import numpy as np

from icepuffin.ann_kernels.sketches.kll import DEFAULT_K, KllSketch
from icepuffin.ops.tasks.sketches.statistic import Kind, StatisticKey, fields_of, kind_of
from icepuffin.puffin.blobs import frequent_items_blob, kll_blob, theta_blob
from icepuffin.puffin.blobs.theta_blob import ThetaSketch
from icepuffin.puffin.errors import BadBlobError

Sketch = ThetaSketch | KllSketch | bytes | int
"""An NDV's or a joint count's; a histogram's; the image of frequent values; bytes of a size"""
_SIZE = struct.Struct("<Q")


def has_floats(key: StatisticKey) -> bool:
    """Whether the values of a histogram are f64; else they are i64."""
    return next(iter(fields_of(key).values())).startswith(("float", "double", "decimal"))


def empty_histogram(key: StatisticKey) -> KllSketch:
    """The histogram of no values."""
    levels = (np.empty(0, np.float64 if has_floats(key) else np.int64),)
    return KllSketch(DEFAULT_K, 0, None, None, levels)


def encode(sketch: Sketch) -> bytes:
    """The image of a sketch."""
    if isinstance(sketch, ThetaSketch):
        return theta_blob.encode(sketch)
    if isinstance(sketch, KllSketch):
        return kll_blob.encode(sketch)
    return _SIZE.pack(sketch) if isinstance(sketch, int) else sketch


def image_size(sketch: Sketch) -> int:
    """Bytes of the image of a sketch, about."""
    if isinstance(sketch, ThetaSketch):
        return 24 + 8 * len(sketch.hashes)
    return len(encode(sketch))


def decode(key: StatisticKey, data: memoryview) -> Sketch:
    """The sketch of a statistic. Raises PuffinError for what is none."""
    kind = kind_of(key)
    if kind is Kind.HISTOGRAM:
        histogram = kll_blob.decode(data, has_floats(key))
        if histogram.k != DEFAULT_K:
            raise BadBlobError(f"a histogram of k {histogram.k} is not united with those of {DEFAULT_K}")
        return histogram
    if kind is Kind.SIZE:
        if len(data) != _SIZE.size:
            raise BadBlobError(f"a size has {_SIZE.size} bytes, these are {len(data)}")
        return int(_SIZE.unpack(data)[0])
    if kind is Kind.FREQUENT:
        frequent_items_blob.decode(data)
        return bytes(data)
    return theta_blob.decode(data)
