"""The types of columns that can have a theta sketch, in Iceberg's text form."""

import numpy as np
import pyarrow as pa

from icepuffin.ops.errors import ArgumentError

CREATED_TYPES = frozenset(
    {"int", "long", "date", "time", "timestamp", "timestamptz", "string", "binary", "decimal"},
)
"""Types of columns that get a sketch when a table gets its first (Bodo's rule)."""

ARROW_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"),
    "string": pa.large_string(),
    "binary": pa.large_binary(),
    "uuid": pa.binary(16),
}
"""The Arrow type whose buffers the kernels read, by type name; a decimal or fixed type has one per width."""
SKETCHED_TYPES = frozenset({*ARROW_TYPES, "decimal", "fixed"})
"""Types of columns that can have a sketch at all."""
HISTOGRAM_TYPES = {
    **dict.fromkeys(("int", "long", "date"), np.dtype(np.int64)),
    **dict.fromkeys(("float", "double", "decimal"), np.dtype(np.float64)),
}
"""What the values of a histogram are, by type name: those of Presto's `KllHistogram`, and no other type"""
SIZE_TYPES = frozenset({"string", "binary", "fixed"})
"""Types of columns whose data size is kept: those of Presto's types of variable width"""


class SketchTypeError(ArgumentError):
    """Raised when a column's type has no statistics of this kind, or the Arrow data is not of that type."""


def type_name_of(iceberg_type: str) -> str:
    """The type's name without its parameters: "decimal(9, 2)" -> "decimal", "fixed[16]" -> "fixed"."""
    return iceberg_type.split("(", maxsplit=1)[0].split("[", maxsplit=1)[0]
