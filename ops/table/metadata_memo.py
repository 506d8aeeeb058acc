"""Results that follow from a table's metadata alone, kept as long as that state of the metadata is in use.

Metadata is immutable: a reload makes another object. A table that is written to every eight minutes has 70,000
snapshots after a year, and PyIceberg searches them one by one for each id.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import finalize

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.statistics import PartitionStatisticsFile, StatisticsFile

P = ParamSpec("P")
T = TypeVar("T")

_results: dict[int, dict[object, Any]] = {}
"""Results by the id of the metadata object, and by function and arguments"""


def once_per_metadata(
    function: Callable[Concatenate[TableMetadata, P], T],
) -> Callable[Concatenate[TableMetadata, P], T]:
    """Decorator: the function runs once for a metadata object and arguments. The result is shared, so it is read only.

    The arguments after the metadata are hashable. Of two threads that call at once both may run it; one result stays.
    """

    @wraps(function)
    def from_memo(metadata: TableMetadata, /, *args: P.args, **kwargs: P.kwargs) -> T:
        results = _results_of(metadata)
        key = (function, args, tuple(kwargs.items()))
        if key not in results:
            results.setdefault(key, function(metadata, *args, **kwargs))
        result: T = results[key]
        return result

    return from_memo


def _results_of(metadata: TableMetadata) -> dict[object, Any]:
    """They go with the metadata object, before its id can be another's."""
    results = _results.get(id(metadata))
    if results is None:
        results = _results.setdefault(id(metadata), {})
        finalize(metadata, _results.pop, id(metadata), None).atexit = False
    return results


@once_per_metadata
def snapshots_by_id(metadata: TableMetadata) -> dict[int, Snapshot]:
    """All snapshots by their ids, in the metadata's order."""
    return {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}


@once_per_metadata
def statistics_by_id(metadata: TableMetadata) -> dict[int, StatisticsFile]:
    """Entries of the statistics slots by the ids of their snapshots."""
    return {entry.snapshot_id: entry for entry in reversed(metadata.statistics)}


@once_per_metadata
def partition_statistics_by_id(metadata: TableMetadata) -> dict[int, PartitionStatisticsFile]:
    """Entries of the files of partition statistics by the ids of their snapshots."""
    return {entry.snapshot_id: entry for entry in reversed(metadata.partition_statistics)}
