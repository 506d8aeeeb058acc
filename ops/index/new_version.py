"""The making of a version: shards, recall gate, file, proof, and the commit that binds it to its snapshot."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from pyiceberg.table import Table

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding import bindings
from icepuffin.ops.binding.bound_versions import DerivedVersion, index_versions
from icepuffin.ops.binding.catalog_trial import require_bindable
from icepuffin.ops.binding.commit import reload_table
from icepuffin.ops.binding.derived_snapshots import Binding
from icepuffin.ops.binding.errors import BindingError, LostRaceError, UnsupportedCatalogError
from icepuffin.ops.binding.files_folder import remember_folder
from icepuffin.ops.binding.joint_commit import CommitPart
from icepuffin.ops.binding.pack_upkeep import expire_packs_if_possible
from icepuffin.ops.index.balls import enclose_files
from icepuffin.ops.index.build import build_shards
from icepuffin.ops.index.definitions.ddl import defined_names, drop_index
from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition
from icepuffin.ops.index.errors import CoverageError, GateFailedError
from icepuffin.ops.index.files.assembly import Assembly, VersionFile
from icepuffin.ops.index.files.attribute_blobs import attribute_blobs
from icepuffin.ops.index.files.included_blobs import included_columns, kept_parts
from icepuffin.ops.index.planning.current_versions import distances_text
from icepuffin.ops.index.planning.dead_nodes import find_dead_nodes
from icepuffin.ops.index.planning.index_estimate import estimate
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.index.planning.rates import measurement_text
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.refresh import refresh_shards
from icepuffin.ops.index.stages import ShardSet
from icepuffin.ops.index.upkeep.outcome_reports import empty_report, new_version_report
from icepuffin.ops.index.verify.proof import require_enclosed, require_rows
from icepuffin.ops.index.versions.version_sizes import VersionSizes, graph_id
from icepuffin.ops.model import Action, StorageConfig
from icepuffin.ops.process.stage_clock import StageClock
from icepuffin.ops.recall.shard_recall import mean_recall
from icepuffin.ops.steps import RunStep, reached
from icepuffin.ops.storage import Storage, left_where_refused, open_storage
from icepuffin.ops.storage.memory_storage import memory_folder
from icepuffin.ops.table.blob_kind import LASTING_MS, SIDE_TAG_AGE_MS, BlobKind
from icepuffin.ops.table.snapshots import find_snapshot
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta.ndv import counts_for_planners
from icepuffin.ops.theta.theta_materialization import CountedSketches
from icepuffin.puffin.errors import PuffinError

_RECALL_ADVICE = {
    "none": "Codes may not tell near rows apart: keep vectors in shards (vectors = 'f32'), or raise pq_m. Else ",
    "rq4": "Codes of more bits tell near rows apart: take vectors = 'rq5', 'rq8' or 'f32'. Else ",
    "rq5": "Codes of more bits tell near rows apart: take vectors = 'rq8' or 'f32'. Else ",
    "rq8": "Codes may not tell near rows apart: keep vectors as they are (vectors = 'f32'). Else ",
    "f16": "Half precision may not tell near rows apart: keep vectors as they are (vectors = 'f32'). Else ",
    "f32": "To find more, ",
}
"""Advice on low recall, by the precision of the vectors in shards"""
_LENGTHS = 1e-17, 1e18
"""Lengths of vectors whose squares floats hold, a margin included"""


def make_version(
    run: RunContext, plan: VersionPlan, clock: StageClock, sketches: CountedSketches | None
) -> IndexReport:
    """Make and publish the version that a plan to build or to refresh is for; nothing, where no row has a vector.
    `sketches` of the snapshot are published in the same commit.

    Raises ShardTooLargeError where a shard of the base version has no room for the new rows, GateFailedError,
    CoverageError, PuffinError where the base version is damaged, ObjectMissingError where another run swept what this
    one had staged, and what the catalog, the storage and the runner raise. Nothing is published then.
    """
    table, storage = run.table, run.storage
    plan = replace(plan, folder=require_bindable(table))
    remember_folder(table, plan.folder)
    reached(RunStep.PLANNED)
    base = plan.base if plan.action is Action.REFRESHED else None
    with clock.stage("work"):
        dead = plan.dead
        if dead is None and base and plan.definition.has_graphs:
            dead = find_dead_nodes(run, plan.changes, base)
    with clock.stage("estimate"):
        expected = estimate(run, plan, dead=dead)
    kept_values = kept_parts(plan, storage)
    with memory_folder(plan.staging_prefix) as memory, Assembly(plan, storage, kept_values) as assembly:
        shard_set: ShardSet | None
        with clock.stage("work"):
            if not plan.definition.has_graphs:
                shard_set = enclose_files(run, plan)
            elif base and dead:
                shard_set = refresh_shards(run, plan, base, dead, on_kept=assembly.begin, memory=memory)
            else:
                shard_set = build_shards(run, plan)
        if shard_set is None:
            return empty_report(replace(plan, reason="no live row has a vector"), clock)
        pass_gate(plan, shard_set, has_version=bool(index_versions(table, plan.definition.name)))
        with clock.stage("work"):
            columns = attribute_blobs(run, plan, shard_set.files)
            included = included_columns(run, plan, kept_values, shard_set.files)
        reached(RunStep.MADE)
        with clock.stage("assemble"):
            reload_table(table)  # its sketches may have come meanwhile
            counts = counts_for_planners(
                table, find_snapshot(table, plan.live.snapshot_id), sketches.counts if sketches else {}
            )
            file = assembly.finish(shard_set, columns, included, counts)
        with clock.stage("verify"):
            try:
                searched = None
                if plan.definition.has_graphs:
                    searched = require_rows(run, plan, shard_set, file)
                else:
                    require_enclosed(plan, file, storage)
            except (CoverageError, PuffinError):  # the next attempt must not reuse what was staged
                sweep_staged(plan, storage)
                raise
    reached(RunStep.ASSEMBLED)
    clock.split("assemble", "copy", file.copy_seconds)
    with clock.stage("bind"):
        measurement = measurement_text(plan, shard_set, clock.stages, run.runner)
        sizes = _sizes(plan, shard_set).text() if plan.definition.has_graphs else ""
        beside = sketches.parts() if sketches else ()
        version = publish(run, plan, file, measurement=measurement, sizes=sizes, beside=beside)
        expire_packs_if_possible(table)
    return replace(new_version_report(plan, clock, shard_set, file, version), estimate=expected, self_search=searched)


def _sizes(plan: VersionPlan, shard_set: ShardSet) -> VersionSizes:
    routed = shard_set.shards[: shard_set.layout.shards]
    return VersionSizes(
        definition=graph_id(plan.definition, plan.field_id),
        dims=shard_set.layout.dims,
        shards=len(routed),
        rows=sum(shard.live_rows for shard in routed),
        largest=max((shard.count for shard in routed), default=0),
        deltas=tuple(shard.count for shard in shard_set.shards[shard_set.layout.shards :]),
        tombstones=max((len(shard.tombstones) / max(1, shard.count) for shard in shard_set.shards), default=0.0),
        fit=shard_set.fit,
    )


def pass_gate(plan: VersionPlan, shard_set: ShardSet, *, has_version: bool) -> None:
    """Raises GateFailedError, before anything is published, where recall is under the definition's target.

    A shard that stays enters by its recall when it was written: without this version its graph would be searched, too.
    """
    across, recalls = shard_set.layout.across, [(shard.written_recall, shard.live_rows) for shard in shard_set.shards]
    recall, alone = mean_recall(recalls, across.share()), mean_recall(recalls, 1.0)
    if recall is not None and recall < plan.definition.target_recall:
        why = _recall_advice(plan.definition, shard_set)
        other = plan.other_error.recall if isinstance(plan.other_error, GateFailedError) else None
        if plan.action is Action.REFRESHED and plan.other_error is None and not plan.may_build_anew:
            why = (
                f"A version that is built from nothing may find more, and up to build_anew_rows = "
                f"{plan.definition.build_anew_rows:,} rows one is built by itself: raise it. {why}"
            )
        stays = "the previous version stays" if has_version else "and the index has no version yet"
        ways = ["where it is built anew", "by a refresh"]
        if plan.action is Action.REFRESHED:
            ways.reverse()
        both = f" ({alone:.4f} in single shards)" if across.share() != 1 else ""
        both += "" if other is None else f" {ways[0]}, {other:.4f} {ways[1]}"
        advice = f"{why}raise max_degree or search_list, or lower target_recall"
        error = GateFailedError(
            f"{plan.live.table}, index {plan.definition.name}, snapshot {plan.live.snapshot_id}: "
            f"recall@10 is {recall:.4f}{both}, the target is {plan.definition.target_recall}. Nothing was published, "
            f"{stays}. {advice}"
        )
        error.recall, error.advice = recall, advice
        raise error


def _recall_advice(definition: IndexDefinition, shard_set: ShardSet) -> str:
    """What to change where recall is low, before all else."""
    length = float(np.linalg.norm(shard_set.layout.codebook.astype(np.float64), axis=1).max(initial=0))
    if definition.metric is Metric.COSINE or _LENGTHS[0] <= length <= _LENGTHS[1]:
        return _RECALL_ADVICE[definition.vectors]
    return (
        f"Vectors are about {length:.0e} long, and a graph is built by squares of floats, which end at 3e38 and vanish "
        "under 1e-38: scale the column to about 1, and queries alike. Else "
    )


def publish(
    run: RunContext,
    plan: VersionPlan,
    file: VersionFile,
    *,
    measurement: str,
    sizes: str,
    beside: Sequence[CommitPart[object]],
) -> DerivedVersion:
    """Bind the file, and `beside` in the same commit. If another run has published an equal version first, return that
    and delete this file.

    Raises LostRaceError where another version was published, DefinitionError where the index was dropped meanwhile,
    BindingError where garbage collection took a file meanwhile, and what `bindings.publish` raises.
    """
    table, store = run.table, open_storage(plan.live.location, run.storage)
    binding = Binding(
        kind=BlobKind.INDEX,
        name=plan.definition.name,
        tag=plan.tag,
        base_snapshot_id=plan.live.snapshot_id,
        build_id=plan.build_id,
        puffin_path=file.path,
        file_size=file.file_size,
        footer_size=file.footer_size,
        expected_ref=plan.expected_ref,
        max_ref_age_ms=LASTING_MS if plan.is_head else SIDE_TAG_AGE_MS,
        measurement=measurement,
        sizes=sizes,
        distances=distances_text(plan.definition, plan.field_id),
        packs=tuple(pack.holder_id for pack in file.packs),
        new_packs=file.new_packs,
    )
    try:
        _require_files(plan, binding, store)
        version = bindings.publish(table, binding, beside)
        _require_files(plan, binding, store)  # it may have been long until the commit
    except UnsupportedCatalogError as error:  # the tag went at once
        if not _is_dropped(table, plan):
            raise
        raise _dropped(plan) from error
    except LostRaceError as error:
        published = [
            item
            for item in index_versions(table, plan.definition.name)
            if item.base_snapshot_id == plan.live.snapshot_id and item.build_id == plan.build_id
        ]
        for path in (file.path, *(pack.path for pack in file.new_packs)):
            with left_where_refused():
                store.delete(path)
        if not published:
            if _is_dropped(table, plan):
                raise _dropped(plan) from error
            raise
        version = published[-1]
    with left_where_refused():
        sweep_staged(plan, run.storage)
    if _is_dropped(table, plan):
        with suppress(DefinitionError):  # whoever dropped it has seen the version, and its tags are gone
            drop_index(table, plan.definition.name)
        raise _dropped(plan)
    return version


def _require_files(plan: VersionPlan, binding: Binding, store: Storage) -> None:
    """Raises BindingError where the run took longer than the grace period of a garbage collection."""
    for path in binding.new_paths:
        if not store.exists(path):
            raise BindingError(
                f"{plan.live.table}: {path} was deleted before its version was published: the run stalled for longer "
                "than the grace period of `icepuffin gc`; run it again"
            )


def _is_dropped(table: Table, plan: VersionPlan) -> bool:
    return plan.is_defined and plan.definition.name not in defined_names(table)


def _dropped(plan: VersionPlan) -> DefinitionError:
    return DefinitionError(
        f"{plan.live.table}: index {plan.definition.name!r} was dropped while a version of it was made, which is gone "
        "too; to have the index, create it again"
    )


def sweep_staged(plan: VersionPlan, storage: StorageConfig) -> None:
    """Delete the staged objects of a plan; markers first, so that none outlives what it names.

    Objects that another run is still writing have hidden names, and are left alone.
    """
    store = open_storage(plan.live.location, storage)
    listed = store.list(plan.staging_prefix)
    paths = sorted(item.path for item in listed if not item.path.rpartition("/")[2].startswith("."))
    for are_markers in (True, False):
        store.delete_all([path for path in paths if path.endswith(".json") is are_markers])
        reached(RunStep.SWEEPING)
