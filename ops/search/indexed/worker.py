"""Searching on executors: one snapshot, and the version that answers for it, decided once for a whole job.

Everything of a search that runs in tasks stands here: what is sent to them, what they do, and what they return.
No dagster and no pyspark is imported.
"""

import pickle
import threading
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.arrays import F64, I64, Bool
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.cache import CacheSettings, process_cache, use_settings
from icepuffin.ops.filters.matches import Matches
from icepuffin.ops.index.versions.version_reader import OpenVersion
from icepuffin.ops.model import FileNumber, LiveFiles, ShardId, StorageConfig
from icepuffin.ops.process.lru_cache import LruCache
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.rows.candidates import table_distances
from icepuffin.ops.rows.row_reader import RowReader
from icepuffin.ops.rows.vector_column import element_type_of, exact_vectors, holds_doubles
from icepuffin.ops.search.errors import IndexUnavailableError
from icepuffin.ops.search.exact.scan import SkippedRows, VectorSource, scan
from icepuffin.ops.search.indexed.loaded_version import version_of
from icepuffin.ops.search.indexed.version_search import search_version
from icepuffin.ops.search.source_answer import SourceAnswer
from icepuffin.ops.search.tuning import RecallModel, SearchParameters
from icepuffin.ops.shards.masked_shards import MaskedShard, ShardMasker
from icepuffin.ops.storage import StorageError
from icepuffin.ops.tasks.task_runner import BroadcastBytes, TaskRunner, broadcast_by, received
from icepuffin.puffin.errors import PuffinError

_MAX_WORKERS = 2
"""Jobs that a process keeps ready"""


@dataclass(frozen=True, slots=True, eq=False)
class SearchJob:
    """A snapshot's files and the version that covers some of them. Picklable; holds credentials, which never show."""

    live: LiveFiles
    schema: Schema
    field_id: int
    """Field id of the vector column"""
    metric: Metric
    storage: StorageConfig
    opened: OpenVersion | None
    """Version that answers; None where every row is compared"""
    covered: frozenset[FileNumber] | None = None
    """Live files that the version answers for: only their nodes are returned. None: all of them"""
    live_rows: I64 | None = None
    """int64[shards]: live rows of each shard, for a query to probe others where its own have too few; None where there
    is no version, or it is only opened
    """
    cache: CacheSettings = field(default_factory=CacheSettings.from_environment)
    threads: int = 1
    """Threads that one task uses"""

    @property
    def column_is_double(self) -> bool:
        """Whether the column's vectors are doubles, which shards hold as floats."""
        return holds_doubles(self.schema, self.field_id)

    @property
    def element_type(self) -> str:
        """Element type of the column's vectors."""
        return element_type_of(self.schema, self.field_id)

    def serialize(self) -> "SerializedSearchJob":
        """The job in the form in which it travels."""
        return SerializedSearchJob(uuid.uuid4().hex, pickle.dumps(self))


@dataclass(frozen=True, slots=True)
class SerializedSearchJob:
    """A job as it travels: deserialized once per process, whatever the number of tasks."""

    name: str
    data: bytes | BroadcastBytes = field(repr=False)

    def broadcast(self, runner: TaskRunner, owner: object) -> "SerializedSearchJob":
        """The same, which a runner that can sends once for all searches of `owner`."""
        return replace(self, data=broadcast_by(runner, received(self.data), owner))

    def worker(self) -> "SearchWorker":
        """The worker for this job in this process."""
        with _lock:
            worker = _workers.get(self.name)
            if worker is None:
                worker = SearchWorker(pickle.loads(received(self.data)))  # noqa: S301  made by our own driver
                _workers.put(self.name, worker)
            return worker


_lock = threading.Lock()
_workers = LruCache[str, "SearchWorker"](_MAX_WORKERS)


@dataclass(frozen=True, slots=True, eq=False)
class SearchRequest:
    """What a search wants, the same for all of its queries."""

    k: int
    parameters: SearchParameters | None
    """Search parameters; None where there is no version"""
    matches: Matches | None = None
    strict: bool = True
    """Whether a row without a distance is an error"""

    @property
    def rerank(self) -> bool:
        """Whether candidates of the version are ranked by the table's vectors."""
        return self.parameters is not None and self.parameters.rerank


@dataclass(frozen=True, slots=True)
class SearchShare:
    """One task's share: shards of a version, or files of the freshness tail."""

    shards: tuple[ShardId, ...] = ()
    files: tuple[FileNumber, ...] = ()
    """Live files to scan"""


@dataclass(frozen=True, slots=True, eq=False)
class FileCandidates:
    """Candidates of some queries that lie in one data file."""

    file: FileNumber
    positions: I64
    """int64[n]: row position of each candidate"""
    queries: I64
    """int64[n]: query of each candidate, as a row of `vectors`"""
    vectors: F64
    """f64[Q, D] prepared: queries that have a candidate here"""

    @classmethod
    def from_positions(cls, file: FileNumber, positions: I64, query: I64, queries: F64) -> "FileCandidates":
        """Candidates at `positions` of a file, of queries[query]; only queries with a candidate are kept."""
        present, inverse = np.unique(query, return_inverse=True)
        return cls(file, positions, inverse.astype(np.int64), queries[present])


@dataclass(frozen=True, slots=True, eq=False)
class ShardSummary:
    """Facts about one shard, from the task that loaded it."""

    shard_id: ShardId
    nodes: I64
    """int64[files]: number of live nodes of each live file"""
    revived: frozenset[FileNumber]
    """Files with rows that are live in the snapshot and were not live in the version's own"""
    rounded: bool
    """Whether its vectors differ from the table's by rounding"""
    longest: float
    """Length of its longest vector, where the column's are doubles and the metric is the inner product; else 0"""


class SearchWorker:
    """Searches parts of a job in this process. Shards come out of the process's cache. Thread-safe: a runner may have
    threads, and several threads a reader.
    """

    def __init__(self, job: SearchJob) -> None:
        self.job = job
        self.rows = RowReader(job.live, job.schema, job.storage)
        self._lock = ProcessLock()
        self._shards: OrderedDict[ShardId, MaskedShard] = OrderedDict()
        if process_cache().settings != job.cache:  # an executor's cache is set up as the driver's is
            use_settings(job.cache)

    @cached_property
    def masker(self) -> ShardMasker:
        return ShardMasker(self._version, self.job.live, self.job.storage)

    @cached_property
    def recall_model(self) -> RecallModel:
        return RecallModel.from_version(self._version)

    @property
    def _version(self) -> OpenVersion:
        if self.job.opened is None:
            raise ValueError("the job has no version")
        return self.job.opened

    def summary(self, shard_id: ShardId) -> ShardSummary:
        """Load one shard and describe it. Raises StorageError, PuffinError."""
        shard = self.masker.read(shard_id, threads=self.job.threads)
        products = self.job.metric is Metric.INNER_PRODUCT
        return ShardSummary(
            shard_id,
            self.masker.nodes_by_file([shard]),
            self.masker.revived(shard_id, shard),
            rounded=shard.shard.rounded or self.job.column_is_double,
            longest=shard.longest_vector() if self.job.column_is_double and products else 0.0,
        )

    def probed(self, queries: F64, request: SearchRequest) -> Bool | None:
        """bool[Q, shards]: the shards that each query probes; None where every query probes all, or is searched under a
        condition.
        """
        if self.job.live_rows is None or request.parameters is None or request.matches is not None:
            return None
        return self.recall_model.probed_in_the_end(queries, request.parameters, request.k, self.job.live_rows)

    def find(
        self, queries: F64, share: SearchShare, request: SearchRequest, probed: Bool | None = None
    ) -> SourceAnswer:
        """The k nearest rows of the share (more where distances are not exact). `queries` f64[Q, D] prepared.

        `probed` bool[Q, shards]: the shards of each query, where they are chosen already.
        """
        job, k, matches, parameters = self.job, request.k, request.matches, request.parameters
        if not share.shards:
            skipped = None if request.strict else SkippedRows()
            dims = None if job.opened is None else job.opened.routing.dims
            source = VectorSource(job.live, job.schema, job.field_id, job.metric, job.storage, dims)
            candidates, rows = scan(source, queries, k, share.files, matches, skipped)
            return SourceAnswer(candidates, len(queries), "scan", scanned=rows, skipped=skipped)
        if parameters is None:
            raise ValueError("a version is searched with parameters")
        probed = self.probed(queries, request) if probed is None else probed
        shards = {number: self._shard(number) for number in share.shards if probed is None or probed[:, number].any()}
        version = version_of(
            self._version,
            shards,
            job.covered or frozenset(),
            column_is_double=job.column_is_double,
            recall_model=self.recall_model,
        )
        answer = search_version(version, queries, k, parameters, matches, threads=job.threads, probed=probed)
        answer.approximate = answer.approximate and parameters.rerank
        return answer

    def _shard(self, shard_id: ShardId) -> MaskedShard:
        """A shard, masked. Those that were used last stay so, within the budget of the cache's memory."""
        with self._lock:
            kept = self._shards.get(shard_id)
        if kept is None:
            kept, covered = self._read(shard_id), self.job.covered
            kept = kept if covered is None else kept.restricted_to_files(covered)
        with self._lock:
            self._shards[shard_id] = kept  # which another thread may have dropped meanwhile, or read, too
            self._shards.move_to_end(shard_id)
            budget = self.job.cache.memory_bytes
            while len(self._shards) > 1 and sum(one.shard.nbytes for one in self._shards.values()) > budget:
                self._shards.popitem(last=False)
        return kept

    def _read(self, shard_id: ShardId) -> MaskedShard:
        """A shard that was readable when the version was opened, and may be gone by now."""
        try:
            return self.masker.read(shard_id, threads=self.job.threads)
        except (PuffinError, StorageError) as error:
            path = self._version.bound.puffin_path
            raise IndexUnavailableError(
                f"{path}, which was opened, cannot be read any more: {error}; open the index again, or refresh it"
            ) from error

    def rank(self, candidates: FileCandidates) -> F64:
        """f64[n]: exact distances of a file's candidates; only the row groups that hold one are read, each once."""
        rows, inverse = np.unique(candidates.positions, return_inverse=True)
        column = self.rows.take(candidates.file, [self.job.field_id], rows).column(0)
        vectors = exact_vectors(column, candidates.vectors.shape[1], self.job.element_type)
        return table_distances(candidates.vectors, vectors, candidates.queries, inverse, self.job.metric)


def summarize_shards(serialized: SerializedSearchJob, shard_ids: tuple[ShardId, ...]) -> list[ShardSummary] | str:
    """Body of a task. Returns the error of a store that does not answer: another version may serve."""
    worker = serialized.worker()
    try:
        return [worker.summary(shard_id) for shard_id in shard_ids]
    except StorageError as error:
        return str(error)


def search_share(
    serialized: SerializedSearchJob, request: SearchRequest, task: tuple[F64, SearchShare]
) -> SourceAnswer:
    """Body of a task: one share for one block of queries."""
    return serialized.worker().find(*task, request)


def rank_candidates(serialized: SerializedSearchJob, task: Sequence[FileCandidates]) -> list[F64]:
    """Body of a task: exact distances of the candidates of some data files."""
    worker = serialized.worker()
    return [worker.rank(candidates) for candidates in task]
