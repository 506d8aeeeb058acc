"""Sizes of what an index is made of, from counts alone."""

import numpy as np

from icepuffin.ann_kernels.code_sizes import choose_m, code_bytes, rotated_bytes
from icepuffin.ops.index.definition import IndexDefinition
from icepuffin.ops.index.packs import MOST_SHARDS
from icepuffin.ops.tasks.file_balls import MAX_BALLS
from icepuffin.ops.tasks.runner import node_bytes
from icepuffin.puffin.blobs.cells import row_bytes

SAMPLE_SHARE = 0.01
SMALLEST_SAMPLE = 20_000
LARGEST_SAMPLE = 200_000
IMBALANCE = 1.5
"""Rows of the largest shard of a build, as a multiple of the mean"""
SHARD_BYTES = 512 * 1024**2
"""Vectors and adjacency of one shard: small enough for one executor, and far under `MAX_BLOB_BYTES`"""
MAX_BLOB_BYTES = 2**31 - 1
"""Bytes of a blob, at most: no Java reader takes more"""
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
    """Number of shards for so many rows, by the memory that building one shard takes; no more than are written."""
    return max(1, min(MOST_SHARDS, -(-rows // rows_per_shard(dims, max_degree))))


def rows_per_shard(dims: int, max_degree: int) -> int:
    """Rows that one shard should have at most."""
    return SHARD_BYTES // node_bytes(dims, max_degree)


def max_shard_rows(definition: IndexDefinition, dims: int) -> int:
    """Rows that one shard can have at most, so that its blob is no larger than readers take."""
    bits = definition.pq_nbits
    m = choose_m(dims, definition.pq_m, bits) if definition.vectors == "none" else 0
    of_vector = {"f32": 4 * dims, "f16": 2 * dims}.get(definition.vectors, code_bytes(m, bits))
    if definition.code_bits:
        of_vector = rotated_bytes(dims, definition.code_bits)
    of_vector += cell_row_bytes(definition, dims) + _BYTES_IN_DIRECTORY if definition.cell_bits else 0
    node = of_vector + _BYTES_PER_NODE + _BYTES_PER_EDGE * (definition.max_degree + 1)
    codebook = (4 << bits) * dims if m else 0
    return max(1, (MAX_BLOB_BYTES - _FIXED_BYTES - codebook) // node)


def cell_row_bytes(definition: IndexDefinition, dims: int) -> int:
    """Bytes of a row in the cells of a shard; 0 where it has none."""
    return row_bytes(dims, definition.cell_bits) if definition.cell_bits else 0


def least_shards(definition: IndexDefinition, rows: int, dims: int) -> int:
    """Shards of a build, at least, so that none gets too large for its file."""
    return -(-int(IMBALANCE * rows) // max_shard_rows(definition, dims))


def sample_size(total: int) -> int:
    """How many of a table's rows make the sample."""
    return min(total, int(np.clip(total * SAMPLE_SHARE, SMALLEST_SAMPLE, LARGEST_SAMPLE)))
