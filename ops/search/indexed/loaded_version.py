"""An index version in memory: all of its shards, or those that searches have needed so far."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import numpy as np

from icepuffin.ann_kernels.arrays import I64
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.filters.matches import Matches
from icepuffin.ops.index.planning.changes import LaterDeletes
from icepuffin.ops.index.versions.version_reader import OpenVersion, covered_paths, same_files
from icepuffin.ops.model import FileNumber, LiveFiles, ShardId, StorageConfig
from icepuffin.ops.search.indexed.cold_shards import ColdShards
from icepuffin.ops.search.indexed.shards_on_demand import ShardsOnDemand
from icepuffin.ops.search.tuning import RecallModel
from icepuffin.ops.shards.masked_shards import MaskedShard, ShardMasker

LOADED_AT_ONCE = 256 << 20
"""Stored bytes up to which all shards of a version are loaded when it is opened: that takes about a second"""


class LoadedShards(tuple[MaskedShard, ...]):
    """Shards that are loaded."""

    __slots__ = ()

    def take(self, places: Sequence[int], *, threads: int = 1) -> list[MaskedShard]:
        """The shards at some places; see `ShardsOnDemand.take`."""
        return [self[place] for place in places]


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

    def take(self, places: Sequence[int], *, threads: int) -> list[MaskedShard]:
        """The shards at some places of `shards`. Raises IndexUnavailableError for one that cannot be loaded by now."""
        return self.shards.take(places, threads=threads)

    def restricted(self, matches: Matches) -> "LoadedVersion":
        """The version with only its matching rows."""
        return replace(self, shards=self.restricted_shards(matches))

    def restricted_shards(self, matches: Matches) -> LoadedShards:
        """The shards with only their matching rows. Memory: a bit per node, or 4 bytes per matching node.

        Kept for as long as the matches are: making them takes longer than some searches.
        """
        restricted = self._restricted.get(matches)
        if restricted is None:
            pairs = zip(self.shard_ids, self.take(range(len(self.shards)), threads=1), strict=True)
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
        recall_model or RecallModel.of(opened),
        sum(stored.length for stored in opened.shards),
        rounded=any(shard.shard.rounded for shard in shards.values()),
        lean=any(shard.vectors is None for shard in shards.values()),
        coded=bool(definition.code_bits),
        column_is_double=column_is_double,
    )
