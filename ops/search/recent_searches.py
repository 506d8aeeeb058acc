"""The last searches of each kind, to be repeated on the next reader before it takes over.

What a reader works out once, as the rows that satisfy a condition, it works out in the first search that needs it.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
from pyiceberg.expressions import BooleanExpression

from icepuffin.ops.process_lock import ProcessLock
from icepuffin.ops.search.condition_text import condition_key

_MOST_KINDS = 16
_VECTOR: Any = list | tuple | np.ndarray
R = TypeVar("R")


class RecentSearches(Generic[R]):
    """Searches of one query each, a last one by the columns that it returns and its condition. Thread-safe."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._searches: OrderedDict[tuple[str, str, str], Callable[[R], object]] = OrderedDict()

    def add(self, method: str, query: Any, options: Mapping[str, Any]) -> None:
        """Remember a call of a reader's method. One of many queries, which takes long, is not remembered."""
        where = options["where"]
        if not _is_one(query) or not (where is None or isinstance(where, str | BooleanExpression)):
            return
        key = method, repr(options["columns"]), condition_key(where)
        with self._lock:
            if key in self._searches:
                self._searches.move_to_end(key)
                return
            own = np.array(query)  # the array may be a row of a large one
            self._searches[key] = lambda reader: getattr(reader, method)(own, **options)
            if len(self._searches) > _MOST_KINDS:
                self._searches.popitem(last=False)

    def all(self) -> list[Callable[[R], object]]:
        """One search of each kind, as a function of the reader."""
        with self._lock:
            return list(self._searches.values())


def _is_one(query: Any) -> bool:
    """Whether it is a vector, or a list of one."""
    return isinstance(query, _VECTOR) and len(query) > 0 and (len(query) == 1 or not isinstance(query[0], _VECTOR))
