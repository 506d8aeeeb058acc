"""The last searches of each kind, to be repeated on the next reader before it takes over.

What a reader works out once, as the rows that satisfy a condition, it works out in the first search that needs it.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import BooleanExpression

from icepuffin.ops.filters.condition_text import condition_key
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.search.arguments import BYTES

_MOST_KINDS = 16
R = TypeVar("R")


class RecentSearches(Generic[R]):
    """Searches of one query each, a last one by the columns that it returns and its condition. Thread-safe."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._searches: OrderedDict[tuple[str, str, str], Callable[[R], object]] = OrderedDict()

    def add(self, method: str, query: Any, options: Mapping[str, Any]) -> None:
        """Remember a call of a reader's method, with one query in any form. One with a condition per query is not."""
        where = options["where"]
        if not (where is None or isinstance(where, str | BooleanExpression)):
            return
        key = method, repr(options["columns"]), condition_key(where)
        with self._lock:
            if key in self._searches:
                self._searches.move_to_end(key)
                return
            own = _copied(query)
            self._searches[key] = lambda reader: getattr(reader, method)(own, **options)
            if len(self._searches) > _MOST_KINDS:
                self._searches.popitem(last=False)

    def all(self) -> list[Callable[[R], object]]:
        """One search of each kind, as a function of the reader."""
        with self._lock:
            return list(self._searches.values())


def _copied(query: Any) -> Any:
    """A copy of a query, which its caller may change, or which may be a row of a large array."""
    if isinstance(query, BYTES):
        return bytes(query)
    if isinstance(query, list | tuple) and all(isinstance(value, BYTES) for value in query):
        return [bytes(value) for value in query]  # NumPy's strings lose zeros at the end
    if isinstance(query, pa.Array | pa.ChunkedArray):
        return pa.array(query.to_pylist(), query.type)
    return np.array(query)
