"""The parts of shards that a version writes: each is one blob of its file or of its pack."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from icepuffin.ops.index.files.blob_groups import blob_groups
from icepuffin.ops.index.files.included_blobs import Place
from icepuffin.ops.index.files.planned_blobs import planned_shard, planned_vectors
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.model import ObjectRange, StoredRun
from icepuffin.ops.tasks.shard_task import ShardResult
from icepuffin.puffin import PlannedBlob
from icepuffin.puffin.types import MAX_BLOB_BYTES


@dataclass(frozen=True, slots=True)
class ShardPart:
    """The blob of a shard, or vectors that lie apart from it."""

    shard: ShardResult
    runs: tuple[StoredRun, ...] = ()
    """Runs of vectors; empty for the blob of the shard"""

    @property
    def sources(self) -> tuple[ObjectRange, ...]:
        """The places of its bytes now, in order."""
        return tuple(run.place for run in self.runs) or (self.shard.stored.blob,)

    @property
    def length(self) -> int:
        return sum(source.length for source in self.sources)

    def planned(self, plan: VersionPlan) -> PlannedBlob:
        """The blob that it is to be."""
        return planned_vectors(plan, self.shard, self.length) if self.runs else planned_shard(plan, self.shard)

    def places(self, number: int, offset: int) -> dict[ObjectRange, Place]:
        """The new place of each of its sources, where it begins at `offset` of a pack, or of the version's own file."""
        places = {}
        for source in self.sources:
            places[source] = number, offset
            offset += source.length
        return places


def shard_ranges(shard: ShardResult) -> tuple[ObjectRange, ...]:
    """The places of a shard and of its vectors now; without its addresses."""
    return shard.stored.blob, *(run.place for run in shard.stored.runs)


def written_parts(shards: Iterable[ShardResult], is_shared: Callable[[ObjectRange], bool]) -> list[ShardPart]:
    """The parts of the shards that a version has to write, in the order of a file."""
    return [part for shard in shards for part in _parts(shard, is_shared)]


def _parts(shard: ShardResult, is_shared: Callable[[ObjectRange], bool]) -> Iterator[ShardPart]:
    if not is_shared(shard.stored.blob):
        yield ShardPart(shard)
    written = (run for run in shard.stored.runs if not is_shared(run.place))
    for runs in blob_groups(written, lambda run: run.place.length, MAX_BLOB_BYTES):
        yield ShardPart(shard, runs)
