"""Where an index is searched: in this process, or by tasks (`icepuffin.ops.search.indexed.distributed_search`)."""

from collections.abc import Sequence
from typing import Protocol

from icepuffin.ann_kernels.arrays import F64
from icepuffin.ops.filters.matches import Matches
from icepuffin.ops.model import FileNumber
from icepuffin.ops.rows.candidates import Candidates
from icepuffin.ops.search.exact.scan import SkippedRows, VectorSource, scan
from icepuffin.ops.search.indexed.loaded_version import LoadedVersion
from icepuffin.ops.search.indexed.version_search import IndexAnswer, search_version
from icepuffin.ops.search.tuning import SearchParameters


class Tier(Protocol):
    """Finds the k nearest rows of one snapshot. `queries` f64[Q, D] prepared. Immutable, thread-safe."""

    name: str

    def search(self, queries: F64, k: int, parameters: SearchParameters, matches: Matches | None) -> IndexAnswer:
        """Among the rows (that match) that the version covers."""

    def scan(
        self, queries: F64, k: int, files: Sequence[FileNumber], matches: Matches | None, skipped: SkippedRows
    ) -> tuple[Candidates, int]:
        """(candidates among the rows (that match) of some live files, by comparing each; number of rows compared).

        Rows without a distance are counted in `skipped`.
        """


class InProcessTier:
    """The tier of this process. Without a version it can only scan."""

    name = "in-process"

    def __init__(self, version: LoadedVersion | None, vectors: VectorSource, threads: int) -> None:
        self._version = version
        self._vectors = vectors
        self._threads = threads

    def search(self, queries: F64, k: int, parameters: SearchParameters, matches: Matches | None) -> IndexAnswer:
        """See Tier."""
        if self._version is None:
            raise ValueError("there is no version to search")
        return search_version(self._version, queries, k, parameters, matches, threads=self._threads)

    def scan(
        self, queries: F64, k: int, files: Sequence[FileNumber], matches: Matches | None, skipped: SkippedRows
    ) -> tuple[Candidates, int]:
        """See Tier."""
        return scan(queries, k, self._vectors, files, matches=matches, skipped=skipped)
