"""Python values as constants of SQL, written as Spark reads them."""

import datetime as dt
import math
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from icepuffin.ops.sql.errors import MAX_DIGITS, SqlError


def _named(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def written(value: Any) -> str:  # noqa: PLR0911  one per kind of value
    """A constant as Spark reads it. Raises SqlError for what is no constant."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case int():
            return str(value) if value >= 0 else f"({value})"
        case float():
            return f"CAST('{_named(value)}' AS DOUBLE)"
        case Decimal() if value.is_finite():
            return f"{value:f}BD" if value >= 0 else f"({value:f}BD)"
        case str() | UUID() | dt.time():
            escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
            return "'" + escaped.replace("${", "\\u0024{") + "'"  # Spark replaces ${...}, in texts as well
        case bytes():
            return f"X'{value.hex()}'"
        case dt.datetime():
            name = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP"
            return f"{name} '{value.isoformat(' ')}'"
        case dt.date():
            return f"DATE '{value.isoformat()}'"
        case np.ndarray() | list() | tuple():
            return f"array({', '.join(written(item) for item in plain(value))})"
    raise SqlError(f"a parameter of type {type(value).__name__} is no constant of SQL")


def encodable(value: Any, name: str) -> Any:
    """The parameter, all kinds of bytes as `bytes`: NumPy reads others as numbers, whatever the column's elements are.

    Raises SqlError for a text that UTF-8 cannot encode, such as half of a surrogate pair, and for an integer of more
    than `MAX_DIGITS`.
    """
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
        raise SqlError(f"parameter :{name} has more than {MAX_DIGITS:,} digits")
    try:
        if isinstance(value, str):
            value.encode()
    except UnicodeEncodeError as error:
        raise SqlError(f"parameter :{name} is no text: {error}") from error
    return value


def plain(value: Any) -> Any:
    """The value, with Python's types in place of numpy's. Raises SqlError for times that Python's cannot hold."""
    if isinstance(value, np.datetime64) and value.dtype == "M8[ns]" and value.astype("M8[us]") == value:
        value = value.astype("M8[us]")
    python_value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(value, np.datetime64) and isinstance(python_value, int):
        raise SqlError(f"{value} is no time to the microsecond, from year 1 to 9999")
    return python_value
