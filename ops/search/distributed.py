"""A version whose shards are searched by tasks: A every task some shards, B exact distances by data file, C a merge.

It is a `Tier`, and gives the rows that the one in this process gives. Opening it loads every shard once, where
it will be searched: nodes are counted there as `loaded.load` counts them here, and damaged shards are known.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.cache import ShardKey, process_cache
from icepuffin.ops.index.version_reader import OpenVersion
from icepuffin.ops.search.candidates import Candidates
from icepuffin.ops.search.filtered import strategy_of
from icepuffin.ops.search.matches import Matches
from icepuffin.ops.search.parts import PartReader
from icepuffin.ops.search.scan import SkippedRows
from icepuffin.ops.search.shards import IndexAnswer, ShardWork
from icepuffin.ops.search.tuning import RecallModel, SearchParameters
from icepuffin.ops.search.worker import (
    FileCandidates,
    PackedSearchJob,
    SearchJob,
    SearchRequest,
    ShardSummary,
    ShareResult,
    WorkShare,
    merge_sorted,
)
from icepuffin.ops.storage import StorageError
from icepuffin.ops.tasks.runner import TaskRunner

IN_PROCESS_MB = 100
"""Index files up to this size are searched in this process"""
_MB = 1 << 20
_RANKED_HERE = 4_096
"""Candidates whose exact distances this process computes itself: a job takes longer"""
_QUERIES_A_TASK = 64
"""At least; with fewer, loading a shard outweighs its search"""


@dataclass(frozen=True, slots=True)
class TierChoice:
    """Whether tasks are to search a version, and why."""

    remote: bool
    text: str


def choose_tier(opened: OpenVersion, pin: SearchJob, runner: TaskRunner | None, in_process_mb: int) -> TierChoice:
    """In this process what is small or in its memory already, and all where there is no runner."""
    if runner is None:
        return TierChoice(remote=False, text="the index is in memory")
    size = f"the index of {opened.file_size / _MB:,.1f} MB"
    if opened.file_size <= in_process_mb * _MB:
        return TierChoice(remote=False, text=f"{size} is not over the threshold of {in_process_mb:,} MB")
    version = opened.version.index_snapshot_id
    shards = zip(opened.shards, opened.routing.shards, strict=True)
    keys = (ShardKey(where, entry.sha256, version) for where, entry in shards)
    if all(process_cache().holds(key, pin.storage) for key in keys):
        return TierChoice(remote=False, text=f"{size} is in this process's memory")
    return TierChoice(
        remote=True, text=f"{size} is over the threshold of {in_process_mb:,} MB, and not in this process's memory"
    )


class DistributedVersion:
    """All shards of a version, for one snapshot, where tasks run. Immutable, thread-safe."""

    name = "distributed"

    def __init__(
        self, pin: SearchJob, runner: TaskRunner, shards: Sequence[ShardSummary], covered: frozenset[int]
    ) -> None:
        if pin.opened is None:
            raise ValueError("there is no version to search")
        self.pin = pin
        self.packed = pin.pack()
        self.shards = tuple(shards)
        self.covered = covered
        self.balled = covered - frozenset[int]().union(*(shard.revived for shard in shards))
        self.metric: Metric = pin.metric
        self.search_list = pin.opened.definition.search_list
        self.dims = pin.opened.routing.dims
        self.recall_model = RecallModel.of(pin.opened)
        self.index_bytes = sum(part.length for part in pin.opened.shards)
        self.exact = not any(shard.rounded for shard in shards)
        self.column_is_double = pin.column_is_double
        self.lean = pin.opened.definition.vectors == "none"
        self._runner = runner
        lengths = [part.length for part in pin.opened.shards]
        self._groups = [WorkShare(shards=numbers) for numbers in balanced(lengths, max(1, runner.parallelism))]

    @classmethod
    def open(cls, pin: SearchJob, runner: TaskRunner, *, complete: bool) -> "DistributedVersion":
        """Load every shard where tasks run. Raises PuffinError or StorageError for one that cannot be read."""
        if pin.opened is None:
            raise ValueError("there is no version to open")
        reader = PartReader(pin.opened, pin.live, pin.storage)
        groups = balanced([part.length for part in pin.opened.shards], max(1, runner.parallelism))
        look = partial(_look_at, replace(pin, covered=None).pack())
        facts: list[ShardSummary] = []
        for found in runner.run(look, groups, label="open shards"):
            if isinstance(found, str):
                raise StorageError(found)
            facts += found
        facts.sort(key=lambda shard: shard.number)
        covered = reader.covered(np.sum([shard.nodes for shard in facts], axis=0, dtype=np.int64))
        return cls(replace(pin, covered=covered if complete else None), runner, facts, covered)

    def search(
        self, queries: npt.NDArray[np.float64], k: int, knobs: SearchParameters, matches: Matches | None
    ) -> IndexAnswer:
        """As `search_version`, where with `matches` each group goes the way that its own share of them makes cheaper.

        Distances are exact, but for few candidates of shards that do not have them: those are left to the caller.
        Raises IndexUnavailableError where a task cannot read a shard any more.
        """
        found = self._find(queries, self._groups, SearchRequest(k, knobs, matches))
        parts = [item.indexed for item in found if item.indexed is not None]
        widths = [part.candidates.files.shape[1] for part in parts]
        rounded_directions = any(part.rounded_directions for part in parts)
        wide = sum(widths) if rounded_directions else max(widths, default=k)
        best = merge_sorted([part.candidates for part in parts], wide)
        approximate = any(part.approximate for part in parts)
        if approximate and int((best.files >= 0).sum()) > _RANKED_HERE:
            best, approximate = self._ranked(best, queries), False
        return IndexAnswer(
            best,
            strategy_of(parts),
            approximate=approximate,
            rounded_directions=rounded_directions,
            work=_added([item for part in parts for item in part.work]),
        )

    def scan(
        self,
        queries: npt.NDArray[np.float64],
        k: int,
        files: Sequence[int],
        matches: Matches | None,
        skipped: SkippedRows,
    ) -> tuple[Candidates, int]:
        """As `scan.scan`, by tasks."""
        counts = [self.pin.live.files[number].record_count for number in files]
        groups = [
            WorkShare(files=tuple(files[at] for at in places))
            for places in balanced(counts, max(1, self._runner.parallelism))
        ]
        found = self._run(queries, groups, SearchRequest(k, None, matches, strict=False), blocks=1)[0]
        for item in found:
            skipped.add(item.skipped.count, item.skipped.first)
        return merge_sorted([item.scanned for item in found], k), sum(item.rows for item in found)

    def _find(
        self, queries: npt.NDArray[np.float64], groups: Sequence[WorkShare], ask: SearchRequest
    ) -> list[ShareResult]:
        """One `ShareResult` a group, of all queries; many queries are dealt out, too."""
        spare = -(-self._runner.parallelism // len(groups))
        blocks = self._run(queries, groups, ask, blocks=max(1, min(spare, len(queries) // _QUERIES_A_TASK)))
        return blocks[0] if len(blocks) == 1 else [_joined(items) for items in zip(*blocks, strict=True)]

    def _run(
        self, queries: npt.NDArray[np.float64], groups: Sequence[WorkShare], ask: SearchRequest, *, blocks: int
    ) -> list[list[ShareResult]]:
        parts = np.array_split(queries, blocks)
        tasks = [(part, group) for part in parts for group in groups]
        found = self._runner.run(partial(_find, self.packed, ask), tasks, label="search shards")
        return [found[at : at + len(groups)] for at in range(0, len(found), len(groups))]

    def _ranked(self, found: Candidates, queries: npt.NDArray[np.float64]) -> Candidates:
        """Exact distances for candidates, one task for some data files."""
        places = np.nonzero(found.files >= 0)
        files, positions = found.files[places], found.positions[places]
        numbers, counts = np.unique(files, return_counts=True)
        groups = balanced(counts.tolist(), max(1, self._runner.parallelism))
        tasks, targets = [], []
        for group in groups:
            target = [np.flatnonzero(files == numbers[at]) for at in group]
            tasks.append(
                [
                    file_candidates(int(numbers[at]), positions[mine], places[0][mine], queries)
                    for at, mine in zip(group, target, strict=True)
                ]
            )
            targets.append(target)
        exact = np.full(len(files), np.inf)
        ranked = self._runner.run(partial(_rank, self.packed), tasks, label="rank candidates")
        for target, distances in zip(targets, ranked, strict=True):
            for mine, near in zip(target, distances, strict=True):
                exact[mine] = near
        distances_of = np.full(found.files.shape, np.inf)
        distances_of[places] = exact
        return Candidates(found.files, found.positions, distances_of).ordered(found.files.shape[1])


def balanced(weights: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Places of the weights in at most `count` groups of about the same weight: the heaviest first, to the lightest."""
    groups: list[list[int]] = [[] for _ in range(min(count, len(weights)))]
    loads = [0] * len(groups)
    for place in sorted(range(len(weights)), key=lambda at: (-weights[at], at)):
        lightest = loads.index(min(loads))
        groups[lightest].append(place)
        loads[lightest] += weights[place]
    return [tuple(sorted(group)) for group in groups]


def file_candidates(
    file: int, positions: npt.NDArray[np.int64], asked: npt.NDArray[np.int64], queries: npt.NDArray[np.float64]
) -> FileCandidates:
    """With the vectors of just the queries that have a candidate there."""
    mine, places = np.unique(asked, return_inverse=True)
    return FileCandidates(file, positions, places.astype(np.int64), queries[mine])


def _look_at(packed: PackedSearchJob, numbers: tuple[int, ...]) -> list[ShardSummary] | str:
    """Body of a task. A store that does not answer is told, not raised: another version may serve."""
    worker = packed.worker()
    try:
        return [worker.facts(number) for number in numbers]
    except StorageError as error:
        return str(error)


def _find(packed: PackedSearchJob, ask: SearchRequest, task: tuple[npt.NDArray[np.float64], WorkShare]) -> ShareResult:
    """Body of a task."""
    return packed.worker().find(*task, ask)


def _rank(packed: PackedSearchJob, task: Sequence[FileCandidates]) -> list[npt.NDArray[np.float64]]:
    """Body of a task."""
    worker = packed.worker()
    return [worker.rank(item) for item in task]


def _joined(items: Sequence[ShareResult]) -> ShareResult:
    """What one group found for blocks of queries, as for all of them."""
    scanned = stacked([item.scanned for item in items])
    parts = [item.indexed for item in items if item.indexed is not None]
    if not parts:
        return replace(items[0], scanned=scanned, rows=sum(item.rows for item in items))
    indexed = replace(
        parts[0],
        candidates=stacked([part.candidates for part in parts]),
        rounded_directions=any(part.rounded_directions for part in parts),
        work=_added([item for part in parts for item in part.work]),
    )
    return replace(items[0], indexed=indexed, scanned=scanned, rows=sum(item.rows for item in items))


def stacked(parts: Sequence[Candidates]) -> Candidates:
    """Those of one block of queries after those of another."""
    wide = max(part.files.shape[1] for part in parts)
    names = ("files", "positions", "distances")
    return Candidates(*(np.concatenate([getattr(part.padded(wide), name) for part in parts]) for name in names))


def _added(work: Sequence[ShardWork]) -> tuple[ShardWork, ...]:
    """By shard, over blocks of queries."""
    whole: dict[int, ShardWork] = {}
    for item in work:
        one = whole.get(item.shard)
        whole[item.shard] = item if one is None else ShardWork(
            item.shard, item.nodes, one.queries + item.queries, one.expanded + item.expanded,
            one.distances + item.distances,
        )  # fmt: skip
    return tuple(whole[number] for number in sorted(whole))
