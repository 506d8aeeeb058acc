"""Sources of an answer's rows: the graphs of an index version, and the data files that no graph answers for.

Which ones a reader has is decided when it is opened. Each gets what is asked, and gives rows and the work of finding
them.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from icepuffin.ann_kernels.arrays import F64
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.filters.matches import Matches
from icepuffin.ops.model import FileNumber
from icepuffin.ops.rows.candidates import Candidates, cut_in_doubt, rerank
from icepuffin.ops.rows.row_reader import Meter, RowReader
from icepuffin.ops.search.exact.scan import SkippedRows, VectorSource
from icepuffin.ops.search.exact.tail_cache import FROM_FILES, TailAccess, TailCache
from icepuffin.ops.search.source_answer import SourceAnswer
from icepuffin.ops.search.target import SearchTarget, VersionChoice
from icepuffin.ops.search.tuning import SearchParameters

_CUT_IN_DOUBT = (
    "candidates were chosen by floats, which cannot tell the rows about as far as the last one apart: nearer ones may "
    "be missing; a larger oversample finds more, within and exact scans find all"
)
_LONGEST_OF_FLOATS = float(np.finfo(np.float32).max)
"""Length that no vector of a version is expected to pass"""

VersionSearch = Callable[[F64, int, SearchParameters, Matches | None], SourceAnswer]
"""Function from queries, k, parameters and matches to the candidates of an index version"""
FileScan = Callable[[F64, int, Sequence[FileNumber], Matches | None, SkippedRows], tuple[Candidates, int]]
"""Function from queries, k, files and matches to (the nearest rows of the files, number of rows compared). It counts
rows without a distance"""


class Source(Protocol):
    """Finds the k nearest rows (that match) of those that it has. `queries` f64[Q, D] prepared. Thread-safe."""

    def nearest(
        self, queries: F64, k: int, matches: Matches | None, parameters: SearchParameters | None
    ) -> SourceAnswer:
        """`parameters`: None where no graph is searched. Raises IndexUnavailableError, DataFileError."""


class IndexSource:
    """Rows that an index version covers, by its graphs: in this process, or where tasks run."""

    def __init__(self, target: SearchTarget, choice: VersionChoice, search: VersionSearch, rows: RowReader) -> None:
        self._target = target
        self._version = choice.graphs
        self._rows = rows
        self._search = search
        opened, graphs = choice.opened, choice.graphs
        self._holds_floats_of_doubles = bool(
            opened and graphs and graphs.column_is_double and opened.definition.vectors == "f32"
        )
        """Whether the version has the vectors of a column of doubles, rounded to f32 and no further"""

    def nearest(
        self, queries: F64, k: int, matches: Matches | None, parameters: SearchParameters | None
    ) -> SourceAnswer:
        """See Source. Candidates are ranked by the table's vectors where the parameters demand it."""
        if parameters is None:
            raise ValueError("a version is searched with parameters")
        answer, meter, metric = self._search(queries, k, parameters, matches), Meter(), self._target.metric
        candidates, unranked = answer.candidates, answer.unranked
        if answer.approximate and parameters.rerank:
            unranked = candidates
            candidates = rerank(candidates, queries, self._rows, self._target.field_id, metric, meter)
        if (
            self._holds_floats_of_doubles
            and unranked is not None
            and cut_in_doubt(unranked, candidates, queries, k, metric, self._longest_vector)
        ):
            answer.warnings = (_CUT_IN_DOUBT,)
        answer.rows = candidates if answer.rounded_directions else candidates.first(k)
        answer.bytes_read = meter.bytes + (answer.cold.bytes if answer.cold else 0)
        answer.condition = "" if matches is None else matches.how
        answer.parameters = parameters
        return answer

    @cached_property
    def _longest_vector(self) -> float:
        """The length of the longest vector of the version, where rounding is judged by it: under inner product."""
        if self._version is None or self._target.metric is not Metric.INNER_PRODUCT:
            return 0.0
        # that of a hidden row must not tell
        return _LONGEST_OF_FLOATS if self._target.hides_rows else self._version.longest_vector()


class TailSource:
    """Rows of data files that no shard answers for: in memory, or scanned. `memory`: None where none is kept."""

    def __init__(
        self, vectors: VectorSource, files: Sequence[FileNumber], scan: FileScan, memory: TailCache | None
    ) -> None:
        self._files = files
        self._scan = scan
        self._memory = memory
        self._value_bytes = vectors.value_bytes

    def nearest(
        self, queries: F64, k: int, matches: Matches | None, parameters: SearchParameters | None
    ) -> SourceAnswer:
        """See Source."""
        memory = self._memory
        access = TailAccess(None, FROM_FILES) if memory is None else memory.rows(matches, self._files)
        if access.rows is None:
            skipped = SkippedRows()
            candidates, compared = self._scan(queries, k, self._files, matches, skipped)
            read = compared
        else:
            skipped = access.rows.skipped
            candidates, compared = access.rows.nearest(queries, k, matches)
            read = access.rows.count if access.was_read else 0
        return SourceAnswer(
            candidates,
            len(queries),
            "scan",
            scanned=compared,
            bytes_read=self._value_bytes * read * queries.shape[1],
            condition="" if matches is None else matches.how,
            tail=access.how if self._files else "",
            warnings=skipped.warnings,
        )
