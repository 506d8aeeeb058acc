"""A version whose shards are searched by tasks.

A search has three steps: (A) every task searches its shards, (B) exact distances are read per data file, (C) the
results are merged. It gives the rows that a search in this process gives. Opening it loads every shard once, where it
will be searched: nodes are counted there as `load_version` counts them here, and damaged shards become known.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from icepuffin.ann_kernels.arrays import F64, I64
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.cache import process_cache
from icepuffin.ops.filters.matches import Matches
from icepuffin.ops.index.versions.version_reader import OpenVersion
from icepuffin.ops.model import MIB, FileNumber, ShardId
from icepuffin.ops.rows.candidates import Candidates, merge_sorted
from icepuffin.ops.search.exact.scan import SkippedRows
from icepuffin.ops.search.indexed.version_search import COMPARED
from icepuffin.ops.search.indexed.worker import (
    FileCandidates,
    SearchJob,
    SearchRequest,
    SearchShare,
    ShardSummary,
    rank_candidates,
    search_share,
    summarize_shards,
)
from icepuffin.ops.search.source_answer import SourceAnswer, work_by_shard
from icepuffin.ops.search.tuning import RecallModel, SearchParameters
from icepuffin.ops.shards.masked_shards import ShardMasker
from icepuffin.ops.shards.shard_keys import shard_keys
from icepuffin.ops.storage import StorageError
from icepuffin.ops.tasks.task_runner import TaskRunner, placed_runner

_RANKED_HERE = 4_096
"""Candidates whose exact distances this process computes itself: a job takes longer"""
_MIN_TASK_QUERIES = 64
"""Queries per task, at least; with fewer, loading a shard outweighs its search"""
_JOB_BYTES = 64 << 20
"""Bytes of queries of a job, at most: Spark refuses a task of more than `spark.rpc.message.maxSize`, 128 MiB"""
_RESULT_BYTES = 256 << 20
"""Bytes of results of a job, at most: Spark ends a job with more than `spark.driver.maxResultSize`, 1 GiB"""
_CANDIDATE_BYTES = 48
"""Bytes of a candidate in a task's result, at most"""


def choose_runner(
    opened: OpenVersion, job: SearchJob, runner: TaskRunner | None, in_process_mb: int
) -> tuple[TaskRunner | None, str]:
    """(the runner whose tasks search a version, the reason). None for versions that are small or in the memory of this
    process, which searches them.
    """
    if runner is None:
        return None, "the index is in memory"
    size = f"the index of {opened.bytes_searched / MIB:,.1f} MiB"
    if opened.bytes_searched <= in_process_mb * MIB:
        return None, f"{size} is not over the threshold of {in_process_mb:,} MiB"
    if all(process_cache().holds(key, job.storage) for key in shard_keys(opened)):
        return None, f"{size} is in this process's memory"
    return runner, f"{size} is over the threshold of {in_process_mb:,} MiB, and not in this process's memory"


class DistributedVersion:
    """All shards of a version, for one snapshot, where tasks run. Immutable, thread-safe."""

    name = "distributed"

    def __init__(
        self,
        job: SearchJob,
        runner: TaskRunner,
        shards: Sequence[ShardSummary],
        covered: frozenset[FileNumber],
    ) -> None:
        if job.opened is None:
            raise ValueError("there is no version to search")
        self.shards = tuple(shards)
        files = slice(None) if job.covered is None else sorted(job.covered)
        self._live_rows = np.array([shard.nodes[files].sum() for shard in shards], np.int64)
        self.job = replace(job, live_rows=self._live_rows)
        self._serialized = self.job.serialize().broadcast(runner, self)
        self.covered = covered
        self.enclosed = covered.difference(*(shard.revived for shard in shards))
        self.metric: Metric = job.metric
        self.search_list = job.opened.definition.search_list
        self.dims = job.opened.routing.dims
        self.recall_model = RecallModel.from_version(job.opened)
        self.index_bytes = sum(stored.length for stored in job.opened.shards)
        self.exact = not any(shard.rounded for shard in shards)
        self.column_is_double = job.column_is_double
        self.lean = not job.opened.definition.holds_vectors
        self.coded = bool(job.opened.definition.code_bits)
        self._runner = runner
        self._placed = placed_runner(runner)
        """A shard is in memory, or on the disk, of the executor that has searched it before"""
        groups = balanced_shards(job.opened, self._placed.parallelism)
        self._shares = [SearchShare(shards=shard_ids) for shard_ids in groups]

    @classmethod
    def open(cls, job: SearchJob, runner: TaskRunner, *, complete: bool) -> "DistributedVersion":
        """Load every shard where tasks run. Raises PuffinError or StorageError for one that cannot be read."""
        if job.opened is None:
            raise ValueError("there is no version to open")
        masker = ShardMasker(job.opened, job.live, job.storage)
        summarize = partial(summarize_shards, replace(job, covered=None).serialize())
        summaries: list[ShardSummary] = []
        placed = placed_runner(runner)
        for result in placed.run(summarize, balanced_shards(job.opened, placed.parallelism), label="open shards"):
            if isinstance(result, str):
                raise StorageError(result)
            summaries += result
        summaries.sort(key=lambda shard: shard.shard_id)
        covered = masker.covered(np.sum([shard.nodes for shard in summaries], axis=0, dtype=np.int64))
        return cls(replace(job, covered=covered if complete else None), runner, summaries, covered)

    def live_rows(self) -> I64:
        """int64[shards]: live nodes of each."""
        return self._live_rows

    def longest_vector(self) -> float:
        """See LoadedVersion; 0 where no answer depends on it."""
        return max((shard.longest for shard in self.shards), default=0.0)

    def search(self, queries: F64, k: int, parameters: SearchParameters, matches: Matches | None) -> SourceAnswer:
        """The same as `search_version`, by tasks; with `matches`, each share takes its own faster way.

        Distances are exact. Only a few candidates of shards that lack exact distances are left for the caller to rank.
        Raises IndexUnavailableError where a task cannot read a shard any more.
        """
        request = SearchRequest(k, parameters, matches)
        width = k if self.exact else k * parameters.oversample
        parts = _parts(queries, width * len(self._shares))
        answer = _stacked_answers([self._merged(queries[rows], request) for rows in parts])
        best = answer.candidates
        if answer.approximate and int((best.files >= 0).sum()) > _RANKED_HERE:
            parts = _parts(queries, best.files.shape[1])
            answer.rows = _stacked([self._ranked(best.of_queries(rows), queries[rows]) for rows in parts])
            answer.unranked, answer.approximate = best, False
        return answer

    def _merged(self, queries: F64, request: SearchRequest) -> SourceAnswer:
        """The answers of all shares, as one. Where there are many queries, tasks divide them, too. Candidates are not
        ranked by the table's vectors.
        """
        tasks_per_share = -(-self._placed.parallelism // len(self._shares))
        blocks = max(1, min(tasks_per_share, len(queries) // _MIN_TASK_QUERIES))
        by_block = self._run(self._placed, queries, self._shares, request, blocks=blocks)
        answers = [_stacked_answers(results) for results in zip(*by_block, strict=True)]
        widths = [answer.candidates.files.shape[1] for answer in answers]
        directions = any(answer.rounded_directions for answer in answers)
        width = sum(widths) if directions else max(widths)
        return together(answers, merge_sorted([answer.candidates for answer in answers], width))

    def scan(
        self, queries: F64, k: int, files: Sequence[FileNumber], matches: Matches | None, skipped: SkippedRows
    ) -> tuple[Candidates, int]:
        """The same as `scan.scan`, by tasks."""
        counts = [self.job.live.files[number].record_count for number in files]
        shares = [
            SearchShare(files=tuple(files[index] for index in group))
            for group in balanced(counts, max(1, self._runner.parallelism))
        ]
        request = SearchRequest(k, None, matches, strict=False)
        nearest: list[Candidates] = []
        for rows in _parts(queries, k * len(shares)):
            results = self._run(self._runner, queries[rows], shares, request, blocks=1)[0]
            nearest.append(merge_sorted([result.candidates for result in results], k))
        for part in filter(None, (result.skipped for result in results)):  # each part reads the same rows
            skipped.add(part.count, part.first)
        return _stacked(nearest), sum(result.scanned for result in results)

    def _run(
        self, runner: TaskRunner, queries: F64, shares: Sequence[SearchShare], request: SearchRequest, *, blocks: int
    ) -> list[list[SourceAnswer]]:
        """One result per share, for each block of queries."""
        tasks = [(block, share) for block in np.array_split(queries, blocks) for share in shares]
        results = runner.run(partial(search_share, self._serialized, request), tasks, label="search shards")
        return [results[start : start + len(shares)] for start in range(0, len(results), len(shares))]

    def _ranked(self, candidates: Candidates, queries: F64) -> Candidates:
        """The candidates by exact distances, computed by tasks that read some data files each."""
        cell = query, _ = np.nonzero(candidates.files >= 0)
        files, positions = candidates.files[cell], candidates.positions[cell]
        numbers, counts = np.unique(files, return_counts=True)
        rows_by_file = [np.flatnonzero(files == number) for number in numbers]
        groups = balanced(counts.tolist(), max(1, self._runner.parallelism))
        tasks = [
            [
                FileCandidates.from_positions(FileNumber(int(numbers[index])), positions[rows], query[rows], queries)
                for index, rows in ((index, rows_by_file[index]) for index in group)
            ]
            for group in groups
        ]
        ranked = self._runner.run(partial(rank_candidates, self._serialized), tasks, label="rank candidates")
        exact = np.full(len(files), np.inf)
        for group, distances in zip(groups, ranked, strict=True):
            for index, file_distances in zip(group, distances, strict=True):
                exact[rows_by_file[index]] = file_distances
        distances_of = np.full(candidates.files.shape, np.inf)
        distances_of[cell] = exact
        return Candidates(candidates.files, candidates.positions, distances_of).ordered(candidates.files.shape[1])


def _parts(queries: F64, candidates: int) -> list[slice]:
    """The queries in parts of about equal size, one per job, whose tasks return so many candidates per query."""
    results = len(queries) * candidates * _CANDIDATE_BYTES
    count = max(1, -(-queries.nbytes // _JOB_BYTES), -(-results // _RESULT_BYTES))
    size = max(1, -(-len(queries) // count))
    return [slice(start, start + size) for start in range(0, max(1, len(queries)), size)]


def balanced(weights: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Indices of the weights in at most `count` groups of about equal weight: the heaviest first, to the lightest."""
    groups: list[list[int]] = [[] for _ in range(min(count, len(weights)))]
    loads = [0] * len(groups)
    for index in sorted(range(len(weights)), key=lambda index: (-weights[index], index)):
        lightest = loads.index(min(loads))
        groups[lightest].append(index)
        loads[lightest] += weights[index]
    return [tuple(sorted(group)) for group in groups]


def balanced_shards(opened: OpenVersion, count: int) -> list[tuple[ShardId, ...]]:
    """The version's shards in at most `count` groups of about equal size."""
    groups = balanced([stored.length for stored in opened.shards], max(1, count))
    return [tuple(ShardId(index) for index in group) for group in groups]


def together(answers: Sequence[SourceAnswer], candidates: Candidates) -> SourceAnswer:
    """The answers for parts of a version, or of the queries, as one: with the candidates of all of them. It is exact
    only if none of them walked a graph.
    """
    return SourceAnswer(
        candidates,
        len(candidates.files),
        next((answer.strategy for answer in answers if answer.strategy != COMPARED), COMPARED),
        work_by_shard([shard for answer in answers for shard in answer.work]),
        approximate=any(answer.approximate for answer in answers),
        rounded_directions=any(answer.rounded_directions for answer in answers),
    )


def _stacked_answers(answers: Sequence[SourceAnswer]) -> SourceAnswer:
    """The answers for one block of queries after those for another."""
    if len(answers) == 1:
        return answers[0]
    return together(answers, _stacked([answer.candidates for answer in answers]))


def _stacked(parts: Sequence[Candidates]) -> Candidates:
    """Candidates of one block of queries after those of another."""
    width = max(part.files.shape[1] for part in parts)
    names = ("files", "positions", "distances")
    return Candidates(*(np.concatenate([getattr(part.padded(width), name) for part in parts]) for name in names))
