"""From settings to specs: index definitions of the settings file, and those that the table itself carries."""

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
class Found:
    """The indexes that a table's own properties define."""

    definitions: tuple[IndexDefinition, ...] = ()
    unknown: str = ""
    """Why they are not known, where they are not."""


def indexes_of(table: Table, settings: TableSettings) -> Found:
    """Of a table that is loaded. Raises DefinitionError where its properties make no sense."""
    return Found(list_definitions(table)) if settings.indexes_from_table else Found()


def find_indexes(settings: TableSettings, catalogs: Catalogs) -> Found:
    """One call to the catalog. One that does not answer leaves the settings' own indexes, and `unknown` says why."""
    if not settings.indexes_from_table:
        return Found()
    try:
        return indexes_of(catalogs.look(settings.catalog, settings.name), settings)
    except IcepuffinError as error:
        return Found(unknown=str(error))


def to_text(found: Mapping[str, Found]) -> str:
    """What was found of each table, for processes that need not ask again."""
    told = {
        key: {"definitions": [definition.to_json() for definition in item.definitions], "unknown": item.unknown}
        for key, item in found.items()
    }
    return json.dumps(told)


def from_text(text: str) -> dict[str, Found]:
    return {
        key: Found(tuple(IndexDefinition.from_json(it) for it in item["definitions"]), item["unknown"])
        for key, item in json.loads(text).items()
    }


def shown_spec(table: TableSettings, catalogs: Catalogs, found: Found | None = None) -> TableSpec:
    """What Dagster shows of one table: of indexes whose names are one there, those of the settings, else the first.

    Others may write the table's properties, and must not keep what else there is from loading.
    """
    spec = table_spec(table, catalogs, found)
    shown: list[IndexDefinition] = []
    hidden: list[str] = []
    for index in sorted(spec.indexes, key=lambda item: item.name not in table.indexes):
        pair = find_name_clash([*(item.name for item in shown), index.name])
        if pair is None:
            shown.append(index)
        else:
            hidden.append(f"Index '{pair[1]}' is not shown, its name and that of '{pair[0]}' are one in Dagster.")
    return replace(
        spec,
        indexes=tuple(sorted(shown, key=lambda item: item.name)),
        note=" ".join(filter(None, (spec.note, *hidden))),
    )


def table_spec(table: TableSettings, catalogs: Catalogs, found: Found | None = None) -> TableSpec:
    """The spec of one table; without `found` its properties are looked at now."""
    found = found or find_indexes(table, catalogs)
    definitions = {name: index_definition(name, item) for name, item in table.indexes.items()}
    for definition in found.definitions:
        given = definitions.get(definition.name)
        definitions[definition.name] = replace(given, field_id=definition.field_id) if given else definition
    note = f"Indexes in table properties are not shown: {found.unknown}." if found.unknown else ""
    return TableSpec(table, tuple(definitions[name] for name in sorted(definitions)), note)
