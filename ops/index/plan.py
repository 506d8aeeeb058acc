"""Decides what is due for a snapshot. Reads metadata and routing blobs; vectors only where most files are new."""

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version as package_version

from pyiceberg.schema import Schema
from pyiceberg.table import Table

from icepuffin.ops.catalog.bound_versions import DerivedVersion, index_versions, own_tag_target
from icepuffin.ops.catalog.commit import refresh
from icepuffin.ops.catalog.live_files import live_files, require_distinct_files, require_positional_deletes
from icepuffin.ops.catalog.row_deletes import fingerprint
from icepuffin.ops.catalog.snapshots import head_of, lineage_ids, require_data_snapshot, table_name
from icepuffin.ops.index.changes import Changes, find_changes, known_share
from icepuffin.ops.index.definition import IndexDefinition, resolve_field
from icepuffin.ops.index.integrity import Progress, check_integrity
from icepuffin.ops.index.report import Action
from icepuffin.ops.index.version_reader import OpenVersion, covers_all_older_files, open_versions, shared_rows
from icepuffin.ops.model import LiveFile, LiveFiles, StorageConfig
from icepuffin.ops.storage import relative_to
from icepuffin.ops.tasks.runner import TaskRunner
from icepuffin.puffin.blobs import routing as routing_blob
from icepuffin.puffin.blobs.routing import UNKNOWN_SHA256

FORMAT_VERSION = 1
_BASES_LOOKED_AT = 16
_SHARED_ENOUGH = 0.5


@dataclass(frozen=True, slots=True)
class VersionPlan:
    """What is due, and all that the work needs to know of the table."""

    action: Action
    reason: str
    definition: IndexDefinition
    live: LiveFiles
    schema: Schema
    field_id: int
    tag: str
    """The tag that the version is to have"""
    expected_ref: int | None
    """Where that tag is now"""
    is_head: bool
    build_id: str
    base: OpenVersion | None = None
    """What a refresh starts from"""
    existing: DerivedVersion | None = None
    """The version to reuse"""
    changes: Changes = field(default_factory=Changes)
    """What a refresh has to follow"""
    known: float | None = None
    """Share of the rows of files new to the base that it has already, by a sample; None where none was taken"""

    @property
    def added(self) -> tuple[LiveFile, ...]:
        """Files whose rows are to be read."""
        return self.changes.added

    @property
    def live_positions_change(self) -> bool:
        """Whether a node of the base may have lost its row."""
        return bool(self.changes.gone or self.changes.deleted)


def plan_version(
    table: Table,
    definition: IndexDefinition,
    snapshot_id: int,
    *,
    storage: StorageConfig,
    watched_ref: str = "main",
    verify: bool = False,
    runner: TaskRunner | None = None,
    progress: Progress | None = None,
) -> VersionPlan:
    """Look at the table and decide. `verify`: a version is started from, or reused, only after all of its file has been
    read and found whole, and all rows of its snapshot have been compared with its nodes, by `runner`; where no version
    has a tag, as after `index drop`, this is done in any case. With `verify` no row is known by its lineage.

    Raises the typed errors of bad input: unknown snapshot, dropped or re-typed column, equality deletes; PuffinError
    where a version turns out to be damaged and nothing was verified.
    """
    refresh(table)
    require_data_snapshot(table, snapshot_id)
    live = live_files(table, snapshot_id)
    require_positional_deletes(live)
    require_distinct_files(live)
    schema = table.schemas()[live.schema_id]
    is_early = _comes_later(definition, schema, table.schema())
    field_id = resolve_field(definition, table.schema() if is_early else schema, table_name(table))
    definition = replace(definition, field_id=field_id)
    is_head = head_of(table, watched_ref) == snapshot_id
    tag = definition.tag if is_head else f"{definition.tag}-{snapshot_id}"
    plan = VersionPlan(
        action=Action.BUILT,
        reason="there is no version to start from",
        definition=definition,
        live=live,
        schema=schema,
        field_id=field_id,
        tag=tag,
        expected_ref=own_tag_target(table, tag),
        is_head=is_head,
        build_id="",
        changes=Changes(added=live.files),
    )
    if is_early:
        return replace(plan, action=Action.EMPTY, reason=f"the snapshot has no column {definition.column!r} yet")
    known = index_versions(table, definition.name)
    # where no version has a tag the index was dropped, which is the remedy for one that is broken
    looked_through = verify or not any(version.tags for version in known)
    lineage = lineage_ids(table, snapshot_id)
    near = _nearest_first(known, live)

    def faults(version: DerivedVersion) -> tuple[str, ...]:
        if not looked_through:
            return ()
        return check_integrity(table, version, storage, runner=runner, progress=progress).faults

    opened, unreadable = _open_near(near, definition, live, lineage, storage, faults)
    candidates = [item for item in opened if _alike(item, definition)]
    if existing := next((item for item in candidates if item.version.base_snapshot_id == snapshot_id), None):
        return _reuse(plan, existing)
    if not live.record_count:
        return replace(plan, action=Action.EMPTY, reason="the snapshot has no rows")
    # after a rewrite no version shares a file: then the last one of the snapshot's own lineage is most alike
    base = max(
        candidates,
        key=lambda item: (shared_rows(item, live), item.version.base_snapshot_id in lineage),
        default=None,
    )
    if base is not None:
        plan = _refresh_or_build(table, plan, base, storage, lineage=not verify)
    elif unreadable:
        plan = replace(plan, reason=f"no version can be read: {unreadable[0]}")
    elif opened:
        plan = replace(plan, reason="the definition has changed since the versions there are")
    return replace(plan, build_id=_build_id(plan))


def _comes_later(definition: IndexDefinition, then: Schema, now: Schema) -> bool:
    """Whether the table has the column by now, and the snapshot has not: no row of it has a vector."""
    known = {field.field_id for field in then.fields}
    named = {field.name: field.field_id for field in now.fields}
    field_id = definition.field_id or named.get(definition.column)
    return field_id in named.values() and field_id not in known


def _nearest_first(known: Sequence[DerivedVersion], live: LiveFiles) -> list[DerivedVersion]:
    """Those of this very snapshot, then those of the snapshots before and after it, whenever they were made."""

    def distance(item: DerivedVersion) -> tuple[bool, int, int, int]:
        apart = abs(item.base_sequence_number - live.sequence_number)
        return item.base_snapshot_id != live.snapshot_id, apart, -item.sequence_number, -item.timestamp_ms

    return sorted(known, key=distance)[:_BASES_LOOKED_AT]


def _alike(version: OpenVersion, definition: IndexDefinition) -> bool:
    return version.definition.graph_identity() == definition.graph_identity()


def _open_near(
    known: Sequence[DerivedVersion],
    definition: IndexDefinition,
    live: LiveFiles,
    lineage: Collection[int],
    storage: StorageConfig,
    faults_of: Callable[[DerivedVersion], tuple[str, ...]],
) -> tuple[list[OpenVersion], list[str]]:
    """Versions in the order given, up to the first of the snapshot's lineage that no later one can be better than; and
    what could not be read.
    """
    opened: list[OpenVersion] = []
    unreadable: list[str] = []
    for version in known:
        found, broken = open_versions([version], storage)
        if found and (faults := faults_of(version)):
            found, broken = [], (f"{version.puffin_path}: {'; '.join(faults)}",)
        unreadable += broken
        opened += found
        if version.base_snapshot_id not in lineage:
            continue
        own = version.base_snapshot_id == live.snapshot_id
        if any(_alike(item, definition) and (own or covers_all_older_files(item, live)) for item in found):
            break
    return opened, unreadable


def _reuse(plan: VersionPlan, existing: OpenVersion) -> VersionPlan:
    version = existing.version
    if plan.is_head and plan.tag not in version.tags:
        action, reason = Action.RETAGGED, "a version of this snapshot exists; the tag pointed elsewhere"
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


def _refresh_or_build(
    table: Table, plan: VersionPlan, base: OpenVersion, storage: StorageConfig, *, lineage: bool
) -> VersionPlan:
    """`lineage`: whether rows may be known by it; else by the hashes of their vectors alone."""
    share = shared_rows(base, plan.live) / plan.live.record_count
    how, known = "files", None
    if share < _SHARED_ENOUGH:  # compaction, or a table written anew: the rows may still be the old ones
        known = known_share(base, plan.live, plan.schema, plan.field_id, storage)
        share += (1 - share) * known
        how = "vectors, by a sample,"
    if share < _SHARED_ENOUGH:
        return replace(plan, reason=f"the nearest version shares only {share:.0%} of the rows: a new build is better")
    changes = find_changes(table, base, plan.live, storage)
    return replace(
        plan,
        action=Action.REFRESHED,
        reason=f"shares {share:.0%} of its {how} with the version of snapshot {base.version.base_snapshot_id}",
        base=base,
        changes=changes if lineage else replace(changes, left=()),
        known=known,
    )


def _build_id(plan: VersionPlan) -> str:
    """sha256 of everything that the bytes depend on, and of all that was decided: a retry of equal work finds what is
    finished, and one that looks at the table anew and decides otherwise finds nothing.
    """
    base = plan.base if plan.action is Action.REFRESHED else None
    identity = {
        "table": plan.live.table_uuid,
        "snapshot": plan.live.snapshot_id,
        "files": [(relative_to(file.path, plan.live.location), fingerprint(file).hex()) for file in plan.live.files],
        "definition": plan.definition.graph_identity(),
        "upkeep": (plan.definition.rebuild_ratio, plan.definition.max_deltas, plan.definition.delta_share),
        "format": FORMAT_VERSION,
        "libraries": {name: package_version(name) for name in ("icepuffin", "numpy", "numba")},
        "base": _identity(base) if base else None,
        "changes": _decided(plan.changes) if base else None,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _identity(base: OpenVersion) -> tuple[str, str, int | None]:
    """What a refresh starts from: the routing blob has the sha256 of each shard, or one of an older release has not."""
    of_shards = (shard.sha256 for shard in base.routing.shards)
    unknown = base.version.index_snapshot_id if UNKNOWN_SHA256 in of_shards else None
    return base.version.build_id, hashlib.sha256(routing_blob.encode(base.routing)).hexdigest(), unknown


def _decided(changes: Changes) -> dict[str, object]:
    return {
        "added": [file.path for file in changes.added],
        "gone": changes.gone,
        "deleted": [(slot, hashlib.sha256(rows.tobytes()).hexdigest()) for slot, rows in changes.deleted.items()],
        "left": [(slot, file.path) for slot, file in changes.left],
    }


def plan_build(plan: VersionPlan, why: str) -> VersionPlan:
    """A plan that starts from nothing, where one that starts from a version cannot be carried out."""
    changes = Changes(added=plan.live.files)
    anew = replace(plan, action=Action.BUILT, reason=why, base=None, existing=None, changes=changes, known=None)
    return replace(anew, build_id=_build_id(anew))


def plan_rebuild(plan: VersionPlan) -> VersionPlan | None:
    """A plan that rebuilds the worn shards of the snapshot's own version; None where there are none.

    Only for a snapshot that has a version. The tag moves from the old version of the snapshot to the new one.
    """
    if plan.base is None or plan.existing is None:
        return None
    ratio = plan.definition.rebuild_ratio
    if not any(shard.tombstone_ratio > ratio for shard in plan.base.routing.shards):
        return None
    again = replace(
        plan,
        action=Action.REFRESHED,
        reason=f"a shard has more than {ratio:.0%} tombstones",
        existing=None,
        changes=Changes(),
    )
    return replace(again, build_id=_build_id(again))
