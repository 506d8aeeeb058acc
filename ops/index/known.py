"""Whether files that an index version has never seen hold rows that it knows: after a compaction, or after a job that
writes the whole table anew each night, most vectors are the old ones.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.hashing import content_hash
from icepuffin.ops.datafile import DataFile, VectorColumnError, vectors_from_arrow
from icepuffin.ops.index.versions import OpenVersion, same_files
from icepuffin.ops.model import LiveFile, LiveFiles, StorageConfig
from icepuffin.ops.storage import PartSource, open_storage
from icepuffin.puffin.blobs.shard import ShardReader

_FILES = 8
_ROWS_A_FILE = 64
"""The first of a row group, so that little is read and decoded"""


def known_share(base: OpenVersion, live: LiveFiles, schema: Schema, field_id: int, storage: StorageConfig) -> float:
    """Share of the vectors in files new to `base` whose content hashes it has, by a sample of at most 512.

    Reads the hashes of all shards, 8 bytes a node. Vectors that cannot be read count as unknown: the build names them.
    """
    same = frozenset(same_files(base, live).values())
    new = [file for number, file in enumerate(live.files) if number not in same]
    rng = np.random.default_rng(len(new))
    chosen = rng.permutation(len(new))[:_FILES]
    hashes = [_sample(new[number], rng, schema, field_id, storage) for number in chosen]
    sampled = np.concatenate(hashes) if hashes else np.empty(0, np.uint64)
    if not len(sampled):
        return 0.0
    store = open_storage(base.version.puffin_path, storage)
    wanted = pa.array(np.unique(sampled))
    known = [np.empty(0, np.uint64)]
    for shard in base.shards:
        theirs = ShardReader(PartSource(store, shard)).read_content_hashes()
        known.append(theirs[np.asarray(pc.is_in(pa.array(theirs), value_set=wanted))])
    return float(np.isin(sampled, np.concatenate(known)).mean())


def _sample(
    file: LiveFile, rng: np.random.Generator, schema: Schema, field_id: int, storage: StorageConfig
) -> npt.NDArray[np.uint64]:
    opened = DataFile(open_storage(file.path, storage), file, schema, [field_id])
    if not opened.groups:
        return np.empty(0, np.uint64)
    rows = opened.first(_ROWS_A_FILE, int(rng.integers(opened.groups)))
    if rows is None:
        return np.empty(0, np.uint64)
    try:
        return content_hash(vectors_from_arrow(rows.column(0).drop_null()))
    except VectorColumnError:
        return np.zeros(rows.num_rows, np.uint64)
