"""From settings to specs: the tables of a pattern, and the indexes of the settings and of a table's own properties."""

import json
import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import Any

from pyiceberg.table import Table

from icepuffin.assets.spec import TableSpec, is_plain, is_within, mark_of, node, slug
from icepuffin.assets.table_settings import IndexSettings, TableSettings
from icepuffin.ops.errors import IcepuffinError, faults_of
from icepuffin.ops.index.definitions.ddl import find_definition, list_definitions, refused_definitions
from icepuffin.ops.index.definitions.index_definition import IndexDefinition, find_name_clash
from icepuffin.ops.resources import Catalogs, is_pattern

_log = logging.getLogger(__name__)
_TABLES_AT_ONCE = 8
"""Tables that are loaded at the same time: most of the time is waiting for the catalog."""


def index_definition(name: str, settings: IndexSettings) -> IndexDefinition:
    return IndexDefinition(name=name, **settings.model_dump(exclude={"keep", "near_pairs"}))


@dataclass(frozen=True, slots=True)
class PropertyIndexes:
    """The indexes that a table's own properties define."""

    definitions: tuple[IndexDefinition, ...] = ()
    unknown: str = ""
    """The error that kept the properties from being read; empty where they were."""
    columns: tuple[str, ...] | None = None
    """Names of the table's columns; None but for the tables of a pattern, which need not have those of all indexes"""
    left_out: str = ""
    """Errors of the indexes that are left out, whose definition this release does not understand"""
    mark: str = ""
    """End of the table's names in Dagster, where those of a table before it are the same."""


@dataclass(frozen=True, slots=True)
class TableListing:
    """The tables that one entry of the settings stands for."""

    tables: Mapping[str, PropertyIndexes]
    """Indexes in the properties of each table, by the table's name."""
    unknown: str = ""
    """The error that kept the tables of a pattern from being listed; empty where they were."""


def indexes_of(table: Table, settings: TableSettings, *, by_pattern: bool) -> PropertyIndexes:
    """The indexes in a loaded table's properties, or those alone that the settings have as well, whose columns may have
    been renamed.

    by_pattern: whether the settings are those of a pattern, so that the table need not have the columns of all indexes.
    """
    refused, columns = refused_definitions(table), tuple(field.name for field in table.schema().fields)
    of_settings = {name for name, it in settings.indexes.items() if not by_pattern or it.column in columns}
    hidden = (str(error) for name, error in refused.items() if name not in of_settings)
    return PropertyIndexes(
        list_definitions(table)
        if settings.indexes_from_table
        else tuple(filter(None, (find_definition(table, name) for name in settings.indexes if name not in refused))),
        columns=columns if by_pattern else None,
        left_out=". ".join(hidden) if settings.indexes_from_table else "",
    )


def list_tables(tables: Mapping[str, TableSettings], catalogs: Catalogs) -> dict[str, TableListing]:
    """The tables of each entry of the settings: one call of the catalog per pattern, and one per table at most."""
    unlisted: dict[str, str] = {}
    pairs: list[tuple[str, TableSettings]] = []
    for key, table in tables.items():
        try:
            names = catalogs.matching(table.catalog, table.name) if is_pattern(table.name) else (table.name,)
        except IcepuffinError as error:
            unlisted[key] = str(error)
        else:
            pairs += [(key, table.model_copy(update={"name": name})) for name in names]

    def read(pair: tuple[str, TableSettings]) -> PropertyIndexes:
        key, table = pair
        by_pattern = is_pattern(tables[key].name)
        if not table.indexes_from_table and not by_pattern:
            return PropertyIndexes()
        try:
            with faults_of(table.name):
                return indexes_of(catalogs.poll(table.catalog, table.name), table, by_pattern=by_pattern)
        except IcepuffinError as error:  # the indexes of the settings are there all the same
            return PropertyIndexes(unknown=str(error))

    with ThreadPoolExecutor(_TABLES_AT_ONCE) as threads:
        indexes = list(threads.map(read, pairs))
    listings: dict[str, dict[str, PropertyIndexes]] = {key: {} for key in tables}
    for (key, table), entry in zip(pairs, indexes, strict=True):
        listings[key][table.name] = entry
        if entry.unknown:
            _log.warning("%s: its own indexes are unknown: %s", table.name, entry.unknown)
    return {key: TableListing(listings[key], unlisted.get(key, "")) for key in tables}


def listed_tables(
    tables: Mapping[str, TableSettings], listings: Mapping[str, TableListing]
) -> Iterator[tuple[str, TableSettings, PropertyIndexes]]:
    """(key in the settings, settings, indexes) of each table. Where the names of two are the same in Dagster, the one
    that the settings name keeps them, else the one that Dagster takes as it is, and the other one has a mark.
    """
    slugs: set[str] = set()
    nodes: set[str] = set()
    named: set[tuple[str, str]] = set()
    for key in sorted(tables, key=lambda name: (is_pattern(tables[name].name), not is_plain(tables[name].name))):
        if key not in listings:
            _log.warning("tables.%s of the settings is not shown: it is newer than the kept state; refresh that", key)
            continue
        for name, indexes in sorted(listings[key].tables.items(), key=lambda item: (not is_plain(item[0]), item[0])):
            table = tables[key].model_copy(update={"name": name})
            if (table.catalog, name) in named:
                continue  # of a pattern, and of the settings themselves or of another pattern
            named.add((table.catalog, name))
            label, path = slug(table.catalog, name), node(table.catalog, name)
            clashes = label in slugs or any(is_within(path, other) or is_within(other, path) for other in nodes)
            mark = mark_of(table.catalog, name) if clashes else ""
            slugs.add(label + mark)
            nodes.add(path + mark)
            yield key, table, replace(indexes, mark=mark)


def to_text(listings: Mapping[str, TableListing]) -> str:
    """The tables and their indexes as JSON, for processes that need not load the tables again."""

    def plain(value: Any) -> Any:
        return (
            value.to_json()
            if isinstance(value, IndexDefinition)
            else {member.name: getattr(value, member.name) for member in fields(value)}
        )

    return json.dumps(listings, default=plain)


def from_text(text: str) -> dict[str, TableListing]:
    """What `to_text` wrote."""

    def indexes(table: dict[str, Any]) -> PropertyIndexes:
        definitions, columns = map(IndexDefinition.from_json, table["definitions"]), table["columns"]
        columns = None if columns is None else tuple(columns)
        return PropertyIndexes(tuple(definitions), table["unknown"], columns, table["left_out"])

    return {
        key: TableListing({name: indexes(table) for name, table in listing["tables"].items()}, listing["unknown"])
        for key, listing in json.loads(text).items()
    }


def shown_spec(table: TableSettings, indexes: PropertyIndexes) -> TableSpec:
    """The spec of one table as Dagster shows it. Of two indexes with the same name there, the one of the settings is
    shown, else the first; the note names the other one.

    Others may write the table's properties, and must not keep everything else from loading.
    """
    spec = table_spec(table, indexes)
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


def table_spec(table: TableSettings, indexes: PropertyIndexes) -> TableSpec:
    """The spec of one table, of which `indexes` has the properties."""
    named = {(definition.name, definition.column) for definition in indexes.definitions}
    definitions = {
        name: index_definition(name, index)
        for name, index in table.indexes.items()
        if indexes.columns is None or index.column in indexes.columns or (name, index.column) in named
    }
    for definition in indexes.definitions:
        if in_settings := definitions.get(definition.name):
            definitions[definition.name] = replace(in_settings, field_id=definition.field_id)
        elif table.indexes_from_table:
            definitions[definition.name] = definition
    why = indexes.unknown or indexes.left_out
    note = f"Indexes in table properties are not shown: {why}." if why else ""
    return TableSpec(table, tuple(definitions[name] for name in sorted(definitions)), note, indexes.mark)
