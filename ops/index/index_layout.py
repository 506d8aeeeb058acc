"""Layout of an index: a sample of the vectors, the codebook that routes them, and the shard of each partition."""

import logging
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.codes import grouped_centroids, kmeans
from icepuffin.ann_kernels.codes.code_sizes import MAX_ROTATED_DIMS, MIN_ROTATED_DIMS, choose_m
from icepuffin.ann_kernels.codes.product_quantization import train_pq
from icepuffin.ops.index.definitions.index_definition import DefinitionError
from icepuffin.ops.index.planning.sizes import LARGEST_SAMPLE, choose_shard_count, least_shards, sample_size
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.routing_recall import curve_in_sample, routing_queries, split_off_queries
from icepuffin.ops.index.versions.index_packs import MAX_SHARDS
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.recall.shard_recall import AcrossShards
from icepuffin.ops.rows.vector_column import element_type_of
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.live_rows import read_live
from icepuffin.ops.table.row_deletes import deleted_in_turn
from icepuffin.ops.tasks.vectors import prepared, vectors_at, with_vector

PARTITIONS_PER_SHARD = 16
_FILES = 64
"""Files that a sample is spread over, where there are so many: each may hold rows of another time, or model"""
_LARGE = 1e30
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Codebook of an index, and the shards that its partitions belong to."""

    codebook: npt.NDArray[np.float32]
    """f32[k, D]"""
    partition_to_shard: npt.NDArray[np.uint32]
    shards: int
    pq_codebook: npt.NDArray[np.float32] | None
    sample_curve: str = ""
    """Recall by the number of shards that are searched, measured in a sample; see `icepuffin.ops.recall.curves`"""
    routing_curve: str = ""
    """Recall by the number of shards that are searched, measured in the table; empty where it was not"""
    routing_queries: npt.NDArray[np.float32] | None = None
    """f32[Q, D], rows of the table by which this and `across` are to be measured; None: they are not"""
    across: AcrossShards = field(default_factory=AcrossShards)
    """What searches of all shards find"""

    @property
    def dims(self) -> int:
        return int(self.codebook.shape[1])


def make_layout(plan: VersionPlan, storage: StorageConfig, *, threads: int) -> Layout | None:
    """Sample vectors, train the codebook, and divide its partitions into shards. None where no row has a vector.

    Raises DefinitionError where the vectors cannot have codes of `pq_nbits`, or rotated ones, or take too many shards.
    """
    definition = plan.definition
    sample = draw_sample(plan, storage)
    if not len(sample):
        return None
    if definition.vectors == "none" and sample.shape[1] * definition.pq_nbits % 8:
        raise DefinitionError(
            f"index {definition.name}: codes of {definition.pq_nbits} bits lie two in a byte, which needs an even "
            f"number of dimensions, and column {definition.column} has {sample.shape[1]}: take pq_nbits 8"
        )
    if definition.code_bits and not MIN_ROTATED_DIMS <= sample.shape[1] <= MAX_ROTATED_DIMS:
        raise DefinitionError(
            f"index {definition.name}: vectors = '{definition.vectors}' takes {MIN_ROTATED_DIMS} to "
            f"{MAX_ROTATED_DIMS:,} dimensions, and column {definition.column} has {sample.shape[1]:,}: take f16 or f32"
        )
    rows = plan.live.record_count
    shards = definition.shards or choose_shard_count(rows, sample.shape[1], definition.max_degree)
    least = least_shards(definition, rows, sample.shape[1])
    if least > MAX_SHARDS:
        raise DefinitionError(
            f"index {definition.name}: {rows:,} rows of {sample.shape[1]:,} dimensions take {least:,} shards at least, "
            f"and an index has {MAX_SHARDS:,} at most: take a smaller `max_degree`, or no codes and cells (vectors = "
            "'f32' or 'f16' lie apart from the shards), or divide the table"
        )
    if definition.shards and shards < least:
        _log.warning(
            "%s, index %s: of %s rows in %s shards one might be larger than a blob may be (2 GiB); it gets %s",
            plan.live.table, definition.name, rows, shards, least,
        )  # fmt: skip
    shards = max(shards, least)
    shards = min(shards, len(sample))
    metric, seed = definition.metric, definition.seed
    rows_to_train, queries = split_off_queries(sample, shards, queries=routing_queries(rows, shards), seed=seed)
    shards = min(shards, len(rows_to_train))
    partitions = max(shards, min(PARTITIONS_PER_SHARD * shards, len(rows_to_train) // 8))
    codebook = kmeans.train(rows_to_train, partitions, seed=seed, threads=threads, nearest=grouped_centroids.assign)
    labels, _ = grouped_centroids.assign(rows_to_train, codebook, threads=threads)
    pq_codebook = None
    if definition.vectors == "none":
        m = choose_m(sample.shape[1], definition.pq_m, definition.pq_nbits)
        pq_codebook = train_pq(sample, m, bits=definition.pq_nbits, seed=seed, threads=threads)
    to_shard = group_partitions(codebook, np.bincount(labels, minlength=partitions), shards)
    curve = curve_in_sample(rows_to_train, labels, queries, codebook, to_shard, metric)
    return Layout(codebook, to_shard, shards, pq_codebook, curve, routing_queries=queries if len(queries) else None)


def draw_sample(plan: VersionPlan, storage: StorageConfig, *, at_most: int = LARGEST_SAMPLE) -> npt.NDArray[np.float32]:
    """Prepared vectors f32[n, D] of random rows of random files; of a small table all that there are.

    Memory: the sample and one batch of rows. Of a large table four times as many vectors are read as are kept: half of
    them in the first files, whole, since rows may be sorted in each; half in all, the first of each.
    """
    rng = np.random.default_rng(plan.definition.seed)
    element_type = element_type_of(plan.schema, plan.field_id)
    total = plan.live.record_count
    full_size = min(at_most, sample_size(total))
    to_read = 4 * full_size
    share = full_size / max(1, min(total, to_read))
    sample = np.empty((0, 1), np.float32)
    filled = 0
    files = [plan.live.files[number] for number in rng.permutation(len(plan.live.files))]
    ends = np.minimum(np.cumsum([0, *(file.record_count for file in files)]), to_read // 2)
    whole = dict(zip((file.path for file in files), np.diff(ends).tolist(), strict=True))
    others = max(1, sum(file.record_count - whole[file.path] for file in files[:_FILES]))
    left = 0  # what a file lacks, as its rows are deleted or have no vector, is read of the next
    for file, deleted in deleted_in_turn(lambda path: open_storage(path, storage), files):
        store, first = open_storage(file.path, storage), whole[file.path]
        left += first - -(file.record_count - first) * (to_read - to_read // 2) // others
        for batch in read_live(store, file, plan.schema, [plan.field_id], deleted=deleted):
            if not left:
                break
            positions, column = with_vector(batch)
            positions, column = positions[:left], column[:left]
            size = len(positions)
            left -= size
            if not size:
                continue
            chosen = np.sort(rng.choice(size, int(np.ceil(size * share)), replace=False))[: full_size - filled]
            raw = vectors_at(column, positions, file, sample.shape[1] if filled else None, element_type)
            rows = prepared(raw[chosen], positions[chosen], file, plan.definition.metric)
            if not filled:
                sample = np.empty((full_size, rows.shape[1]), np.float32)
            sample[filled : filled + len(rows)] = rows
            filled += len(rows)
            if filled == full_size:
                return sample
    return sample[:filled]


def group_partitions(
    codebook: npt.NDArray[np.float32], sizes: npt.NDArray[np.int64], shards: int
) -> npt.NDArray[np.uint32]:
    """u32[k], the shard of each partition: neighbouring partitions together, shards of about equal size.

    Repeatedly halves the partitions along the direction in which they spread most.
    """
    if np.abs(codebook).max(initial=0) > _LARGE:
        codebook = codebook * np.float32(2.0**-100)  # exact, and sums stay in float's range
    out = np.empty(len(codebook), np.uint32)

    def halve(members: npt.NDArray[np.intp], first: int, count: int) -> None:
        if count == 1:
            out[members] = first
            return
        spread = codebook[members] - codebook[members].mean(axis=0)
        direction = np.linalg.svd(spread, full_matrices=False)[2][0]
        # the sign of a singular vector is arbitrary: fix it
        direction = direction * (1 if direction[np.abs(direction).argmax()] > 0 else -1)
        ordered = members[np.argsort(spread @ direction, kind="stable")]
        left_shards = count // 2
        weight = np.cumsum(sizes[ordered] + 1e-9)
        cut = int(np.searchsorted(weight, weight[-1] * left_shards / count)) + 1
        cut = min(max(cut, left_shards), len(ordered) - (count - left_shards))
        halve(ordered[:cut], first, left_shards)
        halve(ordered[cut:], first + left_shards, count - left_shards)

    halve(np.arange(len(codebook)), 0, shards)
    return out
