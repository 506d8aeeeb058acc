"""An index version in memory: all of its shards, or those that searches have needed so far."""

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import overload
from weakref import WeakKeyDictionary

import numpy as np

from icepuffin.ann_kernels.arrays import I64
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.filters.matches import Matches
from icepuffin.ops.index.planning.changes import LaterDeletes
from icepuffin.ops.index.versions.version_reader import OpenVersion, covered_paths, same_files
from icepuffin.ops.model import FileNumber, LiveFiles, ShardId, StorageConfig
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.search.errors import IndexUnavailableError
from icepuffin.ops.search.indexed.cold_shards import ColdShards
from icepuffin.ops.search.tuning import RecallModel
from icepuffin.ops.shards.masked_shards import MaskedShard, ShardMasker
from icepuffin.ops.storage import StorageError
from icepuffin.puffin.errors import BadBlobError, PuffinError

LOADED_AT_ONCE = 256 << 20
"""Stored bytes up to which all shards of a version are loaded when it is opened: that takes about a second"""
_log = logging.getLogger(__name__)


class ShardsOnDemand(Sequence[MaskedShard]):
    """All shards of a version. Each is loaded once, and checked against the routing blob, which was trusted till then.
    A search that loads one does not wait for its codes, which later searches have.

    Thread-safe. Its methods raise IndexUnavailableError for a shard that cannot be read, or is not what the routing
    blob says: then what was covered by it is not known.
    """

    def __init__(self, opened: OpenVersion, masker: ShardMasker, covered: frozenset[FileNumber]) -> None:
        self._opened = opened
        self._masker = masker
        self._covered = covered
        """Live files all of whose live rows have a node, as the routing blob says"""
        self._rounded = opened.definition.vectors != "f32"
        self._shards: list[MaskedShard | None] = [None] * len(opened.shards)
        self._locks = [ProcessLock() for _ in opened.shards]
        self._counting = ProcessLock()
        self._nodes = masker.nodes_by_file(())
        self._uncounted = len(opened.shards)
        self._fetching: threading.Thread | None = None
        self._unfetched: set[int] = set()
        """Numbers of shards that could not be fetched in the background"""

    def cold(self, numbers: Sequence[int]) -> list[int]:
        """The numbers of shards that this process would have to read from the store, out of some; without shards that
        it could not read before.
        """
        return [
            number
            for number in numbers
            if self._shards[number] is None
            and number not in self._unfetched
            and not self._masker.is_at_hand(ShardId(number))
        ]

    def live_rows(self) -> I64:
        """int64[shards]: live nodes of each, as the routing blob says."""
        return np.array([entry.live_rows for entry in self._opened.routing.shards], np.int64)

    def fetch_in_background(self, numbers: Sequence[int]) -> None:
        """Load the shards of some numbers, one after the other, while searches go on; nothing where that is under way.

        One that cannot be read is left to the next search that needs it, which reports that.
        """
        with self._counting:
            if self._fetching is None or not self._fetching.is_alive():
                # a process that ends does not wait for it: what it leaves unfinished in the cache is never found
                self._fetching = threading.Thread(
                    target=self._fetch, args=(numbers,), name="icepuffin-fetch", daemon=True
                )
                self._fetching.start()

    def _fetch(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            try:
                self._loaded(number)
            except IndexUnavailableError as error:
                _log.warning("a shard could not be fetched in the background: %s", error)
                self._unfetched.add(number)
            except RuntimeError as error:
                # executors refuse new work before the main thread has stopped
                if "shutdown" not in str(error) and threading.main_thread().is_alive():
                    raise
                return  # the process ends, and no thread starts any more

    def __len__(self) -> int:
        return len(self._shards)

    @overload
    def __getitem__(self, number: int) -> MaskedShard: ...
    @overload
    def __getitem__(self, number: slice) -> list[MaskedShard]: ...

    def __getitem__(self, number: int | slice) -> MaskedShard | list[MaskedShard]:
        if isinstance(number, slice):
            return self.take(range(len(self))[number])
        return self._loaded(range(len(self))[number])

    def take(self, numbers: Sequence[int], *, threads: int = 1) -> list[MaskedShard]:
        """The shards of some numbers; those that are not loaded yet, side by side."""
        missing = [number for number in numbers if self._shards[number] is None]
        if len(missing) > 1 and threads > 1:
            with ThreadPoolExecutor(min(threads, len(missing))) as pool:
                list(pool.map(self._loaded, missing))
        return [self._loaded(number) for number in numbers]

    def _loaded(self, number: int) -> MaskedShard:
        shard = self._shards[number]
        if shard is not None and shard.is_complete:
            return shard
        with self._locks[number]:
            shard = self._shards[number]
            if shard is not None:
                self._shards[number] = shard = shard.completed()
            else:
                try:
                    shard = self._masker.read(ShardId(number), early=True)
                    self._require_as_routed(number, shard)
                    self._count(number, shard)
                except (PuffinError, StorageError) as error:
                    path = self._opened.shards[number].path
                    raise IndexUnavailableError(f"{path} cannot be read: {error}") from error
            return shard

    def _require_as_routed(self, number: int, shard: MaskedShard) -> None:
        """Raises BadBlobError where other nodes are live than the routing blob says, or its vectors are others."""
        tombstones = self._opened.routing.shards[number].tombstones
        if not np.array_equal(np.flatnonzero(~shard.is_live), tombstones) or shard.shard.rounded != self._rounded:
            raise BadBlobError(f"shard {number} has other live rows than its routing blob says, or rounded vectors")

    def _count(self, number: int, shard: MaskedShard) -> None:
        """Keep a shard. With the last one all nodes are counted: raises BadBlobError where they do not cover the files
        that the routing blob says.
        """
        with self._counting:
            nodes = self._nodes + self._masker.nodes_by_file((shard,))
            if self._uncounted == 1 and self._masker.covered(nodes) != self._covered:
                raise BadBlobError("its shards cover other files than its routing blob says")
            self._shards[number], self._nodes = shard, nodes
            self._uncounted -= 1


class LoadedShards(tuple[MaskedShard, ...]):
    """Shards that are loaded."""

    __slots__ = ()

    def take(self, numbers: Sequence[int], *, threads: int = 1) -> list[MaskedShard]:
        """The shards of some numbers; see `ShardsOnDemand.take`."""
        return [self[number] for number in numbers]


@dataclass(frozen=True, slots=True, eq=False)
class LoadedVersion:
    """Shards of a version, for one snapshot: all of them, or those that one task searches."""

    shards: "LoadedShards | ShardsOnDemand"
    shard_ids: tuple[ShardId, ...]
    """Shard ids of `shards`, in the same order"""
    covered: frozenset[FileNumber]
    """Live files all of whose live rows have a node"""
    metric: Metric
    search_list: int
    """Search list of the definition"""
    dims: int
    recall_model: RecallModel
    index_bytes: int
    """Stored bytes of the shards that were loaded at once"""
    rounded: bool
    """Whether a shard's vectors are rounded (f16) or coded, and not exactly the table's"""
    lean: bool
    """Whether a shard holds no vectors to compare with"""
    coded: bool = False
    """Whether shards hold rotated codes, by which candidates are ranked well without vectors"""
    enclosed: frozenset[FileNumber] = frozenset()
    """Covered files that the centroid index's balls enclose: all their live rows were live in the version's snapshot"""
    column_is_double: bool = False
    """Whether the column's vectors are doubles, which shards hold as floats"""
    cold: ColdShards | None = None
    """Cells of those of its shards that are not loaded; None where the index has none, or all are loaded"""
    _restricted: "WeakKeyDictionary[Matches, LoadedShards]" = field(
        default_factory=WeakKeyDictionary, init=False, repr=False
    )

    def restricted_shards(self, matches: Matches) -> LoadedShards:
        """The shards with only their matching rows. Memory: a bit per node, or 4 bytes per matching node.

        Kept for as long as the matches are: making them takes longer than some searches.
        """
        restricted = self._restricted.get(matches)
        if restricted is None:
            pairs = zip(self.shard_ids, self.shards.take(range(len(self.shards))), strict=True)
            restricted = LoadedShards(shard.restricted(matches.nodes(shard_id, shard)) for shard_id, shard in pairs)
            self._restricted[matches] = restricted
        elif not all(shard.is_complete for shard in restricted):
            self._restricted[matches] = restricted = LoadedShards(shard.completed() for shard in restricted)
        return restricted

    def live_rows(self) -> I64:
        """int64[shards of the version]: live nodes of each; 0 for those that this process does not search."""
        if isinstance(self.shards, ShardsOnDemand):
            return self.shards.live_rows()
        rows = np.zeros(self.recall_model.shards, np.int64)
        rows[list(self.shard_ids)] = [shard.searcher.live_count for shard in self.shards]
        return rows

    @property
    def exact(self) -> bool:
        """Whether its distances are those of the table's own vectors (under cosine, of their directions in f32)."""
        return not self.column_is_double and not self.rounded

    def longest_vector(self) -> float:
        """Length of the longest vector that a shard holds. Reads all of them."""
        return max((shard.longest_vector() for shard in self.shards), default=0.0)


def load_version(
    opened: OpenVersion,
    live: LiveFiles,
    storage: StorageConfig,
    *,
    complete: bool,
    threads: int,
    column_is_double: bool = False,
    on_demand: bool = False,
) -> LoadedVersion:
    """Read, check and mask every shard; with `on_demand`, where the version has more than `LOADED_AT_ONCE` bytes and
    the routing blob tells what it covers, each when a search first needs it.

    With `complete`, nodes of files that are covered in part are left out: the caller scans those files.
    `column_is_double`: the column's vectors are doubles, which shards hold as floats. Raises StorageError, PuffinError.
    """
    masker = ShardMasker(opened, live, storage)
    size = sum(stored.length for stored in opened.shards)
    has_cells = opened.definition.cell_bits > 0
    later = on_demand and (size > LOADED_AT_ONCE or has_cells)
    routed = masker.covered_by_routing() if later else None
    if routed is not None:
        version = _version_on_demand(opened, masker, routed, column_is_double=column_is_double)
        return replace(version, cold=ColdShards(opened, masker, storage)) if has_cells else version
    ids = [ShardId(number) for number in range(len(opened.shards))]
    with ThreadPoolExecutor(max(1, threads)) as pool:
        shards = list(pool.map(masker.read, ids))
    covered = masker.covered(masker.nodes_by_file(shards))
    if complete:
        shards = [shard.restricted_to_files(covered) for shard in shards]
    enclosed = covered.difference(*(masker.revived(*pair) for pair in zip(ids, shards, strict=True)))
    version = version_of(opened, dict(zip(ids, shards, strict=True)), covered, column_is_double=column_is_double)
    return replace(version, enclosed=enclosed)


def load_balls(opened: OpenVersion, live: LiveFiles, *, column_is_double: bool) -> LoadedVersion:
    """A version without shards. It covers the files that it knows, whose rows are read from the data files.

    Its balls hold where no row is live that was deleted in the version's own snapshot.
    """
    same, slots = same_files(opened, live), covered_paths(opened)
    later_deletes = LaterDeletes(opened)
    enclosed = (number for path, number in same.items() if later_deletes.were_added(live.files[number], slots[path]))
    version = version_of(opened, {}, frozenset(same.values()), column_is_double=column_is_double)
    return replace(version, enclosed=frozenset(enclosed))


def _version_on_demand(
    opened: OpenVersion, masker: ShardMasker, covered: frozenset[FileNumber], *, column_is_double: bool
) -> LoadedVersion:
    """A version of which no shard is loaded. No row is live that was not live in the version's own snapshot."""
    version = version_of(opened, {}, covered, column_is_double=column_is_double)
    return replace(
        version,
        shards=ShardsOnDemand(opened, masker, covered),
        shard_ids=tuple(ShardId(number) for number in range(len(opened.shards))),
        index_bytes=0,
        rounded=opened.definition.vectors != "f32",
        lean=not opened.definition.holds_vectors,
        coded=bool(opened.definition.code_bits),
        enclosed=covered,
    )


def version_of(
    opened: OpenVersion,
    shards: Mapping[ShardId, MaskedShard],
    covered: frozenset[FileNumber],
    *,
    column_is_double: bool,
    recall_model: RecallModel | None = None,
) -> LoadedVersion:
    """A version of which `shards`, by shard id, are searched. `recall_model`: the version's, if it is there."""
    definition = opened.definition
    return LoadedVersion(
        LoadedShards(shards.values()),
        tuple(shards),
        covered,
        definition.metric,
        definition.search_list,
        opened.routing.dims,
        recall_model or RecallModel.from_version(opened),
        sum(stored.length for stored in opened.shards),
        rounded=any(shard.shard.rounded for shard in shards.values()),
        lean=any(shard.vectors is None for shard in shards.values()),
        coded=bool(definition.code_bits),
        column_is_double=column_is_double,
    )
