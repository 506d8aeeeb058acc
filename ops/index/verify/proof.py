"""Proof before each publication that the nodes of a version are the rows of its snapshot.

All nodes are compared by address, and a sample by its vectors, which must find their rows and lie in the balls.
`icepuffin.ops.index.verify.integrity` compares all vectors.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pyiceberg.schema import Schema

from icepuffin.ops.index.errors import CoverageError
from icepuffin.ops.index.files.assembly import VersionFile
from icepuffin.ops.index.planning.dead_nodes import NODES_AT_ONCE
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.stages import ShardSet
from icepuffin.ops.index.verify.integrity import check_kept, search_shards
from icepuffin.ops.index.verify.self_search_proof import SelfSearch, fault_of
from icepuffin.ops.index.versions.version_format import seed_of
from icepuffin.ops.model import FileSlot, LiveFile, ShardId, StorageConfig
from icepuffin.ops.rows.addresses import addresses_of
from icepuffin.ops.rows.datafile import DataFile
from icepuffin.ops.rows.vector_column import element_type_of
from icepuffin.ops.storage import normalize, open_storage, relative_to
from icepuffin.ops.table.live_rows import LiveBatch
from icepuffin.ops.table.row_deletes import deleted_by_file
from icepuffin.ops.tasks.file_balls import rows_outside
from icepuffin.ops.tasks.matching.self_search import SelfSearchResult, SelfSearchTask
from icepuffin.ops.tasks.matching.tally import NodesTask, Tally, tally_nodes
from icepuffin.ops.tasks.task_runner import SMALL_WORK, RunContext, driver_runner
from icepuffin.ops.tasks.vectors import content_hashes, prepared, vectors_at, with_vector
from icepuffin.puffin import PuffinReader
from icepuffin.puffin.blobs import centroid_blob, deletion_vector_blob
from icepuffin.puffin.types import BlobType, canonical_type

CHECK_INTERVAL = 16
"""Refreshes in which each shard that stays is read whole, once"""
_ONE_BYTE_IN = 10
"""Bytes of written shards per byte that is read again to be searched"""
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


def require_rows(run: RunContext, plan: VersionPlan, shard_set: ShardSet, file: VersionFile) -> SelfSearch:
    """Check that every live row has exactly one node, by its address; and for a sample of rows that the node has the
    hash of the row's vector, that the vector lies in a ball of its file, and that a search by it returns the row.

    Reads location maps and hashes of the file as written, sampled rows of a few data files (`draw_rows`), and the
    shards that are searched (`_searched_shards`). Raises CoverageError naming a file, StorageError, PuffinError.
    """
    where = f"{plan.live.table}, index {plan.definition.name}, snapshot {plan.live.snapshot_id}"
    routing = file.routing
    slots = {covered.path: FileSlot(slot) for slot, covered in enumerate(routing.files) if covered.present}
    files = {relative_to(file.path, plan.live.location): file for file in plan.live.files}
    if slots.keys() != files.keys():
        unmatched_path = min(slots.keys() ^ files.keys())
        raise _coverage_error(where, f"{unmatched_path} is live in only one of snapshot and index")
    rows = draw_rows(plan, slots, run.storage)
    nodes = _nodes(run, file, np.concatenate([np.empty(0, np.int64), *(part.addresses for part in rows)]))
    for slot, covered in enumerate(routing.files):
        count = nodes.tally.counts[slot]
        if count != covered.live_rows:
            path = covered.path or "a free slot"
            raise _coverage_error(where, f"{path}: {covered.live_rows:,} rows are live, {count:,} have a node")
    for path, slot in slots.items():
        is_whole = _is_whole(files[path], routing.files[slot].live_rows)
        if is_whole and nodes.tally.sums[slot] != _sum_of_all_rows(files[path]):
            raise _coverage_error(where, f"{path}: a row has two nodes and another has none")
    for part in rows:
        for address, row_hash in zip(part.addresses.tolist(), part.hashes.tolist(), strict=True):
            if nodes.hash_of.get(address) != row_hash:
                raise _coverage_error(where, f"{part.path}: a row's node does not have its vector")
    _require_inside(plan, file, rows, where, run.storage)
    in_turn = _shard_in_turn(plan, shard_set)
    result, searched = _self_search(run, shard_set, file, rows, nodes, in_turn)
    if fault := fault_of(result, plan.definition.target_recall):
        raise _coverage_error(where, fault)
    if in_turn is not None and in_turn not in searched:  # a search reads all of a shard, and compares its checksums
        check_kept(file.shards[in_turn], in_turn, run.storage)
    return SelfSearch.from_result(result, shards=len(searched))


def require_enclosed(plan: VersionPlan, file: VersionFile, storage: StorageConfig) -> None:
    """Check that the version has each live file, and that sampled rows lie in the balls of their files, as written.

    Raises CoverageError naming a file, StorageError, PuffinError.
    """
    where = f"{plan.live.table}, index {plan.definition.name}, snapshot {plan.live.snapshot_id}"
    slots = {covered.path: FileSlot(slot) for slot, covered in enumerate(file.routing.files) if covered.present}
    if unmatched := slots.keys() ^ {relative_to(live.path, plan.live.location) for live in plan.live.files}:
        raise _coverage_error(where, f"{min(unmatched)} is live in only one of snapshot and index")
    _require_inside(plan, file, draw_rows(plan, slots, storage), where, storage)


def _require_inside(
    plan: VersionPlan, file: VersionFile, rows: Sequence[ProofRows], where: str, storage: StorageConfig
) -> None:
    """Check that sampled rows lie in the balls of their files, as written, where these have any."""
    reader = PuffinReader(open_storage(file.path, storage).source(file.path))
    blob = next(blob for blob in reader.footer.blobs if canonical_type(blob.type) == BlobType.CENTROID)
    index = centroid_blob.decode(reader.read_blob(blob))
    numbers = {path: number for number, path in enumerate(index.files)}
    for part in rows:
        ball_numbers = np.flatnonzero(index.file_ordinals == numbers[relative_to(part.path, plan.live.location)])
        balls = list(zip(index.centroids[ball_numbers], index.max_distances[ball_numbers].tolist(), strict=True))
        if outside := balls and rows_outside(part.vectors, balls):
            fault = f"{outside} of {len(part.vectors)} rows lie outside of its balls"
            raise _coverage_error(where, f"{part.path}: {fault}")


@dataclass(frozen=True, slots=True, eq=False)
class _NodeCounts:
    """Live nodes of a version's file."""

    tally: Tally
    hash_of: Mapping[int, int]
    """Content hashes of the nodes of sampled rows, by address"""
    shard_of: Mapping[int, int]
    """Shard ids of the nodes of sampled rows, by address"""


def _nodes(run: RunContext, file: VersionFile, addresses: npt.NDArray[np.int64]) -> _NodeCounts:
    """Count the addresses of all live nodes, and look up the nodes at `addresses`."""
    routing = file.routing
    count = sum(entry.count for entry in routing.shards)
    runner = driver_runner(run.runner) if count <= NODES_AT_ONCE else run.runner
    shards = [
        (shard, deletion_vector_blob.encode(entry.tombstones))
        for shard, entry in zip(file.shards, routing.shards, strict=True)
    ]
    groups = max(1, min(len(shards), 2 * runner.parallelism))
    tasks = [
        NodesTask(
            tuple(shards[first::groups]), len(routing.files), np.unique(addresses), run.storage, runner.task_threads
        )
        for first in range(groups)
    ]
    results = runner.run(tally_nodes, tasks, label="count addresses")
    hash_of: dict[int, int] = {}
    shard_of: dict[int, int] = {}
    for first, part in enumerate(results):
        hash_of.update(zip(part.addresses.tolist(), part.hashes.tolist(), strict=True))
        shard_ids = first + groups * part.shards  # a task has each `groups`-th shard
        shard_of.update(zip(part.addresses.tolist(), shard_ids.tolist(), strict=True))
    return _NodeCounts(Tally.joined((part.tally for part in results), len(routing.files)), hash_of, shard_of)


def _self_search(
    run: RunContext,
    shard_set: ShardSet,
    file: VersionFile,
    rows: Sequence[ProofRows],
    nodes: _NodeCounts,
    in_turn: ShardId | None,
) -> tuple[SelfSearchResult, list[ShardId]]:
    """(result, ids of shards): search sampled rows by their own vectors in some shards of the file as written."""
    addresses = np.concatenate([np.empty(0, np.int64), *(part.addresses for part in rows)])
    shard_ids = np.array([nodes.shard_of[address] for address in addresses.tolist()], np.int64)
    chosen = _searched_shards(shard_set, Counter(shard_ids.tolist()), in_turn)
    vectors = np.concatenate([part.vectors for part in rows]) if chosen else np.empty((0, 0), np.float32)
    tasks = []
    for shard_id in chosen:
        of_shard = np.flatnonzero(shard_ids == shard_id)
        tombstones = deletion_vector_blob.encode(file.routing.shards[shard_id].tombstones)
        tasks.append(
            SelfSearchTask(file.shards[shard_id], tombstones, addresses[of_shard], vectors[of_shard], run.storage)
        )
    return search_shards(tasks, run.runner), chosen


def _searched_shards(shard_set: ShardSet, rows: Mapping[ShardId, int], in_turn: ShardId | None) -> list[ShardId]:
    """Ids of the shards that are searched, of those that hold sampled rows (`rows`: their number, by shard).

    Of shards that were written for this version: the ones with most rows, up to a tenth of their bytes, and one at
    least. Of shards whose graphs are the base version's: the one whose turn it is.
    """
    written = {shard.shard_id: shard.length for shard in shard_set.shards if not shard.how.keeps_bytes}
    budget = max(SMALL_WORK, sum(written.values()) // _ONE_BYTE_IN)
    chosen: list[ShardId] = []
    for shard_id in sorted(written.keys() & rows.keys(), key=lambda shard_id: (-rows[shard_id], shard_id)):
        if not chosen or written[shard_id] <= budget:
            chosen.append(shard_id)
            budget -= written[shard_id]
    return [*chosen, in_turn] if in_turn is not None and in_turn in rows else chosen


def _shard_in_turn(plan: VersionPlan, shard_set: ShardSet) -> ShardId | None:
    """The shard with the base version's graph that is read whole now: each once in CHECK_INTERVAL refreshes, or in as
    many as there are shards. To read one takes longer than most refreshes.

    So bytes that rot on a disk are noticed. Object stores check them by themselves, and charge for reads: None.
    """
    turn = seed_of(plan.build_id) % max(CHECK_INTERVAL, len(shard_set.shards))
    is_local = normalize(plan.live.location).startswith("file:")
    has_turn = is_local and turn < len(shard_set.shards) and shard_set.shards[turn].how.keeps_bytes
    return ShardId(turn) if has_turn else None


def _coverage_error(where: str, fault: str) -> CoverageError:
    return CoverageError(
        f"{where}: {fault}. Nothing was published; run it again with --verify, and if it stays, drop the index, create "
        "it again, and report this"
    )


def _is_whole(file: LiveFile, live_rows: int) -> bool:
    """Whether all rows of the file have a node, so that their positions are known without reading."""
    return not file.deletes and live_rows == file.record_count


def _sum_of_all_rows(file: LiveFile) -> np.uint64:
    """The checksum of a tally of the addresses of all rows of the file."""
    tally = Tally.empty(1)
    tally.add(np.zeros(file.record_count, np.uint32), np.arange(file.record_count, dtype=np.int64))
    return np.uint64(tally.sums[0])


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
