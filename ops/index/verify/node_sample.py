"""Live nodes of a shard, drawn at random, and the vectors that the table has for their rows."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.model import FileSlot, LiveFile, StorageConfig
from icepuffin.ops.rows.addresses import addresses_of, rows_at
from icepuffin.ops.rows.datafile import take_rows
from icepuffin.ops.rows.vector_column import element_type_of
from icepuffin.ops.storage import open_storage
from icepuffin.ops.tasks.rows import by_file, live_nodes
from icepuffin.ops.tasks.vectors import prepared, vectors_at
from icepuffin.puffin.blobs.shard_blob import Shard

_FILES = 4
"""Data files that a shard's sample lies in, at most"""
_RUN = 16
"""Nodes per data file; their rows lie side by side, so that few row groups are read"""


def draw_nodes(shard: Shard, tombstones: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.int64]:
    """int64[n], ascending: addresses of some live nodes of a shard, at most _FILES runs of _RUN nodes each."""
    addresses = np.sort(addresses_of(shard.file_slots, shard.row_positions)[live_nodes(shard.count, tombstones)])
    rng = np.random.default_rng(seed)
    slots = rows_at(addresses)[0]
    drawn = [np.empty(0, np.int64)]
    for slot in rng.permutation(np.unique(slots))[:_FILES]:
        first, last = np.searchsorted(slots, (slot, slot + 1))
        start = int(rng.integers(first, max(first, last - _RUN) + 1))
        drawn.append(addresses[start : min(start + _RUN, last)])
    return np.sort(np.concatenate(drawn))


def vectors_of(
    addresses: npt.NDArray[np.int64],
    files: Mapping[FileSlot, LiveFile],
    schema: Schema,
    field_id: int,
    dims: int,
    metric: Metric,
    storage: StorageConfig,
) -> npt.NDArray[np.float32]:
    """f32[n, D] prepared: the vectors that the table has at addresses int64[n], which are live rows.

    Raises VectorColumnError, DataFileError, StorageError.
    """
    slots, positions = rows_at(addresses)
    out = np.empty((len(addresses), dims), np.float32)
    for slot, places in by_file(slots):
        file = files[FileSlot(slot)]
        rows = take_rows(open_storage(file.path, storage), file, schema, [field_id], positions[places])
        raw = vectors_at(
            rows.column(0).combine_chunks(), positions[places], file, dims, element_type_of(schema, field_id)
        )
        out[places] = prepared(raw, positions[places], file, metric)
    return out
