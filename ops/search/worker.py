"""What executors search: one snapshot, and the version that answers for it, decided once for a whole job."""

import pickle
import threading
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.top_k import merge_top_k
from icepuffin.ops.addresses import pack, unpack
from icepuffin.ops.cache import CacheSettings, process_cache, use_settings
from icepuffin.ops.datafile import exact_vectors, holds_doubles
from icepuffin.ops.index.version_reader import OpenVersion
from icepuffin.ops.model import LiveFiles, StorageConfig
from icepuffin.ops.search.candidates import Candidates, table_distances
from icepuffin.ops.search.errors import IndexUnavailableError
from icepuffin.ops.search.filtered import search_version
from icepuffin.ops.search.matches import Matches
from icepuffin.ops.search.parts import Part, PartReader
from icepuffin.ops.search.row_reader import RowReader
from icepuffin.ops.search.scan import SkippedRows, VectorSource, scan
from icepuffin.ops.search.shards import IndexAnswer, LoadedShard, as_loaded, version_of
from icepuffin.ops.search.tuning import SearchParameters
from icepuffin.ops.storage import StorageError
from icepuffin.puffin.errors import PuffinError

_HELD = 2
"""Pins that a process keeps ready"""


@dataclass(frozen=True, slots=True, eq=False)
class SearchJob:
    """A snapshot's files and the version that covers some of them. Picklable; holds credentials, which never show."""

    live: LiveFiles
    schema: Schema
    field_id: int
    metric: Metric
    storage: StorageConfig
    opened: OpenVersion | None
    covered: frozenset[int] | None = None
    """Numbers of the live files that the version answers for, whose nodes alone are returned; None: all"""
    cache: CacheSettings = field(default_factory=CacheSettings.from_environment)
    threads: int = 1

    @property
    def column_is_double(self) -> bool:
        """Whether the column's vectors are doubles, which shards hold as floats."""
        return holds_doubles(self.schema, self.field_id)

    def pack(self) -> "PackedSearchJob":
        return PackedSearchJob(uuid.uuid4().hex, pickle.dumps(self))


@dataclass(frozen=True, slots=True)
class PackedSearchJob:
    """A pin as it travels: unpacked once a process, whatever the number of tasks."""

    name: str
    data: bytes = field(repr=False)

    def worker(self) -> "SearchWorker":
        """What searches it in this process."""
        with _lock:
            if self.name not in _workers:
                _workers[self.name] = SearchWorker(pickle.loads(self.data))  # noqa: S301  made by our own driver
            while len(_workers) > _HELD:
                _workers.popitem(last=False)
            return _workers[self.name]


_lock = threading.Lock()
_workers: "OrderedDict[str, SearchWorker]" = OrderedDict()


@dataclass(frozen=True, slots=True, eq=False)
class SearchRequest:
    """What is asked for each of some queries."""

    k: int
    parameters: SearchParameters | None
    """None where there is no version"""
    matches: Matches | None = None
    strict: bool = True
    """Whether a row without a distance is an error"""

    @property
    def rerank(self) -> bool:
        """Whether candidates of the version are to be ranked by the table's vectors."""
        return self.parameters is not None and self.parameters.rerank


@dataclass(frozen=True, slots=True)
class WorkShare:
    """A part of a version and of the tail: what one task looks at."""

    shards: tuple[int, ...] = ()
    files: tuple[int, ...] = ()
    """Live files to scan"""


@dataclass(frozen=True, slots=True, eq=False)
class FileCandidates:
    """Candidates of some queries that lie in one data file."""

    file: int
    positions: npt.NDArray[np.int64]
    """int64[n]"""
    queries: npt.NDArray[np.int64]
    """int64[n], into `vectors`"""
    vectors: npt.NDArray[np.float64]
    """f64[Q, D] prepared"""


@dataclass(frozen=True, slots=True, eq=False)
class ShareResult:
    """What a group has for some queries."""

    indexed: IndexAnswer | None
    """None where it has no shard"""
    scanned: Candidates
    rows: int
    """Scanned"""
    skipped: SkippedRows
    """Of the rows that were to be scanned"""


@dataclass(frozen=True, slots=True, eq=False)
class ShardSummary:
    """One shard, as the task that loaded it tells of it."""

    number: int
    nodes: npt.NDArray[np.int64]
    """int64[files], live nodes of each live file"""
    revived: frozenset[int]
    """Files with rows that are live in the snapshot, and were not in the version's own"""
    rounded: bool
    """Whether it does not hold the table's vectors as they are"""


class SearchWorker:
    """Searches parts of a pin in this process; shards come out of the process's cache."""

    def __init__(self, pin: SearchJob) -> None:
        self.job = pin
        self.rows = RowReader(pin.live, pin.schema, pin.storage)
        self._shards: OrderedDict[int, tuple[LoadedShard, int]] = OrderedDict()
        if process_cache().settings != pin.cache:  # an executor's: as the driver has it
            use_settings(pin.cache)

    @cached_property
    def parts(self) -> PartReader:
        return PartReader(self._version, self.job.live, self.job.storage)

    @property
    def _version(self) -> OpenVersion:
        if self.job.opened is None:
            raise ValueError("the pin has no version")
        return self.job.opened

    def facts(self, number: int) -> "ShardSummary":
        """Load one shard, and tell what a reader must know of it."""
        part = self.parts.read(number, threads=self.job.threads)
        buried = self._version.routing.shards[number].tombstones
        return ShardSummary(
            number,
            self.parts.nodes_by_file([part]),
            frozenset(part.files[buried][part.live[buried]].tolist()),
            rounded=part.shard.rounded or self.job.column_is_double,
        )

    def find(self, queries: npt.NDArray[np.float64], group: WorkShare, ask: SearchRequest) -> ShareResult:
        """The k nearest rows of the group (more where distances are not exact). `queries` f64[Q, D] prepared."""
        pin = self.job
        indexed = self._search(queries, group.shards, ask) if group.shards else None
        scanned, rows, skipped = Candidates.none(len(queries), ask.k), 0, SkippedRows()
        if group.files:
            dims = None if pin.opened is None else pin.opened.routing.dims
            source = VectorSource(pin.live, pin.schema, pin.field_id, pin.metric, pin.storage, dims)
            told = None if ask.strict else skipped
            scanned, rows = scan(queries, ask.k, source, group.files, matches=ask.matches, skipped=told)
        return ShareResult(indexed, scanned, rows, skipped)

    def _search(self, queries: npt.NDArray[np.float64], numbers: Sequence[int], ask: SearchRequest) -> IndexAnswer:
        knobs = ask.parameters
        if knobs is None:
            raise ValueError("a version is searched with knobs")
        shards = {number: self._shard(number) for number in numbers}
        version = version_of(self._version, shards, self.job.covered or frozenset())
        found = search_version(version, queries, ask.k, knobs, ask.matches, threads=self.job.threads)
        return replace(found, approximate=found.approximate and knobs.rerank)

    def _shard(self, number: int) -> LoadedShard:
        """Masked; those used last stay so, within the budget of the cache's memory."""
        if number not in self._shards:
            part = self._read(number)
            mine = part if self.job.covered is None else part.within(self.job.covered)
            masked = as_loaded(mine, column_is_double=self.job.column_is_double)
            self._shards[number] = masked, part.shard.nbytes
            while (
                len(self._shards) > 1 and sum(size for _, size in self._shards.values()) > self.job.cache.memory_bytes
            ):
                self._shards.popitem(last=False)
        self._shards.move_to_end(number)
        return self._shards[number][0]

    def _read(self, number: int) -> Part:
        """The shard was readable when the version was opened, and may be gone by now."""
        try:
            return self.parts.read(number, threads=self.job.threads)
        except (PuffinError, StorageError) as error:
            path = self._version.version.puffin_path
            raise IndexUnavailableError(
                f"{path}, which was opened, cannot be read any more: {error}; open the index again, or refresh it"
            ) from error

    def rank(self, asked: "FileCandidates") -> npt.NDArray[np.float64]:
        """f64[n], exact distances of a file's candidates; only the row groups that hold one are read, each once."""
        rows, places = np.unique(asked.positions, return_inverse=True)
        column = self.rows.take(asked.file, [self.job.field_id], rows).column(0)
        vectors = exact_vectors(column, asked.vectors.shape[1])
        return table_distances(asked.vectors, vectors, asked.queries, places, self.job.metric)


def merge_sorted(parts: Sequence[Candidates], k: int) -> Candidates:
    """The k nearest of sorted lists, by a loser tree; ties by file, then position, as `candidates.merge` has them."""
    runs = [(np.where(part.files >= 0, pack(part.files, part.positions), -1), part.distances) for part in parts]
    _, keys, distances = merge_top_k(runs, k)
    return Candidates(*unpack(keys), distances)
