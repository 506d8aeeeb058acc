"""Search: open an index of a table at a snapshot, and find the nearest rows."""

from typing import TYPE_CHECKING

from icepuffin.ops.imports import lazy_exports

if TYPE_CHECKING:
    from icepuffin.ops.search.errors import FilterError, IndexUnavailableError, QueryError, UnknownColumnError
    from icepuffin.ops.search.opening import open_exact, open_index
    from icepuffin.ops.search.reader import IndexReader
    from icepuffin.ops.search.result import Coverage, Profile, Pruning, SearchResult, StalePolicy
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "errors": "FilterError IndexUnavailableError QueryError UnknownColumnError",
            "opening": "open_exact open_index",
            "reader": "IndexReader",
            "result": "Coverage Profile Pruning SearchResult StalePolicy",
        },
    )

__all__ = [
    "Coverage",
    "FilterError",
    "IndexReader",
    "IndexUnavailableError",
    "Profile",
    "Pruning",
    "QueryError",
    "SearchResult",
    "StalePolicy",
    "UnknownColumnError",
    "open_exact",
    "open_index",
]
