"""Layout of an index: a sample of the vectors, the codebook that routes them, and the shard of each partition."""

import logging
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels import grouped_centroids, kmeans
from icepuffin.ann_kernels.code_sizes import FEWEST_ROTATED_DIMS, MOST_ROTATED_DIMS, choose_m
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.product_quantization import train_pq
from icepuffin.ann_kernels.top_k import exact_top_k
from icepuffin.ops.catalog.row_deletes import deleted_in_turn
from icepuffin.ops.index.definition import DefinitionError
from icepuffin.ops.index.plan import VersionPlan
from icepuffin.ops.index.sizes import choose_shard_count, least_shards, sample_size
from icepuffin.ops.live_rows import read_live
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.recall_curve import MEASURED_K, Reach, ShardCentroids, encode
from icepuffin.ops.storage import open_storage
from icepuffin.ops.tasks.vectors import prepared, vectors_at, with_vector
from icepuffin.ops.vector_column import element_type_of

PARTITIONS_PER_SHARD = 16
ROUTING_QUERIES = 256
PROBE_SLACKS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.8)
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
    routing_curve: str = ""
    """Recall by the number of shards that are searched; see `icepuffin.ops.recall_curve`"""

    @property
    def dims(self) -> int:
        return int(self.codebook.shape[1])


def make_layout(plan: VersionPlan, storage: StorageConfig, *, threads: int) -> Layout | None:
    """Sample vectors, train the codebook, and divide its partitions into shards. None where no row has a vector.

    Raises DefinitionError where the vectors cannot have codes of `pq_nbits`, or rotated ones.
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
    if definition.code_bits and not FEWEST_ROTATED_DIMS <= sample.shape[1] <= MOST_ROTATED_DIMS:
        raise DefinitionError(
            f"index {definition.name}: vectors = '{definition.vectors}' takes {FEWEST_ROTATED_DIMS} to "
            f"{MOST_ROTATED_DIMS:,} dimensions, and column {definition.column} has {sample.shape[1]:,}: take f16 or f32"
        )
    rows = plan.live.record_count
    shards = definition.shards or choose_shard_count(rows, sample.shape[1], definition.max_degree)
    least = least_shards(definition, rows, sample.shape[1])
    if shards < least:
        _log.warning(
            "%s, index %s: of %s rows in %s shards one might be larger than a blob may be (2 GiB); it gets %s",
            plan.live.table, definition.name, rows, shards, least,
        )  # fmt: skip
        shards = least
    shards = min(shards, len(sample))
    partitions = max(shards, min(PARTITIONS_PER_SHARD * shards, len(sample) // 8))
    codebook = kmeans.train(sample, partitions, seed=definition.seed, threads=threads, nearest=grouped_centroids.assign)
    labels, _ = grouped_centroids.assign(sample, codebook, threads=threads)
    pq_codebook = None
    if definition.vectors == "none":
        m = choose_m(sample.shape[1], definition.pq_m, definition.pq_nbits)
        pq_codebook = train_pq(sample, m, bits=definition.pq_nbits, seed=definition.seed, threads=threads)
    to_shard = group_partitions(codebook, np.bincount(labels, minlength=partitions), shards)
    curve = measure_routing(sample, labels, codebook, to_shard, definition.metric, seed=definition.seed)
    return Layout(codebook, to_shard, shards, pq_codebook, curve)


def measure_routing(
    sample: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int32],
    codebook: npt.NDArray[np.float32],
    to_shard: npt.NDArray[np.uint32],
    metric: Metric,
    *,
    seed: int,
) -> str:
    """The routing curve: the share of the 10 nearest rows that lie in the shards near a query; "" where all are
    searched.

    As `icepuffin.ops.recall_curve` keeps it.

    Neighbours are those in the sample, farther away than the table's own: the loss is rather over- than understated.
    Inner product has no near centroids.
    """
    count = min(ROUTING_QUERIES, len(sample) // MEASURED_K - 1)
    if to_shard.max(initial=0) == 0 or metric is Metric.INNER_PRODUCT or count < 1:
        return ""
    query_rows = np.sort(np.random.default_rng([seed, 2]).choice(len(sample), count, replace=False))
    others = np.ones(len(sample), np.bool_)
    others[query_rows] = False
    nearest, _ = exact_top_k(sample[query_rows], sample, MEASURED_K, metric, is_live=others)
    shard_centroids = ShardCentroids.of(codebook, to_shard)
    ratios = shard_centroids.distances(sample[query_rows])
    ratios = ratios / np.maximum(ratios.min(axis=1, keepdims=True), np.float32(1e-12))
    neighbor_shards = to_shard[labels[nearest]]
    places = np.minimum(np.searchsorted(shard_centroids.shards, neighbor_shards), len(shard_centroids.shards) - 1)
    of_neighbor = np.take_along_axis(ratios, places, axis=1)
    of_neighbor[shard_centroids.shards[places] != neighbor_shards] = 0  # no centroid leads there: it is always probed
    points = [
        Reach(slack, float((ratios <= 1 + slack).sum(axis=1).mean()), float((of_neighbor <= 1 + slack).mean()))
        for slack in PROBE_SLACKS
    ]
    return encode([point for point in points if point.shards < ratios.shape[1]])


def draw_sample(plan: VersionPlan, storage: StorageConfig) -> npt.NDArray[np.float32]:
    """Prepared vectors f32[n, D] of random rows of random files; of a small table all that there are.

    Memory: the sample and one batch of rows. At most four times as many vectors are read as are kept.
    """
    rng = np.random.default_rng(plan.definition.seed)
    element_type = element_type_of(plan.schema, plan.field_id)
    total = plan.live.record_count
    full_size = sample_size(total)
    share = full_size / max(1, min(total, 4 * full_size))
    sample = np.empty((0, 1), np.float32)
    filled = 0
    files = [plan.live.files[number] for number in rng.permutation(len(plan.live.files))]
    for file, deleted in deleted_in_turn(lambda path: open_storage(path, storage), files):
        store = open_storage(file.path, storage)
        for batch in read_live(store, file, plan.schema, [plan.field_id], deleted=deleted):
            positions, column = with_vector(batch)
            size = len(positions)
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
