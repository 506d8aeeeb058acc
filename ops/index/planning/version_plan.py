"""Plans: what a run is to do for a snapshot. Reads metadata and routing blobs, and vectors only if
most files are new.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from importlib.metadata import version as package_version

from pyiceberg.schema import Schema

from icepuffin.ops.binding.bound_versions import DerivedVersion, index_versions, own_tag_target
from icepuffin.ops.binding.commit import reload_table
from icepuffin.ops.binding.files_folder import FilesFolder, folder_of
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index.definitions.ddl import defined_names
from icepuffin.ops.index.definitions.definition_columns import (
    has_kept_values,
    has_plain_values,
    has_texts,
    resolve_field,
    with_column_ids,
)
from icepuffin.ops.index.definitions.index_definition import OWN_NAMES, IndexDefinition
from icepuffin.ops.index.errors import GateFailedError, LaterReleaseError, LayoutMisfitError, ShardTooLargeError
from icepuffin.ops.index.planning.changes import (
    Changes,
    changed_files,
    column_names,
    files_mapped_since,
    find_changes,
    live_rows,
    sample_new_rows,
)
from icepuffin.ops.index.planning.current_versions import distances_text
from icepuffin.ops.index.planning.dead_nodes import DeadNodes, find_dead_nodes
from icepuffin.ops.index.planning.deleted_rows import deleted_rows
from icepuffin.ops.index.versions.version_format import build_id_of
from icepuffin.ops.index.versions.version_reader import (
    ANALYZER,
    OpenVersion,
    covered_paths,
    covers_all_older_files,
    lost_packs,
    open_versions,
    shared_rows,
)
from icepuffin.ops.messages import listed
from icepuffin.ops.model import Action, FileSlot, LiveFile, LiveFiles, SnapshotId
from icepuffin.ops.process.large_arrays import NoRoomError
from icepuffin.ops.rows.analyzers import analyzer_identity
from icepuffin.ops.rows.vector_column import VectorSchema
from icepuffin.ops.storage import relative_to
from icepuffin.ops.table.blob_kind import side_tag
from icepuffin.ops.table.live_files import live_files, require_distinct_files, require_resolvable_deletes
from icepuffin.ops.table.row_deletes import fingerprint
from icepuffin.ops.table.snapshots import ancestor_ids, find_schema, head_of, require_data_snapshot, table_name
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.puffin.blobs import routing_blob

MAX_BASES = 16
"""Versions that are considered as base, at most"""
SHARED_ENOUGH = 0.5
"""Share of rows under which a build is better than a refresh"""


@dataclass(frozen=True, slots=True)
class VersionPlan:
    """What is to be done, and all that the work needs to know of the table."""

    action: Action
    reason: str
    definition: IndexDefinition
    live: LiveFiles
    schema: Schema
    field_id: int
    tag: str
    """Tag that the version is to have"""
    expected_ref: SnapshotId | None
    """Snapshot that the tag points at now; None where there is no tag"""
    is_head: bool
    build_id: str
    folder: FilesFolder
    """Folder that the version's files are to lie in"""
    is_defined: bool
    """Whether the table's properties define the index, so that no version is to stay once they do so no more"""
    column_schema: Schema
    """Schema by which kept and included columns are read: at the head the table's own, as readers do"""
    base: OpenVersion | None = None
    """Base version that a refresh starts from"""
    existing: DerivedVersion | None = None
    """Version to reuse"""
    changes: Changes = field(default_factory=Changes)
    """Changes since the base version; for a build all files are added"""
    dead: DeadNodes | None = None
    """Nodes of the base version without a row, where their number decided; None where they were not looked for"""
    shared_fraction: float | None = None
    """Share of the rows in files that are read that the base version has, by a sample; None where none was taken"""
    other_error: IcepuffinError | None = None
    """Error of the other way, a refresh before this build or a build before this refresh; None where none was tried"""
    apart: str = ""
    """What this run alone stages under; empty where it shares what is staged with other runs of the same work"""

    @property
    def may_build_anew(self) -> bool:
        """Whether it is a refresh in place of which all rows may be indexed anew, by its own decision."""
        is_first = self.action is Action.REFRESHED and self.other_error is None
        return is_first and self.live.record_count <= self.definition.build_anew_rows

    @property
    def files_prefix(self) -> str:
        """Prefix of the version's files and of its packs."""
        return f"{self.live.location}/{self.folder}/ann-{self.definition.name}"

    @property
    def staging_prefix(self) -> str:
        """Prefix of all objects that are staged for the version. Java's cleaners skip it; `icepuffin gc` does not.

        Indexes that differ in name alone have one build id: each sweeps its own objects only.
        """
        return f"{self.live.location}/{self.folder.staging}/{self.definition.name}/{self.apart}{self.build_id}"

    @property
    def filter_ids(self) -> tuple[int, ...]:
        """Field ids of the columns for conditions that have values in the snapshot."""
        present = {field.field_id for field in self.column_schema.fields if has_kept_values(field)}
        return tuple(field_id for field_id in self.definition.filter_ids or () if field_id in present)

    @property
    def include_ids(self) -> tuple[int, ...]:
        """Field ids of the included columns that have values in the snapshot."""
        present = {field.field_id for field in self.column_schema.fields if has_plain_values(field)}
        return tuple(field_id for field_id in self.definition.include_ids or () if field_id in present)

    @property
    def text_ids(self) -> tuple[int, ...]:
        """Field ids of the columns of texts that the snapshot has."""
        present = {field.field_id for field in self.column_schema.fields if has_texts(field)}
        return tuple(field_id for field_id in self.definition.text_ids or () if field_id in present)

    @property
    def added(self) -> tuple[LiveFile, ...]:
        """Files whose rows are to be read"""
        return self.changes.added

    @property
    def column_names(self) -> list[str] | None:
        """Names of the vector column in files without field ids; None where the table has no name mapping."""
        names = column_names(self.live, self.field_id)
        return None if names is None else sorted(names)


def plan_version(
    run: RunContext, definition: IndexDefinition, snapshot_id: SnapshotId, *, verify: bool = False
) -> VersionPlan:
    """Read the table and decide what to do for a snapshot.

    verify: use a version as base, or reuse it, only after its whole file was read and found intact, and all rows of its
    snapshot were compared with its nodes. This is always done where no version has a tag, as after `index drop`. With
    `verify` no row is matched by its lineage.

    Raises the errors of bad input (unknown snapshot, dropped or re-typed column, equality deletes), PuffinError where a
    version that was not verified turns out to be damaged, and LaterReleaseError where one of a later release would be
    replaced.
    """
    table, storage = run.table, run.storage
    reload_table(table)
    require_data_snapshot(table, snapshot_id)
    plan = _build_plan(run, definition, snapshot_id)
    definition, live = plan.definition, plan.live
    if plan.field_id not in {field.field_id for field in plan.schema.fields}:
        return replace(plan, action=Action.EMPTY, reason=f"the snapshot has no column {definition.column!r} yet")
    versions = index_versions(table, definition.name)
    # without any tag the index was dropped, which is what users do about a broken version
    must_verify = verify or not any(version.tags for version in versions)
    ancestors = ancestor_ids(table, snapshot_id)
    distances = distances_text(definition, plan.field_id)
    nearest = nearest_first(versions, snapshot_id, live.sequence_number, distances, ancestors)

    def faults(version: DerivedVersion) -> tuple[str, ...]:
        if not must_verify:
            return ()
        from icepuffin.ops.index.verify.integrity import check_integrity  # noqa: PLC0415  numba, which few plans need

        return check_integrity(run, version).faults

    fitting = [version for version in nearest if version.may_have(distances)]  # others have graphs of other vectors
    opened, unreadable = _open_nearest(run, fitting, plan, ancestors, faults)
    candidates = [item for item in opened if _same_graphs(item, definition)]
    existing = next((item for item in candidates if item.bound.base_snapshot_id == snapshot_id), None)
    if (
        existing
        and not _missing_columns(existing, plan)
        and not files_mapped_since(table, existing, live, plan.schema, storage)
    ):
        return _reuse(plan, existing, _tagged_otherwise(plan, opened))
    if not live.record_count:
        return replace(plan, action=Action.EMPTY, reason="the snapshot has no rows")
    # after a rewrite no version shares a file; then the last one of the snapshot's own ancestors is the most similar
    base = max(
        candidates,
        key=lambda item: (shared_rows(item, live)[0], item.bound.base_snapshot_id in ancestors),
        default=None,
    )
    if base is not None and not definition.has_graphs:
        plan = _refresh_balls(run, plan, base)
    elif base is not None:
        plan = _refresh_or_build(run, plan, base, lineage=not verify)
    elif unreadable:
        plan = replace(plan, reason=f"no version can be read: {unreadable[0]}")
    elif nearest:
        plan = replace(plan, reason="the definition has changed since the versions there are")
    repeated = "" if base is None else _tagged_otherwise(plan, opened)
    return replace(plan, build_id=_build_id(plan), reason=plan.reason + repeated)


def _missing_columns(version: OpenVersion, plan: VersionPlan) -> set[int]:
    """Field ids of the kept and included columns of the definition that a version lacks, and of columns of texts whose
    words it lacks, or has by another analyzer.
    """
    missing = (set(plan.filter_ids) - version.attributes.keys()) | (set(plan.include_ids) - version.included.keys())
    identity = analyzer_identity(plan.definition.analyzer) if plan.text_ids else ""
    made_so = {field_id for field_id, blob in version.texts.items() if blob.properties.get(ANALYZER) == identity}
    return missing | (set(plan.text_ids) - made_so)


def _lacking(version: OpenVersion, plan: VersionPlan) -> str:
    """A clause on the columns that a version lacks; empty where it lacks none."""
    missing = sorted(_missing_columns(version, plan))
    names = (plan.column_schema.find_column_name(field_id) or str(field_id) for field_id in missing)
    return f", which lacks values of {', '.join(names)}" if missing else ""


def _build_plan(run: RunContext, definition: IndexDefinition, snapshot_id: SnapshotId) -> VersionPlan:
    """The plan to build from all live files, without a build id."""
    table, live = run.table, live_files(run.table, snapshot_id)
    require_resolvable_deletes(live)
    require_distinct_files(live)
    schema = find_schema(table, live.schema_id)
    is_early = _comes_later(definition, schema, table.schema())
    field_id = resolve_field(definition, table.schema() if is_early else schema, table_name(table))
    is_head = head_of(table, run.ref) == snapshot_id
    tag = definition.tag if is_head else f"{definition.tag}-{snapshot_id}"
    own_tag_target(table, side_tag(definition.name))
    return VersionPlan(
        action=Action.BUILT,
        reason="there is no version to start from",
        definition=replace(with_column_ids(definition, table.schema(), table_name(table)), field_id=field_id),
        live=live,
        schema=VectorSchema.with_element_type(schema, field_id, definition.element_type),
        field_id=field_id,
        tag=tag,
        expected_ref=own_tag_target(table, tag),
        is_head=is_head,
        build_id="",
        folder=folder_of(table),
        is_defined=definition.name in defined_names(table),
        column_schema=table.schema() if is_head else schema,
        changes=Changes(added=live.files),
    )


def _comes_later(definition: IndexDefinition, then: Schema, now: Schema) -> bool:
    """Whether the column was added after the snapshot: then no row of it has a vector."""
    field_ids = {field.field_id for field in then.fields}
    named = {field.name: field.field_id for field in now.fields}
    field_id = definition.field_id or named.get(definition.column)
    return field_id in named.values() and field_id not in field_ids


def nearest_first(
    versions: Sequence[DerivedVersion],
    snapshot_id: int,
    sequence_number: int,
    distances: str,
    ancestors: Collection[SnapshotId] = (),
) -> list[DerivedVersion]:
    """The versions that are considered as base: first those of the snapshot itself, then by the distance between the
    snapshots' sequence numbers; behind all others those that are known to have other distances. The nearest one of
    `ancestors` is among them, however many versions a busy branch has.
    """

    def distance(item: DerivedVersion) -> tuple[bool, bool, int, int, int]:
        apart, differs = abs(item.base_sequence_number - sequence_number), not item.may_have(distances)
        return differs, item.base_snapshot_id != snapshot_id, apart, -item.sequence_number, -item.timestamp_ms

    nearest = nsmallest(MAX_BASES, versions, key=distance)
    own_line = (item for item in versions if item.base_snapshot_id in ancestors and item.may_have(distances))
    ancestor = min(own_line, key=distance, default=None)
    return nearest if ancestor is None or ancestor in nearest else [*nearest[:-1], ancestor]


def _same_graphs(version: OpenVersion, definition: IndexDefinition) -> bool:
    return version.definition.graph_identity() == definition.graph_identity()


def _tagged_otherwise(plan: VersionPlan, opened: Sequence[OpenVersion]) -> str:
    """A clause on the parameters of the version that has the index's tag, where they are others; empty else.

    Beside a version by this definition it shows that two define the index, each of which moves the tag to its own.
    """
    tagged = (item for item in opened if plan.is_head and plan.tag in item.bound.tags)
    other = next((item for item in tagged if not _same_graphs(item, plan.definition)), None)
    if other is None:
        return ""
    wanted, others = plan.definition.graph_identity(), other.definition.graph_identity()
    changed = [f"{name} {others.get(name)}" for name in wanted if others.get(name) != wanted[name]]
    return (
        f"; the tag was on a version with {', '.join(changed)}: if that comes again, the index is defined in two "
        "places, such as a settings file and a component"
    )


def _open_nearest(
    run: RunContext,
    versions: Sequence[DerivedVersion],
    plan: VersionPlan,
    ancestors: Collection[SnapshotId],
    faults_of: Callable[[DerivedVersion], tuple[str, ...]],
) -> tuple[list[OpenVersion], list[str]]:
    """(open versions in the given order, one line on each that cannot be read).

    Stops at the first version of an ancestor that shares at least as many files as any later one, once it has come by
    the one at the tag. Raises StorageError where the store does not answer: without a version that is whole, all its
    rows would be indexed again. Raises LaterReleaseError where a later release made the version at the tag that would
    be moved, or one of the snapshot.
    """
    definition, live = plan.definition, plan.live
    opened: list[OpenVersion] = []
    unreadable: list[str] = []
    tagged = next((version for version in versions if plan.tag in version.tags), None)
    for version in versions:
        readable, broken = open_versions(run.table, [version], run.storage, skip_unanswered=False)
        unreadable += map(str, broken)
        tagged = None if version is tagged else tagged
        is_replaced = plan.tag in version.tags or (version.tags and version.base_snapshot_id == live.snapshot_id)
        if is_replaced and (later := next((it for it in broken if isinstance(it, LaterReleaseError)), None)):
            raise LaterReleaseError(
                f"{live.table}, index {definition.name}: {later}. It stays as it is. Refresh the index by that "
                "release, or drop it and create it again to go on by this one"
            )
        if readable and (faults := lost_packs(version, run.storage) or faults_of(version)):
            readable = []
            unreadable.append(f"{version.puffin_path}: {'; '.join(listed(faults))}")
        opened += readable
        if version.base_snapshot_id not in ancestors or tagged is not None:
            continue
        exact = version.base_snapshot_id == live.snapshot_id
        if any(_same_graphs(item, definition) and (exact or covers_all_older_files(item, live)) for item in readable):
            break
    return opened, unreadable


def _reuse(plan: VersionPlan, existing: OpenVersion, repeated: str) -> VersionPlan:
    """`repeated`: what `_tagged_otherwise` gives."""
    version = existing.bound
    if plan.is_head and plan.tag not in version.tags:
        action, reason = Action.RETAGGED, f"a version of this snapshot exists; the tag pointed elsewhere{repeated}"
    else:
        action, reason = Action.REUSED, "a version of this snapshot and definition exists"
    return replace(
        plan,
        action=action,
        reason=reason,
        existing=version,
        base=existing,
        build_id=version.build_id,
        changes=Changes(),
    )


def _refresh_or_build(run: RunContext, plan: VersionPlan, base: OpenVersion, *, lineage: bool) -> VersionPlan:
    """Decide by live rows with a vector: other rows are no reason to start from a version of another model's vectors.

    `lineage`: whether rows may be matched by their lineage; else only by the hashes of their vectors.
    """
    changes = find_changes(run, base, plan.live)
    covered = covered_paths(base)
    slots = frozenset(covered.values()).difference(changes.emptied_slots)
    arriving: float = sum(file.record_count for file in changes.added)  # at most
    staying, dead = sum(base.routing.files[slot].live_rows for slot in slots), None  # at most
    if _is_in_doubt(slots, base, changes, staying, arriving):
        dead = find_dead_nodes(run, changes, base)
        staying = _live_nodes(base, dead)
    share = _share(staying, arriving, 0.0) if arriving else 1.0
    how, sampled = "rows, by data files,", None
    if share < SHARED_ENOUGH:  # compaction, or a table written anew: the rows may still be the old ones
        deleted = deleted_rows(changes.added, run.storage, run.runner)
        rows = sum(live_rows(file, deleted) for file in changes.added)
        for wide in (False, True):  # a build costs more than a closer look
            sample = sample_new_rows(
                base, changes.added, plan.schema, plan.field_id, run.storage, deleted=deleted, wide=wide
            )
            arriving, sampled = sample.with_vector * rows, sample.shared
            share = _share(staying, arriving, sampled)
            if share >= SHARED_ENOUGH and dead is None:
                dead = find_dead_nodes(run, changes, base)
                staying = _live_nodes(base, dead)
                share = _share(staying, arriving, sampled)
            if share >= SHARED_ENOUGH:
                break
        how = "vectors, by a sample,"
    if share < SHARED_ENOUGH:
        return replace(plan, reason=f"the nearest version shares only {share:.0%} of the rows: a new build is better")
    return replace(
        plan,
        action=Action.REFRESHED,
        reason=f"shares {share:.0%} of its {how} with the version of snapshot {base.bound.base_snapshot_id}"
        + _lacking(base, plan),
        base=base,
        changes=changes if lineage else replace(changes, lineage_files=()),
        dead=dead,
        shared_fraction=sampled,
    )


def _is_in_doubt(slots: frozenset[FileSlot], base: OpenVersion, changes: Changes, most: int, arriving: float) -> bool:
    """Whether the number of staying rows decides, before new rows are looked at; `most`: that number, at most."""
    rows = ((base.routing.files[slot].live_rows, len(changes.deleted.get(slot, ()))) for slot in slots)
    least = sum(max(0, live - deleted) for live, deleted in rows)  # a row without a vector may be gone
    return least < SHARED_ENOUGH * (least + arriving) and most >= SHARED_ENOUGH * (most + arriving)


def _share(staying: int, arriving: float, sampled: float) -> float:
    """Share of live rows with a vector that the version has; 0 of none. `sampled`: that of the arriving ones."""
    return (staying + arriving * sampled) / (staying + arriving) if staying + arriving else 0.0


def _live_nodes(base: OpenVersion, dead: DeadNodes) -> int:
    """Nodes of the version whose rows are still there, at their addresses."""
    return sum(entry.count - len(nodes) for entry, nodes in zip(base.routing.shards, dead.nodes, strict=True))


def _refresh_balls(run: RunContext, plan: VersionPlan, base: OpenVersion) -> VersionPlan:
    """Files with other rows are read, whatever their share: a build would read the others as well.

    Where no row stays, it is a build: the vectors may have other dimensions now.
    """
    changes = changed_files(run, base, plan.live)
    gone = frozenset(changes.emptied_slots)
    files = enumerate(base.routing.files)
    if not any(file.present and file.live_rows and slot not in gone for slot, file in files):
        return replace(plan, reason="the nearest version shares none of the rows")
    return replace(
        plan,
        action=Action.REFRESHED,
        reason=f"{len(changes.added):,} of {len(plan.live.files):,} files have other rows than in the version of "
        f"snapshot {base.bound.base_snapshot_id}{_lacking(base, plan)}",
        base=base,
        changes=changes,
    )


def _build_id(plan: VersionPlan) -> str:
    """The build id: format and sha256 of everything that the bytes depend on, decisions included.

    A retry of equal work finds what is finished. One that reads the table anew and decides otherwise finds nothing.
    """
    base = plan.base if plan.action is Action.REFRESHED else None
    identity = {
        "table": plan.live.table_uuid,
        "snapshot": plan.live.snapshot_id,
        "files": [(relative_to(file.path, plan.live.location), fingerprint(file).hex()) for file in plan.live.files],
        "names": plan.column_names,
        "definition": plan.definition.graph_identity(),
        "upkeep": (plan.definition.rebuild_ratio, plan.definition.max_deltas, plan.definition.delta_share),
        "libraries": {name: package_version(name) for name in ("icepuffin", "numpy", "numba")},
        "base": _identity(base) if base else None,
        "changes": _decided(plan.changes) if base else None,
    }
    if plan.filter_ids:
        identity["filters"] = plan.filter_ids
    if plan.include_ids:
        identity["include"] = plan.include_ids
    if plan.text_ids:
        identity["text"] = (plan.text_ids, analyzer_identity(plan.definition.analyzer))
    if plan.definition.blob_names != OWN_NAMES:
        identity["blob_names"] = plan.definition.blob_names
    return build_id_of(identity)


def _identity(base: OpenVersion) -> tuple[str, str, *tuple[bool, ...]]:
    """Identity of a base version, whose routing blob has the sha256 of each shard, and which of its packs can be
    shared.
    """
    kept = (pack.is_kept for pack in base.bound.packs)
    return base.bound.build_id, hashlib.sha256(routing_blob.encode(base.routing)).hexdigest(), *kept


def _decided(changes: Changes) -> dict[str, object]:
    return {
        "added": [file.path for file in changes.added],
        "gone": changes.emptied_slots,
        "deleted": [(slot, hashlib.sha256(rows.tobytes()).hexdigest()) for slot, rows in changes.deleted.items()],
        "left": [(slot, file.path) for slot, file in changes.lineage_files],
    }


def plan_instead(
    plan: VersionPlan, error: IcepuffinError, refresh: VersionPlan, vain: GateFailedError | None
) -> VersionPlan | None:
    """The other way to a version, where one has failed; None where there is none, or the same might succeed again.

    A build follows a refresh that is not possible, or too bad. Where it does not succeed, and only the layout no longer
    fitted, the first plan, `refresh`, is carried out with the layout that the base version has. `vain`: the error that
    a build would end with, where an earlier run has tried it.
    """
    if plan.other_error is None and plan.action is Action.REFRESHED:
        if isinstance(error, ShardTooLargeError):
            return _plan_build(plan, error.reason, error) if vain is None else None
        if isinstance(error, LayoutMisfitError):
            return _plan_build(plan, str(error), error) if vain is None else replace(refresh, other_error=vain)
        if isinstance(error, GateFailedError) and plan.may_build_anew and vain is None:
            target = plan.definition.target_recall
            return _plan_build(plan, f"a refresh has recall@10 {error.recall:.4f}, the target is {target}", error)
    if isinstance(plan.other_error, LayoutMisfitError) and (isinstance(error, NoRoomError) or not error.retryable):
        return replace(refresh, other_error=error)
    return None


def _plan_build(plan: VersionPlan, reason: str, error: IcepuffinError) -> VersionPlan:
    """A plan that builds from nothing, in place of a refresh that ended with an error."""
    build = replace(
        plan,
        action=Action.BUILT,
        reason=reason,
        base=None,
        existing=None,
        changes=Changes(added=plan.live.files),
        dead=None,
        shared_fraction=None,
        other_error=error,
    )
    return replace(build, build_id=_build_id(build))


def plan_rebuild(plan: VersionPlan) -> VersionPlan | None:
    """A plan that rebuilds the shards of the snapshot's own version that have too many tombstones.

    None where there are none, or where the snapshot has no version. The tag moves to the new version.
    """
    if plan.base is None or plan.existing is None:
        return None
    ratio = plan.definition.rebuild_ratio
    if not any(shard.tombstone_ratio > ratio for shard in plan.base.routing.shards):
        return None
    rebuild = replace(
        plan,
        action=Action.REFRESHED,
        reason=f"a shard has more than {100 * ratio:g}% tombstones",
        existing=None,
        changes=Changes(),
    )
    return replace(rebuild, build_id=_build_id(rebuild))
