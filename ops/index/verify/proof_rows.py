"""Rows of the table that a new version is proven by: some of the files that were read for it, some of the others."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pyiceberg.schema import Schema

from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.versions.version_format import seed_of
from icepuffin.ops.model import FileSlot, LiveFile, StorageConfig
from icepuffin.ops.rows.addresses import addresses_of
from icepuffin.ops.rows.datafile import DataFile
from icepuffin.ops.rows.vector_column import element_type_of
from icepuffin.ops.storage import open_storage, relative_to
from icepuffin.ops.table.live_rows import LiveBatch
from icepuffin.ops.table.row_deletes import deleted_by_file
from icepuffin.ops.tasks.vectors import content_hashes, prepared, vectors_at, with_vector

_FILES = 2
"""Files in the sample that were read for the version, and as many that were not"""
_ROWS = 64
"""Rows per file in the sample: the first of a row group, so that little is decoded"""


@dataclass(frozen=True, slots=True, eq=False)
class ProofRows:
    """n live rows that have a vector, all of one file."""

    path: str
    addresses: npt.NDArray[np.int64]
    """Addresses, ascending, as `addresses_of` gives them of file slots and positions"""
    hashes: npt.NDArray[np.uint64]
    """Content hashes of the vectors"""
    vectors: npt.NDArray[np.float32]
    """f32[n, D], prepared for the metric"""


def draw_rows(plan: VersionPlan, slots: Mapping[str, FileSlot], storage: StorageConfig) -> list[ProofRows]:
    """Some rows of each file that is drawn. `slots`: file slots by relative path. The build id is the seed.

    Raises VectorColumnError, DataFileError, StorageError.
    """
    rng = np.random.default_rng(seed_of(plan.build_id))
    read = {file.path for file in plan.added}
    new = [file for file in plan.live.files if file.path in read]
    kept = [file for file in plan.live.files if file.path not in read]
    chosen = [files[at] for files in (new, kept) for at in rng.permutation(len(files))[:_FILES].tolist()]
    seeds = rng.integers(2**31, size=len(chosen)).tolist()
    deleted = deleted_by_file(lambda path: open_storage(path, storage), chosen)
    metric = plan.definition.metric

    def rows_of(file: LiveFile, seed: int) -> ProofRows | None:
        slot = slots[relative_to(file.path, plan.live.location)]
        drawn = _first_rows(file, plan.schema, plan.field_id, seed, deleted[file.path], storage)
        if drawn is None:
            return None
        positions, raw = drawn
        vectors = prepared(raw, positions, file, metric)
        return ProofRows(file.path, addresses_of(slot, positions), content_hashes(raw), vectors)

    with ThreadPoolExecutor(2 * _FILES) as threads:
        return [rows for rows in threads.map(rows_of, chosen, seeds) if rows is not None]


def _first_rows(
    file: LiveFile,
    schema: Schema,
    field_id: int,
    seed: int,
    deleted: npt.NDArray[np.int64],
    storage: StorageConfig,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]] | None:
    """(row positions int64[n], vectors [n, D] as the table has them) of the live rows with a vector among the first
    rows of a row group; None where there are none.
    """
    opened = DataFile(open_storage(file.path, storage), file, schema, [field_id])
    group = seed % opened.groups if opened.groups else 0
    batch = opened.first(_ROWS, group) if opened.groups else None
    if batch is None:
        return None
    at = opened.start(group) + np.arange(batch.num_rows)
    kept = np.flatnonzero(~np.isin(at, deleted))
    positions, column = with_vector(LiveBatch(at[kept], batch.take(kept)))
    if not len(positions):
        return None
    return positions, vectors_at(column, positions, file, None, element_type_of(schema, field_id))
