"""From settings to specs: indexes of the settings file, and indexes that a table's own properties define."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyiceberg.table import Table

from icepuffin.assets.spec import TableSpec
from icepuffin.assets.table_settings import IndexSettings, TableSettings
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index import list_definitions
from icepuffin.ops.index.definition import IndexDefinition, find_name_clash
from icepuffin.ops.resources import Catalogs


def index_definition(name: str, settings: IndexSettings) -> IndexDefinition:
    return IndexDefinition(name=name, **settings.model_dump(exclude={"keep"}))


@dataclass(frozen=True, slots=True)
class PropertyIndexes:
    """The indexes that a table's own properties define."""

    definitions: tuple[IndexDefinition, ...] = ()
    unknown: str = ""
    """The error that kept the properties from being read; empty where they were."""


def indexes_of(table: Table, settings: TableSettings) -> PropertyIndexes:
    """The indexes in a loaded table's properties. Raises DefinitionError where the properties are invalid."""
    return PropertyIndexes(list_definitions(table)) if settings.indexes_from_table else PropertyIndexes()


def find_indexes(settings: TableSettings, catalogs: Catalogs) -> PropertyIndexes:
    """The indexes in a table's properties, by one call of the catalog. An error is a result, as `unknown`: the indexes
    of the settings are there all the same.
    """
    if not settings.indexes_from_table:
        return PropertyIndexes()
    try:
        return indexes_of(catalogs.poll(settings.catalog, settings.name), settings)
    except IcepuffinError as error:
        return PropertyIndexes(unknown=str(error))


def to_text(indexes: Mapping[str, PropertyIndexes]) -> str:
    """The indexes of each table as JSON, for processes that need not load the tables again."""
    document = {
        key: {"definitions": [definition.to_json() for definition in table.definitions], "unknown": table.unknown}
        for key, table in indexes.items()
    }
    return json.dumps(document)


def from_text(text: str) -> dict[str, PropertyIndexes]:
    """What `to_text` wrote."""
    return {
        key: PropertyIndexes(
            tuple(IndexDefinition.from_json(definition) for definition in table["definitions"]), table["unknown"]
        )
        for key, table in json.loads(text).items()
    }


def shown_spec(table: TableSettings, catalogs: Catalogs, indexes: PropertyIndexes | None = None) -> TableSpec:
    """The spec of one table as Dagster shows it. Of two indexes with one name there, the one of the settings is shown,
    else the first; the note names the other one.

    Others may write the table's properties, and must not keep everything else from loading.
    """
    spec = table_spec(table, catalogs, indexes)
    visible: list[IndexDefinition] = []
    hidden: list[str] = []
    for index in sorted(spec.indexes, key=lambda definition: definition.name not in table.indexes):
        pair = find_name_clash([*(definition.name for definition in visible), index.name])
        if pair is None:
            visible.append(index)
        else:
            hidden.append(f"Index '{pair[1]}' is not shown, its name and that of '{pair[0]}' are one in Dagster.")
    return replace(
        spec,
        indexes=tuple(sorted(visible, key=lambda definition: definition.name)),
        note=" ".join(filter(None, (spec.note, *hidden))),
    )


def table_spec(table: TableSettings, catalogs: Catalogs, indexes: PropertyIndexes | None = None) -> TableSpec:
    """The spec of one table. Without `indexes` its properties are read now."""
    indexes = indexes or find_indexes(table, catalogs)
    definitions = {name: index_definition(name, item) for name, item in table.indexes.items()}
    for definition in indexes.definitions:
        in_settings = definitions.get(definition.name)
        definitions[definition.name] = replace(in_settings, field_id=definition.field_id) if in_settings else definition
    note = f"Indexes in table properties are not shown: {indexes.unknown}." if indexes.unknown else ""
    return TableSpec(table, tuple(definitions[name] for name in sorted(definitions)), note)
