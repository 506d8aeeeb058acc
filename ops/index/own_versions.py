"""The versions of an index as it is defined now, from the table's metadata. Reads no file."""

from contextlib import suppress

from pyiceberg.table import Table

from icepuffin.ops.catalog.bound_versions import DerivedVersion, index_versions
from icepuffin.ops.index.ddl import find_definition
from icepuffin.ops.index.definition import DefinitionError, IndexDefinition


def versions_of(table: Table, definition: IndexDefinition) -> tuple[DerivedVersion, ...]:
    """The versions of an index in the table's metadata, oldest first, tagged or not, without those that an index of
    other distances has left, which had the name and was dropped.

    By the table's own definition, where it has one: `definition` may have been read long ago. A version of an older
    release, whose summary does not have its distances, is taken for one of the index.
    """
    versions = index_versions(table, definition.name)
    with suppress(DefinitionError):  # one of the table's that is broken builds no versions
        definition = find_definition(table, definition.name) or definition
    field_id = definition.field_id
    if field_id is None:
        field_id = next((field.field_id for field in table.schema().fields if field.name == definition.column), None)
    if field_id is None:
        return versions
    own = distances_text(definition, field_id)
    return tuple(version for version in versions if version.distances in (own, ""))


def distances_text(definition: IndexDefinition, field_id: int) -> str:
    """What decides the answers of a version, as text for its summary."""
    return f"{field_id} {definition.metric} {definition.element_type} {definition.method}"
