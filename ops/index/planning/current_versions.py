"""The versions of an index as it is defined now, from the table's metadata. Reads no file."""

from contextlib import suppress

from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import DerivedVersion, index_versions
from icepuffin.ops.index.definitions.ddl import find_definition
from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition
from icepuffin.ops.index.versions.version_format import given_up
from icepuffin.ops.model import SnapshotId


def versions_of(table: Table, definition: IndexDefinition) -> tuple[DerivedVersion, ...]:
    """The versions of an index in the table's metadata, oldest first, tagged or not, without those whose layout was
    given up, and those that an index of other distances has left, which had the name and was dropped.

    By the table's own definition, where it has one: `definition` may have been read long ago. A version whose summary
    does not have its distances is taken for one of the index.
    """
    versions = tuple(it for it in index_versions(table, definition.name) if not given_up(it.build_id))
    with suppress(DefinitionError):  # one of the table's that is broken builds no versions
        definition = find_definition(table, definition.name) or definition
    field_id = find_field_id(table, definition)
    if field_id is None:
        return versions
    distances = distances_text(definition, field_id)
    return tuple(version for version in versions if version.may_have(distances))


def why_given_up(table: Table, name: str, snapshot_id: SnapshotId) -> str:
    """Why a snapshot counts as one without a version of the index, though it has any, in words; empty where it has one
    that is read, or none.
    """
    versions = (version for version in index_versions(table, name) if version.base_snapshot_id == snapshot_id)
    faults = [given_up(version.build_id) for version in versions]
    return faults[-1] if faults and all(faults) else ""


def find_field_id(table: Table, definition: IndexDefinition) -> int | None:
    """The vector column's field id, by the table's own definition where `definition` has none, as one of the settings;
    None where that has none either, and the table no such column.
    """
    if definition.field_id is None:
        with suppress(DefinitionError):
            own = find_definition(table, definition.name)
            definition = own if own is not None and own.column == definition.column else definition
    if definition.field_id is not None:
        return definition.field_id
    return next((field.field_id for field in table.schema().fields if field.name == definition.column), None)


def distances_text(definition: IndexDefinition, field_id: int) -> str:
    """What decides the answers of a version, as text for its summary."""
    return f"{field_id} {definition.metric} {definition.element_type} {definition.method}"
