"""Indexes of a table: create, list, load and drop their definitions, which are table properties."""

import logging
from collections.abc import Mapping
from dataclasses import fields
from dataclasses import replace as with_fields
from difflib import get_close_matches
from typing import Any

from pyiceberg.table import Table

from icepuffin.ops.binding import bindings
from icepuffin.ops.binding.bound_versions import index_versions, own_tag_target, own_tags
from icepuffin.ops.binding.catalog_trial import require_bindable
from icepuffin.ops.binding.commit import reload_table, require_clock
from icepuffin.ops.binding.files_folder import FOLDER_PROPERTY, folder_of
from icepuffin.ops.catalog.read_restrictions import require_table
from icepuffin.ops.errors import require_type
from icepuffin.ops.index.definitions.definition_columns import resolve_field, with_column_ids
from icepuffin.ops.index.definitions.index_definition import (
    DefinitionError,
    IndexDefinition,
    find_name_clash,
    from_properties,
    index_of_property,
)
from icepuffin.ops.index.versions.tuning_record import PREFIX, forget_record
from icepuffin.ops.table.blob_kind import index_tag, pack_tag
from icepuffin.ops.table.snapshots import table_name

_log = logging.getLogger(__name__)


def list_definitions(table: Table) -> tuple[IndexDefinition, ...]:
    """The indexes that a table's properties define, without those of `refused_definitions`, of which a warning is
    logged: a later release, or whoever mistyped a property, keeps no other index back.
    """
    definitions, refused = _understood(table)
    for error in refused.values():
        _log.warning("%s", error)
    return tuple(definitions)


def refused_definitions(table: Table) -> dict[str, DefinitionError]:
    """The errors of the indexes whose definition this release does not understand, by name."""
    return _understood(table)[1]


def _understood(table: Table) -> tuple[list[IndexDefinition], dict[str, DefinitionError]]:
    """(definitions by name, errors of the indexes that have none which this release understands)."""
    definitions: list[IndexDefinition] = []
    refused: dict[str, DefinitionError] = {}
    for name in sorted({name for key in table.properties if (name := index_of_property(key)) is not None}):
        try:
            definitions += filter(None, [find_definition(table, name)])
        except DefinitionError as error:
            refused[name] = error
    return definitions, refused


def _parsed(table: Table, properties: Mapping[str, str]) -> tuple[IndexDefinition, ...]:
    try:
        return from_properties(properties)
    except DefinitionError as error:
        raise DefinitionError(
            f"{table_name(table)}: {error}. Leave it to a later release that has set it; else set it right, or drop "
            "the index"
        ) from None


def load_definition(table: Table, name: str) -> IndexDefinition:
    """One definition. Raises DefinitionError naming those that exist."""
    definition = find_definition(table, name)
    if definition is None:
        names = ", ".join(defined_names(table)) or "none"
        raise DefinitionError(f"{table_name(table)} has no index {name!r}; it has: {names}")
    return definition


def find_definition(table: Table, name: str) -> IndexDefinition | None:
    """One definition, whatever the others are like; None where there is none. Raises DefinitionError where broken."""
    properties = {key: value for key, value in table.properties.items() if index_of_property(key) == name}
    return next(iter(_parsed(table, properties)), None)


def defined_names(table: Table) -> tuple[str, ...]:
    """Names of the indexes that the table's properties define, broken definitions included."""
    return tuple(sorted({name for key in table.properties if (name := index_of_property(key))}))


def only_index(table: Table) -> str:
    """Name of the table's index, where it has one. Raises DefinitionError."""
    names = defined_names(table)
    if len(names) == 1:
        return names[0]
    if not names:
        raise DefinitionError(
            f"{table_name(table)} has no index; make one with icepuffin.create_index(table, name=..., column=...) and "
            "icepuffin.refresh(table), or search without one by icepuffin.open_exact"
        )
    raise DefinitionError(f"{table_name(table)} has several indexes, name one: {', '.join(names)}")


def create_index(
    table: Table,
    definition: IndexDefinition | None = None,
    *,
    replace: bool = False,
    name: str | None = None,
    column: str | None = None,
    **parameters: Any,
) -> IndexDefinition:
    """Define an index of a table: write its definition into the table's properties. No version is built.

    With `replace`, an index that is there already takes over the parameters that its graphs do not depend on.

    Parameters
    ----------
    table : pyiceberg.table.Table
        The table. It is read anew from its catalog first.
    definition : IndexDefinition, optional
        Name, column, metric and parameters. Default: what is given by name.
    replace : bool
        Whether an index of that name with other parameters is changed; what `definition` does not name becomes the
        default. Default: it is an error.
    name : str, optional
        Name of the index, without a `definition`.
    column : str, optional
        The vector column, without a `definition`.
    parameters : optional
        `metric`, `filters`, `include` and all others of `IndexDefinition`, without a `definition`.

    Returns
    -------
    IndexDefinition
        The same, with the id of the column's field.

    Raises
    ------
    DefinitionError
        The column cannot be indexed, the name is taken, or the index is there with other parameters, and `replace` is
        False or its graphs would have to be others. Or there is no such parameter.
    UnsupportedCatalogError, UnsupportedFormatError, TagTakenError
        No version could ever be published: the catalog, the table's format, or a tag of the user's stands against it.
    StorageError
        The store takes no file of icepuffin beside the table.

    Examples
    --------
    >>> words = ["name", "description"]
    >>> icepuffin.create_index(table, name="embedding", column="embedding", metric="cosine", text=words).field_id
    5
    """
    require_table(table, "create_index")
    definition = _definition(definition, {"name": name, "column": column} | parameters)
    reload_table(table)
    current = find_definition(table, definition.name)
    resolved = _resolved(table, definition, current)
    folder = require_bindable(table)
    own_tag_target(table, definition.tag)
    if current is not None and not replace and (changes := _changes(current, resolved)):
        raise DefinitionError(
            f"{table_name(table)} has an index {definition.name!r} already, which would change: {changes}. Pass "
            "replace=True (in SQL: CREATE OR REPLACE INDEX), or take another name"
        )
    properties = {} if folder is folder_of(table) else {FOLDER_PROPERTY: folder.value}
    if current != resolved or properties:
        require_clock(table)
        with table.transaction() as transaction:
            if current is not None and (dropped := current.to_properties().keys() - resolved.to_properties().keys()):
                transaction.remove_properties(*dropped)
            transaction.set_properties(resolved.to_properties() | properties)
    return resolved


def _definition(definition: IndexDefinition | None, parameters: Mapping[str, Any]) -> IndexDefinition:
    """The definition that is given as one or by its parameters."""
    if definition is None:
        known = [item.name for item in fields(IndexDefinition) if not item.name.endswith(("_id", "_ids"))]
        if unknown := [key for key in parameters if key not in known]:
            alike = get_close_matches(unknown[0], known, n=1)
            raise DefinitionError(
                f"an index has no parameter {unknown[0]!r}{f' (there is {alike[0]})' if alike else ''}; it has: "
                f"{', '.join(known)}"
            )
        return IndexDefinition(**parameters)
    require_type(
        definition,
        IndexDefinition,
        "create_index takes an IndexDefinition",
        'write create_index(table, name="i", column="embedding")',
    )
    if given := [key for key, value in parameters.items() if value is not None]:
        raise DefinitionError(f"index {definition.name}: {given[0]} is given beside a definition: give it there alone")
    return definition


def index_changes(table: Table, definition: IndexDefinition) -> str:
    """What `create_index` with `replace` would change of an index that is there, in words; empty where nothing.

    Raises DefinitionError where the definition is refused. Reads the metadata that `table` shows.
    """
    current = find_definition(table, definition.name)
    return "" if current is None else _changes(current, _resolved(table, definition, current))


def _changes(current: IndexDefinition, requested: IndexDefinition) -> str:
    """Parameters of an index that would be others, in words; a column that was made anew under its name is none."""
    names = (field.name for field in fields(current) if not field.name.endswith(("_id", "_ids")))
    pairs = ((name, getattr(current, name), getattr(requested, name)) for name in names)
    return ", ".join(
        f"{name} {_shown(before)} becomes {_shown(after)}" for name, before, after in pairs if before != after
    )


def _shown(value: object) -> str:
    return (", ".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)


def _resolved(table: Table, definition: IndexDefinition, current: IndexDefinition | None) -> IndexDefinition:
    """The definition with the field ids of the table's columns; `current`: the index of its name that is there.

    Raises DefinitionError where the definition is refused.
    """
    if current is None:
        return new_definition(table, definition)
    if current.method != definition.method:
        definition.require_meaning()
    resolved = _with_field_ids(table, definition)
    if other := _other_graphs(current, resolved):
        raise DefinitionError(
            f"{table_name(table)} has an index {definition.name!r} already, with {other}; drop it, or take another name"
        )
    return resolved


def new_definition(table: Table, definition: IndexDefinition) -> IndexDefinition:
    """The definition as an index gets it that the table does not have: with the field ids of the table's columns.

    Raises DefinitionError where `create_index` refuses the definition. Nothing is written.
    """
    definition.require_meaning()
    pairs = (find_name_clash((name, definition.name)) for name in defined_names(table))
    if pair := next(filter(None, pairs), None):
        raise DefinitionError(
            f"{table_name(table)} has an index {pair[0]!r}, which is one with {pair[1]!r} in Dagster: take a name that "
            "differs in more than '.' and '_'"
        )
    return _with_field_ids(table, definition)


def _with_field_ids(table: Table, definition: IndexDefinition) -> IndexDefinition:
    field_id = resolve_field(definition, table.schema(), table_name(table))
    return with_fields(with_column_ids(definition, table.schema(), table_name(table)), field_id=field_id)


def _other_graphs(current: IndexDefinition, requested: IndexDefinition) -> str:
    """Parameters of `current` that graphs depend on and that `requested` has otherwise; empty where there are none."""
    if current.field_id is None and current.column == requested.column:  # set by hand
        current = with_fields(current, field_id=requested.field_id)
    current_identity, requested_identity = current.graph_identity(), requested.graph_identity()
    return ", ".join(
        f"{key} {value}" for key, value in current_identity.items() if value != requested_identity.get(key)
    )


def _droppable_tags(table: Table, name: str) -> list[str]:
    """Tags of an index, without those on packs of versions that a ref of the table's owner points at: these stay."""
    our_tags = own_tags(table, index_tag(name))
    kept = (version for version in index_versions(table, name) if not our_tags.issuperset(version.tags))
    return sorted(our_tags - {pack_tag(name, pack.holder_id) for version in kept for pack in version.packs})


def drop_index(table: Table, name: str) -> tuple[str, ...]:
    """Drop an index: its definition, its tags and its tuning. Refs that icepuffin did not make stay, whatever their
    names.

    The files go when Iceberg expires their snapshots, or with the next garbage collection after that.

    Parameters
    ----------
    table : pyiceberg.table.Table
        The table. It is read anew from its catalog first.
    name : str
        Name of the index.

    Returns
    -------
    tuple of str
        The tags that were dropped.

    Raises
    ------
    DefinitionError
        The table has no definition, no tuning and no tag of that name.

    Examples
    --------
    >>> icepuffin.drop_index(table, "embedding")
    ('ann_embedding',)
    """
    require_table(table, "drop_index")
    reload_table(table)
    keys = [key for key in table.properties if index_of_property(key) == name or key == PREFIX + name]
    if not keys and not _droppable_tags(table, name):
        load_definition(table, name)
    if keys:
        require_clock(table)
        with table.transaction() as transaction:
            transaction.remove_properties(*keys)
    dropped: list[str] = []
    while tags := _droppable_tags(table, name):  # a run that has not ended may publish a version meanwhile
        dropped += bindings.drop(table, *tags)
    forget_record(table, name)  # one that was kept meanwhile
    return tuple(dropped)
