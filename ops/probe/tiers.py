"""Where an index is searched: in this process (here), or by tasks (`icepuffin.ops.probe.distributed`)."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from icepuffin.ops.probe.candidates import Candidates
from icepuffin.ops.probe.filtered import search_version
from icepuffin.ops.probe.filters import Matches
from icepuffin.ops.probe.knobs import Knobs
from icepuffin.ops.probe.loaded import Indexed, LoadedVersion
from icepuffin.ops.probe.scan import Skipped, VectorSource, scan


class Tier(Protocol):
    """Finds the k nearest rows of one snapshot. `queries` f64[Q, D] prepared. Immutable, thread-safe."""

    name: str

    def search(self, queries: npt.NDArray[np.float64], k: int, knobs: Knobs, matches: Matches | None) -> Indexed:
        """Among those (that match) that the version covers."""

    def scan(
        self,
        queries: npt.NDArray[np.float64],
        k: int,
        files: Sequence[int],
        matches: Matches | None,
        skipped: Skipped,
    ) -> tuple[Candidates, int]:
        """Among those (that match) of some live files, by comparing each; -> (candidates, rows compared).

        Rows without a distance are told to `skipped`.
        """


class InProcess:
    """The tier of this process. Without a version it can only scan."""

    name = "in-process"

    def __init__(self, version: LoadedVersion | None, vectors: VectorSource, threads: int) -> None:
        self._version = version
        self._vectors = vectors
        self._threads = threads

    def search(self, queries: npt.NDArray[np.float64], k: int, knobs: Knobs, matches: Matches | None) -> Indexed:
        """See Tier."""
        if self._version is None:
            raise ValueError("there is no version to search")
        return search_version(self._version, queries, k, knobs, matches, threads=self._threads)

    def scan(
        self,
        queries: npt.NDArray[np.float64],
        k: int,
        files: Sequence[int],
        matches: Matches | None,
        skipped: Skipped,
    ) -> tuple[Candidates, int]:
        """See Tier."""
        return scan(queries, k, self._vectors, files, matches=matches, skipped=skipped)
