"""Proof before each publication that the nodes of a version are the rows of its snapshot.

All nodes are compared by address, and a sample by its vectors. `icepuffin.ops.index.integrity` compares all vectors.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.hashing import content_hash
from icepuffin.ops.addresses import pack
from icepuffin.ops.catalog.row_deletes import deleted_by_file
from icepuffin.ops.datafile import DataFile, LiveBatch
from icepuffin.ops.index.errors import CoverageError
from icepuffin.ops.index.plan import VersionPlan
from icepuffin.ops.model import LiveFile, ObjectRange, StorageConfig
from icepuffin.ops.storage import open_storage, relative_to
from icepuffin.ops.tasks.runner import TaskRunner, driver_runner
from icepuffin.ops.tasks.tally import NodesTask, Tally, tally_nodes
from icepuffin.ops.tasks.vectors import vectors_at, with_vector
from icepuffin.puffin.blobs import deletion_vector
from icepuffin.puffin.blobs.routing import Routing

NODES_AT_ONCE = 1 << 24
"""Nodes up to which the driver counts addresses itself: sooner than Spark starts a job"""
_FILES = 2
"""Files in the sample that were read for the version, and as many that were not"""
_ROWS = 64
"""Rows per file in the sample: the first of a row group, so that little is decoded"""


def require_rows(
    plan: VersionPlan,
    routing: Routing,
    shards: Sequence[ObjectRange],
    storage: StorageConfig,
    runner: TaskRunner,
) -> None:
    """Check that every live row has exactly one node, by its address; and for a sample of rows that the node has the
    hash of the row's vector.

    Reads location maps and hashes of the file as written, and a little of four data files. Raises CoverageError naming
    a file, StorageError, PuffinError.
    """
    where = f"{plan.live.table}, index {plan.definition.name}, snapshot {plan.live.snapshot_id}"
    slots = {file.path: slot for slot, file in enumerate(routing.files) if file.present}
    files = {relative_to(file.path, plan.live.location): file for file in plan.live.files}
    if slots.keys() != files.keys():
        odd = min(slots.keys() ^ files.keys())
        raise _refused(where, f"{odd} is live in only one of snapshot and index")
    keys, hashes, owners = _sample(plan, slots, storage)
    nodes = sum(entry.count for entry in routing.shards)
    runner = driver_runner(runner) if nodes <= NODES_AT_ONCE else runner
    dead = (deletion_vector.encode(entry.tombstones) for entry in routing.shards)
    of_shard = list(zip(shards, dead, strict=True))
    groups = max(1, min(len(of_shard), 2 * runner.parallelism))
    tasks = [
        NodesTask(tuple(of_shard[at::groups]), len(routing.files), np.unique(keys), storage, runner.task_threads)
        for at in range(groups)
    ]
    results = runner.run(tally_nodes, tasks, label="count addresses")
    tally = Tally.joined((part.tally for part in results), len(routing.files))
    for slot, file in enumerate(routing.files):
        if tally.counts[slot] != file.live_rows:
            fault = (
                f"{file.path or 'a free slot'}: {file.live_rows:,} rows are live, {tally.counts[slot]:,} have a node"
            )
            raise _refused(where, fault)
    for path, slot in slots.items():
        if _is_whole(files[path], routing.files[slot].live_rows) and tally.sums[slot] != _all_rows(files[path]):
            raise _refused(where, f"{path}: a row has two nodes and another has none")
    hash_of = dict(zip(np.concatenate([part.keys for part in results]).tolist(),
                   np.concatenate([part.hashes for part in results]).tolist(), strict=True))  # fmt: skip
    for key, wanted, owner in zip(keys.tolist(), hashes.tolist(), owners, strict=True):
        if hash_of.get(key) != wanted:
            raise _refused(where, f"{owner}: a row's node does not have its vector")


def _refused(where: str, fault: str) -> CoverageError:
    return CoverageError(
        f"{where}: {fault}. Nothing was published; run it again with --verify, and if it stays, drop the index, create "
        "it again, and report this"
    )


def _is_whole(file: LiveFile, live_rows: int) -> bool:
    """Whether all rows of the file have a node, so that their positions are known without reading."""
    return not file.deletes and live_rows == file.record_count


def _all_rows(file: LiveFile) -> np.uint64:
    tally = Tally.empty(1)
    tally.add(np.zeros(file.record_count, np.uint32), np.arange(file.record_count, dtype=np.int64))
    return np.uint64(tally.sums[0])


def _sample(
    plan: VersionPlan, slots: dict[str, int], storage: StorageConfig
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64], list[str]]:
    """(row keys u64[n], content hashes u64[n], paths) of sampled rows; the build id is the seed."""
    rng = np.random.default_rng(int(plan.build_id[:16], 16))
    read = {file.path for file in plan.added}
    new = [file for file in plan.live.files if file.path in read]
    kept = [file for file in plan.live.files if file.path not in read]
    chosen = [files[at] for files in (new, kept) for at in rng.permutation(len(files))[:_FILES].tolist()]
    seeds = rng.integers(2**31, size=len(chosen)).tolist()
    deleted = deleted_by_file(lambda path: open_storage(path, storage), chosen)

    def hashed(item: tuple[LiveFile, int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64], list[str]]:
        file, seed = item
        slot = slots[relative_to(file.path, plan.live.location)]
        positions, hashes = _first_rows(file, plan.schema, plan.field_id, seed, deleted[file.path], storage)
        return pack(slot, positions), hashes, [file.path] * len(positions)

    with ThreadPoolExecutor(2 * _FILES) as threads:
        parts = list(threads.map(hashed, zip(chosen, seeds, strict=True)))
    return (
        np.concatenate([np.empty(0, np.int64), *(keys for keys, _, _ in parts)]),
        np.concatenate([np.empty(0, np.uint64), *(hashes for _, hashes, _ in parts)]),
        [path for _, _, paths in parts for path in paths],
    )


def _first_rows(
    file: LiveFile,
    schema: Schema,
    field_id: int,
    seed: int,
    deleted: npt.NDArray[np.int64],
    storage: StorageConfig,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """(row positions, content hashes) of the live rows with a vector among the first rows of a row group."""
    opened = DataFile(open_storage(file.path, storage), file, schema, [field_id])
    group = seed % opened.groups if opened.groups else 0
    batch = opened.first(_ROWS, group) if opened.groups else None
    if batch is None:
        return np.empty(0, np.int64), np.empty(0, np.uint64)
    at = opened.start(group) + np.arange(batch.num_rows)
    live = np.flatnonzero(~np.isin(at, deleted))
    positions, column = with_vector(LiveBatch(at[live], batch.take(live)))
    if not len(positions):
        return positions, np.empty(0, np.uint64)
    return positions, content_hash(vectors_at(column, positions, file, None))
