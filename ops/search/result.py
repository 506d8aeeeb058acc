"""What a search answers: rows, and how they were found."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icepuffin.ops.messages import plural, readable_share
from icepuffin.ops.model import ShardId, SnapshotId
from icepuffin.ops.presentation import SHOWN_ROWS, Grid, Presentation
from icepuffin.ops.process.stage_clock import StageClock
from icepuffin.ops.recall.curves import Foresight
from icepuffin.ops.search.indexed.cold_shards import ColdReads
from icepuffin.ops.search.measured.live_recall import LiveRecall
from icepuffin.ops.search.tuning import SearchParameters

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

_WRAPPED = TextWrapper(100, subsequent_indent=" " * 11, break_long_words=False, break_on_hyphens=False)
_SHOWN_SHARDS = 8
"""Shards that an explanation names, so that it fits on one screen"""


class Coverage(StrEnum):
    """How an answer covers the snapshot that is searched."""

    EXACT_VERSION = "exact-version"
    """The snapshot's own index version."""
    NEAREST_VERSION_AND_TAIL = "nearest-version+tail"
    """Another snapshot's version, rows that are gone masked, rows that it lacks scanned exactly: complete."""
    NEAREST_VERSION_ONLY = "nearest-version-only"
    """Another snapshot's version, rows that are gone masked; rows that it lacks are MISSING."""
    EXACT_SCAN = "exact-scan"
    """No index: every row was compared."""


class StalePolicy(StrEnum):
    """Source of the answer where the snapshot has no index version of its own."""

    COMPLETE = "complete"
    """Nearest version and an exact scan of what it lacks."""
    EXACT = "exact"
    """A scan of every row."""
    NEAREST_ONLY = "nearest-only"
    """Nearest version alone; the result says that rows may be missing."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class ShardWork:
    """Work of one shard for a search."""

    shard_id: ShardId
    nodes: int
    queries: int
    """Queries that probed the shard"""
    expanded: int
    """Nodes whose neighbours were visited"""
    distances: int
    """Distances computed"""


@dataclass(frozen=True, slots=True)
class Pruning:
    """Files and rows that a range search did not have to read."""

    files: int
    """Live files of the snapshot"""
    files_pruned: int
    rows: int
    """Rows in the live files, deleted ones included"""
    rows_pruned: int
    why: str
    """Means by which files were pruned, or the reason why they were not"""

    @classmethod
    def sum_of(cls, parts: Sequence["Pruning"]) -> "Pruning":
        """The savings of several searches, by the same means."""
        return cls(
            sum(part.files for part in parts),
            sum(part.files_pruned for part in parts),
            sum(part.rows for part in parts),
            sum(part.rows_pruned for part in parts),
            parts[0].why,
        )

    @property
    def share(self) -> float:
        """Share of the rows that was pruned; 0 where there are none."""
        return self.rows_pruned / self.rows if self.rows else 0.0


@dataclass(frozen=True, slots=True)
class Certificate:
    """Proof that a certified search has the nearest rows: per query, `last` is not over `pruned_from`.

    Every live row of the files that were not pruned was compared exactly.
    """

    last: tuple[float, ...]
    """Distance of each query's last row; inf where it has fewer rows than k, and than the snapshot's data files"""
    pruned_from: tuple[float, ...]
    """Distance that no row of the pruned files is under, per query; inf where no file was pruned"""
    ruled_out: Mapping[str, float] = field(default_factory=dict)
    """Margin by which each pruned file was ruled out, by its path: all of its rows are farther than the last row by
    that much at least, for the query for which it is least
    """


@dataclass(frozen=True, slots=True)
class SearchCosts:
    """Time and bytes of one search, which counts them while it runs. Its profile has these very mappings."""

    clock: StageClock = field(default_factory=StageClock)
    milliseconds: dict[str, float] = field(default_factory=dict)
    bytes_read: dict[str, int] = field(default_factory=dict)
    included_rows: dict[str, int] = field(default_factory=dict)

    def add_bytes(self, **stages: int) -> None:
        """Count bytes that stages have read."""
        for stage, read in stages.items():
            self.bytes_read[stage] = self.bytes_read.get(stage, 0) + read


@dataclass(frozen=True, slots=True)
class Profile:
    """Path and cost of one search."""

    why: str
    """Reason for the path that was taken, in words"""
    strategy: str
    """`beam`, `cells` (of shards that the process does not have; `cells, beam` where it has others), `scan` (no index),
    `filtered beam` or `exact over matches` (condition), `threshold` (range search),
    `pruned scan` (an index without graphs); of a certified search with ` + certified`. Queries with conditions of
    their own, or a limit per group, may take several: each then has the number of its queries, such as `exact over
    matches (9 queries), beam (1 queries)`
    """
    shards: int
    nodes_expanded: int
    distances: int
    tail_rows: int
    """Rows of the freshness tail that were compared"""
    milliseconds: Mapping[str, float]
    """Milliseconds, by stage"""
    matching_rows: int | None = None
    """Live rows that satisfy the condition, or the sum over the queries that have conditions of their own; None without
    a condition. With `nearest-only`, those of files that the version lacks do not count"""
    condition: str = ""
    """How the condition was evaluated, in words; empty without one"""
    tail: str = ""
    """Location of the freshness tail, data files or memory, in words; empty without one"""
    pruning: Pruning | None = None
    """Savings of a range search or a certified one, summed over the conditions of one with several; None of other
    searches"""
    certificate: Certificate | None = None
    """Proof of a certified search; None of other searches, and where every row was compared"""
    parameters: SearchParameters | None = None
    """Search parameters that were used; None where no index was searched"""
    work: tuple[ShardWork, ...] = ()
    """Work of each shard that was searched as a whole"""
    cold: ColdReads | None = None
    """What was read of shards that this process does not have, and whose cells were searched; None without such"""
    queries: int = 1
    """Queries that were answered together"""
    live_recall: LiveRecall | None = None
    """Recall of the live queries of this version before this search; None where the reader does not measure it"""
    tier: str = "in-process"
    """Tier of the search: `in-process` or `distributed`"""
    tier_why: str = ""
    """Reason for this tier, in words"""
    bytes_read: Mapping[str, int] = field(default_factory=dict)
    """Bytes that this search alone has read, by stage: stored bytes of row groups, and of scans those of the vectors
    that were compared; under `included` those of the index that rows of the answer were read from"""
    included_rows: Mapping[str, int] = field(default_factory=dict)
    """Rows of the answer, each counted once, whose values the index version stores, by column: no data file was read
    for them"""
    withheld: bool = False
    """Whether costs and bounds are left out, since rows that the catalog hides have a part in them: numbers are 0"""


@dataclass(frozen=True, slots=True)
class OpeningCost:
    """Cost of opening a reader, paid once."""

    milliseconds: float
    index_bytes: int
    """Stored bytes of the shards that were loaded, whether read or found in the cache; those that searches of a large
    index load later do not count"""


@dataclass(frozen=True, slots=True, repr=False)
class SearchResult(Presentation):
    """The rows that were found, and how. Made by `IndexReader.search` and `IndexReader.within`.

    `len`, iteration (one dictionary per row), `to_pandas` and `to_polars` give the rows; `rows` is the Arrow table.

    `snapshot_id` is the data snapshot that was searched. `index_snapshot_id` is the index snapshot whose version
    answered, and `base_snapshot_id` the data snapshot that this version was made for; both are None without an index.
    `coverage`, `warnings`, `profile` and `opening` say how complete the answer is, what path it took, and what it cost.

    Examples
    --------
    >>> result = reader.search(query, k=3, columns=["name"])
    >>> len(result)
    3
    >>> [row["rank"] for row in result]
    [1, 2, 3]
    >>> result.coverage
    <Coverage.EXACT_VERSION: 'exact-version'>
    """

    rows: pa.Table
    """query int32, rank int32 (1 = nearest), distance double, then the columns; by query, then rank"""
    coverage: Coverage
    snapshot_id: SnapshotId
    """The data snapshot that was searched"""
    index_snapshot_id: SnapshotId | None
    """Id of the index snapshot whose version was searched; None without one"""
    base_snapshot_id: SnapshotId | None
    """The data snapshot that this version was made for; None without one"""
    profile: Profile
    warnings: tuple[str, ...] = field(default=())
    opening: OpeningCost | None = None
    """Cost of opening the reader; None where nothing was opened, or the catalog hides rows"""

    def __len__(self) -> int:
        """Rows, of all queries together."""
        return int(self.rows.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """One dictionary per row: query, rank, distance, then the columns."""
        for batch in self.rows.to_batches():
            yield from batch.to_pylist()

    def to_pandas(self) -> "pd.DataFrame":
        """pandas.DataFrame: one line per row. Raises ModuleNotFoundError where pandas is not installed."""
        return self.rows.to_pandas()

    def to_polars(self) -> "pl.DataFrame":
        """polars.DataFrame: one line per row. Raises ModuleNotFoundError where polars is not installed."""
        import polars as pl  # noqa: PLC0415  not everybody has it

        return pl.DataFrame(self.rows)

    def headline(self) -> str:
        queries = len(self.rows["query"].unique())
        rows = plural(len(self), "row") + (f" of {queries:,} queries" if queries > 1 else "")
        warned = "".join(f", warning: {warning}" for warning in self.warnings)
        return f"{rows}, snapshot {self.snapshot_id}, {self.coverage}{warned}"

    def grids(self) -> Iterator[Grid]:
        """The first rows."""
        yield row_grid(self, "", SHOWN_ROWS)

    def explain(self) -> str:
        """How this answer came about, as text: path, search parameters, shards, stages, bytes. A line has at most 100
        letters, but where a word is longer.
        """
        lines = (f"{name:<10} {text}" for name, text in explain(self))
        return "\n".join(map(_WRAPPED.fill, lines))


def row_grid(result: SearchResult, title: str, limit: int | None = None) -> Grid:
    """The rows of an answer, or the first `limit`, without the number of the query where there is one query."""
    numbers = result.rows["query"]
    several = len(numbers) > 0 and numbers[-1].as_py() > 0
    return Grid.of_rows(title, result.rows if several else result.rows.drop_columns(["query"]), limit)


def explain(result: SearchResult) -> Iterator[tuple[str, str]]:
    """(part, text) of what happened, in the order in which it happened."""
    profile = result.profile
    yield "answer", f"snapshot {result.snapshot_id}, {result.coverage}: {profile.why}"
    yield "tier", f"{profile.tier}: {profile.tier_why}" if profile.tier_why else profile.tier
    if result.index_snapshot_id is not None:
        yield "version", f"index snapshot {result.index_snapshot_id}, made for {result.base_snapshot_id}"
    if (opening := result.opening) is not None:
        yield "opened", f"{opening.index_bytes:,} bytes of shards in {opening.milliseconds:,.1f} ms, once"
    strategy = (
        profile.strategy if profile.matching_rows is None else f"{profile.strategy}, {_matching(profile.matching_rows)}"
    )
    yield "strategy", strategy
    if profile.withheld:
        yield (
            "total",
            f"{sum(profile.milliseconds.values()):,.2f} ms; hidden rows have a part in other costs",
        )
        yield from (("warning", warning) for warning in result.warnings)
        return
    if profile.condition:
        yield "condition", profile.condition
    if (pruning := profile.pruning) is not None:
        files = f"{pruning.files_pruned:,} of {pruning.files:,} files"
        yield "pruning", f"{files} and {readable_share(pruning.share)} of the rows out of reach; {pruning.why}"
    if (certificate := profile.certificate) is not None:
        yield "certified", _proof(certificate, "row" if profile.matching_rows is None else "matching row")
    if (cold := profile.cold) is not None:
        yield "cells", _cells(cold)
    if (parameters := profile.parameters) is not None and profile.nodes_expanded:
        widths = f"L = {parameters.search_list}, oversample = {parameters.oversample}, {_probed_shards(parameters)}"
        yield "parameters", f"{widths}; {parameters.why}"
        yield from _foreseen_and_happened(profile, parameters)
    yield from _shards(profile.work)
    yield from _compared(profile)
    for stage, milliseconds in profile.milliseconds.items():
        read = profile.bytes_read.get(stage, 0)
        yield stage, f"{milliseconds:,.2f} ms" + (f", {read:,} bytes" if read else "")
    if profile.included_rows:
        columns = ", ".join(f"{name} of {plural(rows, 'row')}" for name, rows in profile.included_rows.items())
        of_index, of_files = profile.bytes_read.get("included", 0), profile.bytes_read.get("rows", 0)
        others = f", and {of_files:,} of data files for the others" if of_files else ""
        yield "included", f"{columns}: {of_index:,} bytes of the index{others}"
    yield "total", f"{sum(profile.milliseconds.values()):,.2f} ms, {sum(profile.bytes_read.values()):,} bytes"
    for warning in result.warnings:
        yield "warning", warning


def _shards(work: Sequence[ShardWork]) -> Iterator[tuple[str, str]]:
    """The work of each shard; where there are many, of those with most of it, and of all others together."""
    by_work = sorted(work, key=lambda shard: (-shard.distances, shard.shard_id))
    shown = {shard.shard_id for shard in by_work[:_SHOWN_SHARDS]}
    for shard in work:
        if shard.shard_id in shown:
            visited = f"{shard.expanded:,} of {shard.nodes:,} nodes visited, " if shard.expanded else ""
            queries = f", {shard.queries:,} queries" if shard.queries > 1 else ""
            yield f"shard {shard.shard_id}", f"{visited}{shard.distances:,} distances{queries}"
    if others := by_work[_SHOWN_SHARDS:]:
        expanded, nodes = sum(shard.expanded for shard in others), sum(shard.nodes for shard in others)
        visited = f"{expanded:,} of {nodes:,} nodes visited, " if expanded else ""
        distances = sum(shard.distances for shard in others)
        yield "shards", f"{len(others):,} others: {visited}{distances:,} distances"


def _matching(rows: int) -> str:
    return "1 row matches" if rows == 1 else f"{rows:,} rows match"


def _cells(cold: ColdReads) -> str:
    """What was read of shards that are not in the cache, in words."""
    more = f", {cold.left_out:,} farther ones were left out" if cold.left_out else ""
    read = f"{cold.bytes:,} bytes by {plural(cold.requests, 'request')} in {plural(cold.rounds, 'round')}"
    return (
        f"{cold.cells:,} of {cold.shards:,} shards that this process does not have{more}: {read}; recall "
        f"{cold.recall:.4f} was measured through them when they were written"
    )


def _compared(profile: Profile) -> Iterator[tuple[str, str]]:
    """Distances, and where rows that the index lacks were."""
    if "compare" in profile.milliseconds:  # for a range or a proof, rows are compared wherever they lie
        yield (
            "distances",
            f"{profile.distances:,}, those of {plural(profile.tail_rows, 'row')} beside the index among them",
        )
    else:
        yield "distances", f"{profile.distances:,} in the index, {plural(profile.tail_rows, 'row')} scanned beside it"
    if profile.tail:
        yield "tail", profile.tail


def _foreseen_and_happened(profile: Profile, parameters: SearchParameters) -> Iterator[tuple[str, str]]:
    """Recall and cost per query, as they were foreseen, and as they were."""
    foreseen, live = parameters.foreseen, profile.live_recall
    if foreseen is None:
        yield "foreseen", f"nothing: {parameters.unforeseen}"
    else:
        low = f" on average, {foreseen.low}" if foreseen.low else ""
        yield "foreseen", f"recall {foreseen.recall:.4f}{low}{_cost(foreseen)}, by {foreseen.source}"
    queries = max(1, profile.queries)
    distances, shards = profile.distances / queries, sum(shard.queries for shard in profile.work) / queries
    measured = f"{distances:,.0f} distances in {_shard_count(shards)} per query"
    if foreseen is not None and foreseen.distances and not foreseen.shards_without_curve:
        measured += f", {distances / foreseen.distances:.0%} of the foreseen"
    if live is not None and live.recall is not None:
        measured += f"; live recall {live.recall:.4f} ({live.low:.4f} to {live.high:.4f}), {live.queries:,} measured"
    yield "happened", measured


def _cost(foreseen: Foresight) -> str:
    if foreseen.distances is None or foreseen.shards is None:
        return ""
    more = f" and some in {foreseen.shards_without_curve} of later rows" if foreseen.shards_without_curve else ""
    return f", {foreseen.distances:,.0f} distances in {_shard_count(foreseen.shards)}{more} per query"


def _shard_count(count: float) -> str:
    """A mean number of shards, with one decimal where it is no whole number."""
    number = f"{count:,.1f}".removesuffix(".0")
    return f"{number} shard" if number == "1" else f"{number} shards"


def _proof(certificate: Certificate, row: str) -> str:
    """The query for which the proof is closest, in words. `row`: what was searched for."""
    bounds = zip(certificate.pruned_from, certificate.last, strict=True)
    pruned_from, last = min(
        bounds, key=lambda bound: bound[0] - bound[1] if bound[1] < math.inf else math.inf, default=(math.inf, math.inf)
    )
    if math.isinf(pruned_from):
        return f"every {row} was compared"
    proof = f"the last row is at {last:.6g}, and no row of the pruned files is under {pruned_from:.6g}"
    if not certificate.ruled_out:
        return proof
    path, margin = min(certificate.ruled_out.items(), key=lambda item: item[1])
    return f"{proof}; the nearest of these is {path}, ruled out by {margin:.6g}"


def _probed_shards(parameters: SearchParameters) -> str:
    if parameters.shards is not None:
        return f"the nearest {plural(parameters.shards, 'shard')}"
    if math.isinf(parameters.probe_slack):
        return "every shard"
    return f"shards up to {parameters.probe_slack:.0%} farther than the nearest one"
