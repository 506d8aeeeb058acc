"""Search: open an index of a table at a snapshot, ask for the nearest rows."""

from icepuffin.ops.search.errors import FilterError, IndexUnavailableError, QueryError, UnknownColumnError
from icepuffin.ops.search.opening import exact_search, open_exact, open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import Coverage, Profile, Pruning, SearchResult, StalePolicy

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
    "exact_search",
    "open_exact",
    "open_index",
]
