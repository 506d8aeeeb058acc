"""Definitions as table properties, worn shards, and what nobody needs any more."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta

from pyiceberg.table import Table

from icepuffin.ops.catalog import bind
from icepuffin.ops.catalog.bind import STATISTICS_FILE_KEY
from icepuffin.ops.catalog.commit import refresh
from icepuffin.ops.catalog.manifest_lists import OWN_LISTS
from icepuffin.ops.catalog.snapshots import head_of, require_all_snapshots, table_name
from icepuffin.ops.catalog.versions import index_tag, own_tag_target, own_tags
from icepuffin.ops.index.clock import StageClock
from icepuffin.ops.index.definition import (
    DefinitionError,
    IndexDefinition,
    defined_by,
    from_properties,
    meeting,
    resolve_field,
)
from icepuffin.ops.index.materialize import carry_out
from icepuffin.ops.index.plan import plan_version, worn
from icepuffin.ops.index.report import GcReport, IndexReport
from icepuffin.ops.index.work import Progress
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.spark.runner import TaskRunner
from icepuffin.ops.storage import normalize, open_storage

OUR_FILES = ("ann-", "theta-")
"""Names, under metadata/, of Puffin files that icepuffin writes."""
_CUT_OFF = tuple(f".{name}" for name in OUR_FILES)
"""Of files that a killed process was writing on a local disk"""


def list_definitions(table: Table) -> tuple[IndexDefinition, ...]:
    """The indexes that a table's properties define. Raises DefinitionError for broken ones."""
    return _parsed(table, table.properties)


def _parsed(table: Table, properties: Mapping[str, str]) -> tuple[IndexDefinition, ...]:
    try:
        return from_properties(properties)
    except DefinitionError as error:
        raise DefinitionError(f"{table_name(table)}: {error}. Set it right, or drop the index") from None


def load_definition(table: Table, name: str) -> IndexDefinition:
    """One definition. Raises DefinitionError naming those that exist."""
    found = find_definition(table, name)
    if found is None:
        names = ", ".join(defined_names(table)) or "none"
        raise DefinitionError(f"{table_name(table)} has no index {name!r}; it has: {names}")
    return found


def find_definition(table: Table, name: str) -> IndexDefinition | None:
    """One definition, whatever the others are like; None where there is none. Raises DefinitionError where broken."""
    properties = {key: value for key, value in table.properties.items() if defined_by(key) == name}
    return next(iter(_parsed(table, properties)), None)


def defined_names(table: Table) -> tuple[str, ...]:
    """Of the indexes that the table's properties are about, broken or not."""
    return tuple(sorted({name for key in table.properties if (name := defined_by(key))}))


def create(table: Table, definition: IndexDefinition) -> IndexDefinition:
    """Write a definition into the table's properties, its column resolved to a field id. No version is built.

    An index that is there already takes over the knobs that graphs do not depend on. Raises DefinitionError where its
    graphs would be others, or the column cannot be indexed, and what `bind.require_bindable` raises where no version
    could ever be published, TagTakenError included.
    """
    refresh(table)
    bind.require_bindable(table)
    own_tag_target(table, definition.tag)
    field_id = resolve_field(definition, table.schema(), table_name(table))
    resolved = replace(definition, field_id=field_id)
    known = find_definition(table, definition.name)
    pairs = (meeting((name, definition.name)) for name in defined_names(table))
    if known is None and (pair := next(filter(None, pairs), None)):
        raise DefinitionError(
            f"{table_name(table)} has an index {pair[0]!r}, which is one with {pair[1]!r} in Dagster: take a name that "
            "differs in more than '.' and '_'"
        )
    if known is not None and (other := _other_graphs(known, resolved)):
        raise DefinitionError(
            f"{table_name(table)} has an index {definition.name!r} already, with {other}; drop it, or take another name"
        )
    if known != resolved:
        with table.transaction() as transaction:
            transaction.set_properties(resolved.to_properties())
    return resolved


def _other_graphs(known: IndexDefinition, wanted: IndexDefinition) -> str:
    """What of `known` graphs depend on, and is not so in `wanted`; empty where nothing is."""
    there, asked = known.graph_identity(), wanted.graph_identity()
    return ", ".join(f"{key} {value}" for key, value in there.items() if value != asked[key])


def drop(table: Table, name: str) -> tuple[str, ...]:
    """Remove the definition and tags of this very index; a ref that icepuffin did not make stays, whatever its name.

    The files go with Iceberg's own expiry, or by `collect_garbage` after it.

    -> the tags that were dropped. Raises DefinitionError where there is neither definition nor tag.
    """
    refresh(table)
    keys = [key for key in table.properties if defined_by(key) == name]
    tags = sorted(own_tags(table, index_tag("ann", name)))
    if not keys and not tags:
        load_definition(table, name)
    if keys:
        with table.transaction() as transaction:
            transaction.remove_properties(*keys)
    return bind.drop(table, *tags)


def maintain(
    table: Table,
    definition: IndexDefinition,
    *,
    runner: TaskRunner,
    storage: StorageConfig,
    watched_ref: str = "main",
    progress: Progress | None = None,
) -> IndexReport | None:
    """Rebuild the head version's shards whose tombstone ratio is over the definition's. None: nothing was due."""
    refresh(table)
    head = head_of(table, watched_ref)
    if head is None:
        return None
    plan = plan_version(table, definition, head, storage=storage, watched_ref=watched_ref)
    again = worn(plan)
    if again is None:
        return None
    return carry_out(table, again, StageClock(), runner=runner, storage=storage, progress=progress)


def collect_garbage(
    table: Table,
    *,
    storage: StorageConfig,
    grace: timedelta = timedelta(hours=24),
    dry_run: bool = False,
    expiring: Collection[int] = (),
) -> GcReport:
    """Delete our own files that no metadata references and that are older than the grace period.

    Looks only at names that icepuffin gives: staged objects, `ann-*` and `theta-*` Puffin files and manifest lists of
    derived snapshots under metadata/. A file that a snapshot or statistics entry of the table names is never touched;
    a dry run may leave out snapshots that are `expiring`. What is old is so by the store's own clock.

    Raises PartialMetadataError, and what the catalog and the store raise.
    """
    refresh(table)
    root = f"{normalize(table.metadata.location).rstrip('/')}/metadata"
    store = open_storage(root, storage)
    youngest = store.now_ms(root) - int(grace.total_seconds() * 1000)
    ours = [item for item in store.list(root) if _is_ours(normalize(item.path).removeprefix(f"{root}/"))]
    refresh(table)  # later than the list: what came to be named meanwhile stays
    require_all_snapshots(table)
    staying = [item for item in table.metadata.snapshots if item.snapshot_id not in expiring]
    referenced = {normalize(item.manifest_list) for item in staying}
    # the paper's own binding, of which others may have made one, names its file in a summary and nowhere else
    summaries = (item.summary.additional_properties for item in staying if item.summary)
    referenced |= {normalize(found[STATISTICS_FILE_KEY]) for found in summaries if STATISTICS_FILE_KEY in found}
    referenced |= {
        normalize(entry.statistics_path) for entry in table.metadata.statistics if entry.snapshot_id not in expiring
    }
    doomed, young, freed = [], 0, 0
    for item in ours:
        if normalize(item.path) in referenced:
            continue
        if item.modified_ms > youngest:
            young += 1
            continue
        doomed.append(item.path)
        freed += item.size
    if not dry_run:
        for path in doomed:
            store.delete(path)
    return GcReport(table_name(table), dry_run, tuple(sorted(doomed)), freed, young)


def _is_ours(name: str) -> bool:
    """Whether icepuffin alone gives such names, under metadata/."""
    if name.startswith(("_icepuffin/", *_CUT_OFF)):
        return True
    return (name.startswith(OUR_FILES) and name.endswith(".puffin")) or (
        name.startswith(OWN_LISTS) and name.endswith(".avro")
    )
