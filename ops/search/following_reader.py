"""A reader that follows its table: newer snapshots and index versions are opened beside it and swapped in whole."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.expressions import BooleanExpression

from icepuffin.ops.catalog.restricted_tables import RestrictedTableError
from icepuffin.ops.filters.condition_text import condition_key
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.search.arguments import BYTES, Conditions
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.result import SearchResult

_log = logging.getLogger(__name__)
_REHEARSAL_SECONDS = 10.0
"""Time after which no further search is repeated before a newer reader takes over"""
_LATE = 3
"""Intervals without a check after which answers carry a warning, even where no check failed"""
_MAX_KINDS = 16
"""Kinds of searches that are repeated, the last ones"""

R = TypeVar("R")
"""What is followed: an `IndexReader`"""
Withdraw = Callable[[RestrictedTableError], None]
"""What is called before a reader is opened that shows less than the one in use"""


class FollowingReader(Generic[R]):
    """A reader for services: it answers from one whole snapshot at a time, and moves to newer ones by itself.

    Made by `IndexReader.follow`. `reader` is the reader in use. A thread polls the catalog every `interval` seconds.
    When the table has a newer snapshot, or the snapshot got its own index version, that is opened beside the reader in
    use. The last searches are repeated on it, one of each condition and columns, for ten seconds at most; then it takes
    the place of the other at once. A search that has begun ends on the reader it began with. Use it as a context
    manager, or `close` it.

    Where the catalog or the store does not answer, the reader in use goes on. Each answer then carries a warning with
    the time of the last check, and `error` has the reason.

    Examples
    --------
    >>> with icepuffin.open_index(table).follow(interval=10) as following:
    ...     following.update(), following.reader.snapshot_id == reader.snapshot_id
    (False, True)
    """

    def __init__(
        self,
        reader: R,
        reopen: Callable[[R, Withdraw], R],
        rehearse: Callable[[R, Iterable[Callable[[R], object]]], None],
        *,
        interval: float,
    ) -> None:
        try:
            seconds = float(interval)
        except (TypeError, ValueError, OverflowError):
            seconds = 0.0
        if not seconds > 0:
            raise QueryError(f"interval is {interval!r}; it is a number of seconds above 0")
        self._reader = reader
        self._reopen = reopen
        self._rehearse = rehearse
        self._recent: RecentSearches[R] = RecentSearches()
        self._interval = seconds
        self._last_check: tuple[float, Exception | None] = time.time(), None
        """Time of the last check that did not fail, and the error of the last one: answers see both change at once"""
        self._updating = ProcessLock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="icepuffin-follow", daemon=True)
        self._thread.start()

    @property
    def reader(self) -> R:
        """The IndexReader that answers now. Take it once for several searches of the same snapshot. Raises
        RestrictedTableError where the catalog restricted the table at the last check that it answered, also while a
        reader is opened that shows less.
        """
        error = self.error
        if isinstance(error, RestrictedTableError):
            raise RestrictedTableError(str(error)) from error
        return self._reader

    @property
    def error(self) -> Exception | None:
        """Why the last check failed; None where it did not."""
        return self._last_check[1]

    def search(
        self,
        queries: npt.ArrayLike | None = None,
        k: int = 10,
        *,
        text: str | Sequence[str] | None = None,
        text_weight: float | None = None,
        text_columns: Sequence[str] | None = None,
        search_list: int | None = None,
        shards: int | None = None,
        oversample: int | None = None,
        target_recall: float | None = None,
        recall_share: float | None = None,
        rerank: bool | None = None,
        certified: bool = False,
        columns: Sequence[str] | None = None,
        where: Conditions = None,
        per_group: Mapping[str, int] | None = None,
        diversity: float = 0.0,
    ) -> SearchResult:
        """`IndexReader.search` on the reader that answers now.

        Parameters
        ----------
        queries, k, text, text_weight, text_columns, columns, where : optional
            As for `IndexReader.search`.
        search_list, shards, oversample, target_recall, recall_share, rerank, certified : optional
            As for `IndexReader.search`.
        per_group, diversity : optional
            As for `IndexReader.search`.

        Returns
        -------
        SearchResult
            Rows by query, then rank; a warning where the table was not checked for newer snapshots lately.

        Raises
        ------
        QueryError, UnknownColumnError, FilterError, DataFileError, IndexUnavailableError
            As for `IndexReader.search`.

        Examples
        --------
        >>> with reader.follow() as following:
        ...     following.search(query, k=1, columns=["name"]).rows["name"].to_pylist()
        ['postgresql']
        """
        options = {
            "k": k,
            "text": text,
            "text_weight": text_weight,
            "text_columns": text_columns,
            "search_list": search_list,
            "shards": shards,
            "oversample": oversample,
            "target_recall": target_recall,
            "recall_share": recall_share,
            "rerank": rerank,
            "certified": certified,
            "columns": columns,
            "where": where,
            "per_group": per_group,
            "diversity": diversity,
        }
        return self._answer("search", queries, options)

    def within(
        self,
        queries: npt.ArrayLike,
        distance: float,
        *,
        inclusive: bool = False,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        where: str | BooleanExpression | None = None,
    ) -> SearchResult:
        """`IndexReader.within` on the reader that answers now.

        Parameters
        ----------
        queries, distance, inclusive, limit, columns, where : optional
            As for `IndexReader.within`.

        Returns
        -------
        SearchResult
            As of `search`.

        Raises
        ------
        QueryError, UnknownColumnError, FilterError, DataFileError
            As for `IndexReader.within`.
        """
        options = {"distance": distance, "inclusive": inclusive, "limit": limit, "columns": columns, "where": where}
        return self._answer("within", queries, options)

    def update(self) -> bool:
        """Check now, and return whether a newer reader took over. Raises what opening it raises; the old one stays."""
        with self._updating:
            try:
                newer = self._reopen(self._reader, self._withdraw)
            except Exception as error:
                before = self._last_check[1]
                if isinstance(error, RestrictedTableError) or not isinstance(before, RestrictedTableError):
                    self._withdraw(error)  # else the other stands, until the catalog gives the table again
                raise
            changed = newer is not self._reader
            if changed:
                self._rehearse(newer, self._in_time(time.monotonic() + _REHEARSAL_SECONDS))
            self._reader, self._last_check = newer, (time.time(), None)
            return changed

    def _withdraw(self, error: Exception) -> None:
        """Take what a check has met for its outcome. With a RestrictedTableError nothing is answered any more."""
        self._last_check = self._last_check[0], error

    def _in_time(self, end: float) -> Iterator[Callable[[R], object]]:
        """The last searches, until the clock shows `end` or nobody follows any more."""
        for search in self._recent.all():
            if time.monotonic() >= end or self._closed.is_set():
                return
            yield search

    def close(self) -> None:
        """Stop following. The reader in use can still be searched."""
        self._closed.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"FollowingReader({self._reader!r}, every {self._interval:g} s)"

    def _run(self) -> None:
        while not self._closed.wait(min(self._interval, threading.TIMEOUT_MAX)):
            try:
                self.update()
            except RestrictedTableError as error:
                _log.warning("searching ends: %s", error)  # until the catalog gives the table again
            except Exception as error:
                _log.warning("the newest snapshot could not be opened, searching goes on: %s", error)

    def _answer(self, method: str, queries: npt.ArrayLike | None, options: Mapping[str, Any]) -> SearchResult:
        """The result of a method of the reader, with a warning where the table was not checked lately."""
        result: SearchResult = getattr(self.reader, method)(queries, **options)
        if result.profile.queries == 1:  # to repeat many would take long
            self._recent.add(method, queries, options)
        checked, error = self._last_check
        age = time.time() - checked
        if error is None and age <= _LATE * self._interval:
            return result
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(checked))
        reason = error or "the last check has not ended, or the reader was closed"
        warning = f"the table was not checked for newer snapshots since {since}: {reason}"
        return replace(result, warnings=(*result.warnings, warning))


class RecentSearches(Generic[R]):
    """Searches of one query each, the last one of its columns, group and condition. Thread-safe.

    They are repeated on the next reader: what a reader works out once, as the rows that satisfy a condition, it works
    out in the first search that needs it.
    """

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._searches: OrderedDict[tuple[str, str, str], Callable[[R], object]] = OrderedDict()

    def add(self, method: str, query: Any, options: Mapping[str, Any]) -> None:
        """Remember a call of a reader's method, with one query in any form. One with a condition per query is not."""
        where = options["where"]
        if not (where is None or isinstance(where, str | BooleanExpression)):
            return
        words = options.get("text") is None, options.get("text_columns"), options.get("per_group")
        key = method, repr((options["columns"], *words, query is None)), condition_key(where)
        with self._lock:
            if key in self._searches:
                self._searches.move_to_end(key)
                return
            query_copy = _copied(query)
            self._searches[key] = lambda reader: getattr(reader, method)(query_copy, **options)
            if len(self._searches) > _MAX_KINDS:
                self._searches.popitem(last=False)

    def all(self) -> list[Callable[[R], object]]:
        """One search of each kind, as a function of the reader."""
        with self._lock:
            return list(self._searches.values())


def _copied(query: Any) -> Any:
    """A copy of a query, which its caller may change, or which may be a row of a large array."""
    if query is None:
        return None
    if isinstance(query, BYTES):
        return bytes(query)
    if isinstance(query, list | tuple) and all(isinstance(value, BYTES) for value in query):
        return [bytes(value) for value in query]  # NumPy's strings lose zeros at the end
    if isinstance(query, pa.Array | pa.ChunkedArray):
        return pa.array(query.to_pylist(), query.type)
    return np.array(query)
