"""Sizes of what an index is made of, from counts alone."""

import math

import numpy as np

from icepuffin.ann_kernels.codes.code_sizes import choose_m, code_bytes, rotated_bytes
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.versions.index_packs import MAX_SHARDS
from icepuffin.ops.messages import readable_share
from icepuffin.ops.process.large_arrays import LARGEST_IN_MEMORY
from icepuffin.ops.tasks.file_balls import MAX_BALLS
from icepuffin.ops.tasks.task_runner import SHARD_MEMORY_FACTOR, node_bytes
from icepuffin.puffin.blobs.cells_blob import row_bytes
from icepuffin.puffin.blobs.routing_blob import ShardEntry
from icepuffin.puffin.types import MAX_BLOB_BYTES

SAMPLE_SHARE = 0.01
SMALLEST_SAMPLE = 20_000
LARGEST_SAMPLE = 200_000
IMBALANCE = 1.5
"""Rows of the largest shard of a build, as a multiple of the mean"""
SHARD_BYTES = 512 * 1024**2
"""Vectors and adjacency of one shard, on average: small enough for any executor, and opened in a second or two"""
MANY_SHARDS = 512
"""Number of shards above which shards get larger, as each search compares its query with all centroids"""
LARGEST_SHARD_MEMORY = 4 * 1024**3
"""Memory that making a shard takes, up to which they get larger"""
OUTGROWN = 4
"""Shards of a new build per shard of an index, from more than which on the index is built anew"""
ADDRESS_BYTES = 20
"""Bytes per row of address and content hash"""
EDGE_BYTES = 1.6
"""Bytes per edge, as encoded, on average"""
_FIXED_BYTES = 4096
"""Bytes of header, section table and gaps"""
_BYTES_PER_NODE = 8 + 20 + 5
"""Bytes per node of content hash, address and offset of its edges, at most"""
_BYTES_IN_DIRECTORY = 8
"""Bytes per node of the directory of cells, and of the levels of their codes, beside the node's own bytes"""
_BYTES_PER_EDGE = 4
"""Bytes per edge, at most, as a shard has fewer than 2^28 nodes"""

BALL_BYTES = 48 * 1024**2
"""Balls of all files of an index without graphs, up to which a file has more than one"""


def most_balls(files: int, dims: int) -> int:
    """Most balls of so many files in an index without graphs."""
    return max(files, BALL_BYTES // (4 * dims + 8))


def balls_per_file(files: int, dims: int) -> int:
    """Most balls of a file that is read in an index without graphs."""
    return max(1, min(MAX_BALLS, most_balls(files, dims) // max(1, files)))


def choose_shard_count(rows: int, dims: int, max_degree: int) -> int:
    """Number of shards for so many rows, by the memory that making one takes; no more than are written.

    Beyond `MANY_SHARDS` they get larger first, until making the largest one takes `LARGEST_SHARD_MEMORY`.
    """
    shards = -(-rows // rows_per_shard(dims, max_degree))
    if shards > MANY_SHARDS:
        shards = max(MANY_SHARDS, math.ceil(IMBALANCE * rows / _most_rows(dims, max_degree)))
    return max(1, min(MAX_SHARDS, shards))


def _most_rows(dims: int, max_degree: int) -> float:
    """Rows of a shard whose making takes `LARGEST_SHARD_MEMORY`, by `shard_bytes`: of vectors in a file."""
    room, neighbors = LARGEST_SHARD_MEMORY / SHARD_MEMORY_FACTOR, 4 * max_degree
    return min(room / (dims + neighbors), (room - LARGEST_IN_MEMORY) / neighbors)


def rows_per_shard(dims: int, max_degree: int) -> int:
    """Rows that one shard should have at most, of `MANY_SHARDS` or fewer, and a delta shard of any index."""
    return SHARD_BYTES // node_bytes(dims, max_degree)


def has_outgrown(definition: IndexDefinition, rows: int, dims: int, shards: int) -> bool:
    """Whether so many rows are too many for the shards of an index, so that a build with more shards is better; never
    where the definition sets the number.
    """
    new = choose_shard_count(rows, dims, definition.max_degree)
    return not definition.shards and new > OUTGROWN * shards


def max_shard_rows(definition: IndexDefinition, dims: int) -> int:
    """Rows that one shard can have at most, so that its blob is no larger than readers take. Vectors as f32 or f16 lie
    apart from it.
    """
    of_vector = code_row_bytes(definition, dims) + (_BYTES_IN_DIRECTORY if definition.cell_bits else 0)
    node = of_vector + _BYTES_PER_NODE + _BYTES_PER_EDGE * (definition.max_degree + 1)
    codebook = (4 << definition.pq_nbits) * dims if definition.vectors == "none" else 0
    return max(1, (MAX_BLOB_BYTES - _FIXED_BYTES - codebook) // node)


def why_rebuilt(definition: IndexDefinition, dims: int, entry: ShardEntry, tombstones: int, arriving: int) -> str:
    """Why a shard of so many `tombstones`, to which `arriving` rows come, is made anew; empty where it is not."""
    nodes = entry.count + arriving
    if tombstones > definition.rebuild_ratio * nodes:
        share = readable_share(tombstones / nodes)
        return f"{share} of its nodes are tombstones, over {100 * definition.rebuild_ratio:g}%"
    if (arriving and nodes > max_shard_rows(definition, dims)) or entry.length > MAX_BLOB_BYTES:
        return "it is larger than a shard may be"
    return ""


def code_row_bytes(definition: IndexDefinition, dims: int) -> int:
    """Bytes of the codes of a row in a shard, those in its cells included; 0 where it has none."""
    bits = definition.pq_nbits
    lean = code_bytes(choose_m(dims, definition.pq_m, bits), bits) if definition.vectors == "none" else 0
    rotated = rotated_bytes(dims, definition.code_bits) if definition.code_bits else 0
    return lean + rotated + cell_row_bytes(definition, dims)


def cell_row_bytes(definition: IndexDefinition, dims: int) -> int:
    """Bytes of a row in the cells of a shard; 0 where it has none."""
    return row_bytes(dims, definition.cell_bits) if definition.cell_bits else 0


def least_shards(definition: IndexDefinition, rows: int, dims: int) -> int:
    """Shards of a build, at least, so that none gets too large for its file."""
    most = max_shard_rows(definition, dims)
    return 1 if rows <= most else -(-int(IMBALANCE * rows) // most)


def sample_size(total: int) -> int:
    """How many of a table's rows make the sample."""
    return min(total, int(np.clip(total * SAMPLE_SHARE, SMALLEST_SAMPLE, LARGEST_SAMPLE)))
