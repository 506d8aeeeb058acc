"""Comparing the rows of data files with queries and conditions: in this process, or by tasks where there is much to
read.

Tasks get the numbers of the files that they read, and what rules files out. They return rows and the work of finding
them. No dagster and no pyspark is imported.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from icepuffin.ann_kernels.arrays import F64, I64
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ops.filters.matches import Matches, read_matches
from icepuffin.ops.filters.predicate import RowPredicate
from icepuffin.ops.messages import plural
from icepuffin.ops.model import IN_PROCESS_MB, MIB, FileNumber
from icepuffin.ops.rows.candidates import Hits, merge_sorted
from icepuffin.ops.search.exact.scan import (
    NearestScan,
    RangeThresholds,
    SkippedRows,
    VectorSource,
    hits_within,
    scan_in_reach,
)
from icepuffin.ops.search.indexed.worker import SearchJob, SerializedSearchJob
from icepuffin.ops.table.row_deletes import growing_groups
from icepuffin.ops.tasks.task_runner import TaskRunner
from icepuffin.puffin.blobs import deletion_vector_blob

IN_PROCESS = "in-process"
_VALUE_BYTES = 16
"""Memory of a value that a condition reads, roughly: a number takes half of it, a text may take more"""


@dataclass(frozen=True, slots=True)
class TaskChoice:
    """The runner of tasks that a search may have, and when it has them."""

    runner: TaskRunner | None = None
    in_process_mb: int = IN_PROCESS_MB
    """MiB of values up to which data files are read in this process"""


@dataclass(frozen=True, slots=True, eq=False)
class WithinScan:
    """The rows of some data files that meet thresholds, and the work of finding them."""

    hits: Hits
    compared: int
    """Rows whose vectors were compared"""
    skipped: SkippedRows


@dataclass(frozen=True, slots=True, eq=False)
class FileShare:
    """One task's share of the data files that are read."""

    files: tuple[FileNumber, ...]
    matches: Matches | None
    """Matches in `files`; None without a condition"""
    bounds: F64 | None = None
    """f64[Q, files]: distances that no row of a file is under; None where every file is read"""


@dataclass
class FilesRead:
    """The number of data files that one search has read, by where."""

    here: int = 0
    by_tasks: int = 0
    in_memory: int = 0
    """Files that were not read, as their rows were in memory"""
    rows: int = 0
    """Rows of the files that were read for a range"""

    @property
    def tier(self) -> str:
        """Tier as `Profile.tier` has it: `distributed` where tasks have read a file."""
        return "distributed" if self.by_tasks else IN_PROCESS


class FileScans:
    """Scans of a snapshot's data files for one reader. Immutable, thread-safe.

    Where the vectors of the files that may have to be read are over the threshold, tasks read them.
    """

    def __init__(self, vectors: VectorSource, choice: TaskChoice) -> None:
        self._vectors = vectors
        self._choice = choice

    def groups(self, count: int) -> Iterator[slice]:
        """Parts of `count` files in order, to be scanned one after the other: rows of one part rule out files of the
        next. Tasks do not know each other's rows: with a runner the first part is one file.
        """
        return growing_groups(count) if self._choice.runner is None else growing_groups(count, 1)

    def nearest(
        self,
        queries: F64,
        k: int,
        files: Sequence[FileNumber],
        bounds: F64,
        farthest: F64,
        matches: Matches | None,
        refined: Callable[[F64, FileNumber], F64],
        read: FilesRead,
    ) -> NearestScan:
        """`scan_in_reach`, by tasks without `refined`; `read` counts the files.

        A task starts with the files that are nearest, and knows no row of the others.
        """
        runner = self._runner_for(files, self._vectors.value_bytes * queries.shape[1])
        if runner is None:
            scan = scan_in_reach(queries, k, self._vectors, files, bounds, farthest, matches, refined)
            read.here += len(scan.files)
            return scan
        self._vectors.require_dims(files, queries.shape[1], matches)
        shares = self._shares(runner, files, matches, bounds)
        scans = runner.run(partial(scan_nearest, self._job, queries, k, farthest), shares, label="scan files")
        scan = NearestScan(
            merge_sorted([scan.candidates for scan in scans], k),
            sum(scan.compared for scan in scans),
            tuple(number for scan in scans for number in scan.files),
            SkippedRows.from_parts([scan.skipped for scan in scans]),
        )
        read.by_tasks += len(scan.files)
        return scan

    def within(
        self,
        queries: F64,
        thresholds: RangeThresholds,
        files: Sequence[FileNumber],
        matches: Matches | None,
        limit: int | None,
        read: FilesRead,
    ) -> WithinScan:
        """The rows (that match) of some files that meet the thresholds, as `hits_within` gives them."""
        if not files:
            return WithinScan(Hits.none(), 0, SkippedRows())
        runner = self._runner_for(files, self._vectors.value_bytes * queries.shape[1])
        kept = self._vectors.in_memory(files, matches) if runner is None else ()
        stored = [number for number in files if number not in kept]
        read.rows += self._vectors.live.record_count_of(stored)
        if runner is None:
            read.here += len(stored)
            read.in_memory += len(files) - len(stored)
            return _within(self._vectors, queries, thresholds, files, matches, limit)
        self._vectors.require_dims(files, queries.shape[1], matches)
        read.by_tasks += len(files)
        shares = self._shares(runner, files, matches)
        scans = runner.run(partial(scan_within, self._job, queries, thresholds, limit), shares, label="scan files")
        return WithinScan(
            Hits.ranked([scan.hits for scan in scans], limit),
            sum(scan.compared for scan in scans),
            SkippedRows.from_parts([scan.skipped for scan in scans]),
        )

    def matches(self, predicate: RowPredicate, files: Sequence[FileNumber]) -> tuple[Mapping[FileNumber, I64], str]:
        """`read_matches` of some files, and how they were read. Memory: 8 bytes per match; tasks return bitmaps."""
        source = self._vectors
        runner = self._runner_for(files, _VALUE_BYTES * len(predicate.columns))
        if runner is None:
            return read_matches(source.live, source.schema, predicate, source.storage, files), "by the data files"
        shares = self._shares(runner, files, None)
        bitmaps = runner.run(partial(scan_matches, self._job, predicate), shares, label="evaluate condition")
        positions = {
            number: deletion_vector_blob.decode(bitmap, max_positions=source.live.files[number].record_count)
            for share in bitmaps
            for number, bitmap in share.items()
        }
        return positions, f"by the data files, which {plural(len(shares), 'task')} read"

    def where(self, read: FilesRead) -> str:
        """Where a search has read data files, in words."""
        if self._choice.runner is None:
            in_memory = f", but {read.in_memory:,} whose rows are in memory" if read.in_memory else ""
            return f"the data files in reach are read here{in_memory}"
        threshold = f"tasks take over {self._choice.in_process_mb:,} MiB of vectors"
        return f"data files read by tasks: {read.by_tasks:,}, here: {read.here:,}; {threshold}"

    def _runner_for(self, files: Sequence[FileNumber], row_bytes: int) -> TaskRunner | None:
        """The runner that reads so many bytes per row of these files; None where this process does."""
        rows = self._vectors.live.record_count_of(files)
        return self._choice.runner if row_bytes * rows > self._choice.in_process_mb * MIB else None

    @staticmethod
    def _shares(
        runner: TaskRunner, files: Sequence[FileNumber], matches: Matches | None, bounds: F64 | None = None
    ) -> list[FileShare]:
        """Shares of as many files each. The first of a share, which rule out others, are among the first of all."""
        count = max(1, min(runner.parallelism, len(files)))
        return [
            FileShare(
                tuple(files[first::count]),
                None if matches is None else matches.in_files(files[first::count]),
                None if bounds is None else bounds[:, first::count],
            )
            for first in range(count)
        ]

    @cached_property
    def _job(self) -> SerializedSearchJob:
        source = self._vectors
        return SearchJob(source.live, source.schema, source.field_id, source.metric, source.storage, None).serialize()


def scan_nearest(serialized: SerializedSearchJob, queries: F64, k: int, farthest: F64, share: FileShare) -> NearestScan:
    """Body of a task. `farthest` f64[Q]: distances within which there are k rows in other files."""
    bounds = np.zeros((len(queries), len(share.files))) if share.bounds is None else share.bounds
    source = _source(serialized.worker().job, queries.shape[1])
    return scan_in_reach(queries, k, source, share.files, bounds, farthest, share.matches)


def scan_within(
    serialized: SerializedSearchJob, queries: F64, thresholds: RangeThresholds, limit: int | None, share: FileShare
) -> WithinScan:
    """Body of a task."""
    source = _source(serialized.worker().job, queries.shape[1])
    return _within(source, queries, thresholds, share.files, share.matches, limit)


def scan_matches(serialized: SerializedSearchJob, predicate: RowPredicate, share: FileShare) -> dict[FileNumber, bytes]:
    """Body of a task: positions of matches, framed as a deletion vector, by file number."""
    job = serialized.worker().job
    matches = read_matches(job.live, job.schema, predicate, job.storage, share.files)
    return {number: deletion_vector_blob.encode(positions) for number, positions in matches.items()}


def _within(
    source: VectorSource,
    queries: F64,
    thresholds: RangeThresholds,
    files: Sequence[FileNumber],
    matches: Matches | None,
    limit: int | None,
) -> WithinScan:
    skipped = SkippedRows()
    rows = source.rows(files, queries.shape[1], matches, skipped)
    return WithinScan(*hits_within(queries, thresholds, rows, limit), skipped)


def _source(job: SearchJob, dims: int) -> VectorSource:
    return VectorSource(job.live, job.schema, job.field_id, job.metric, job.storage, dims)
