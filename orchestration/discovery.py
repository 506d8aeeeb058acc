"""From settings to specs: index definitions of the settings file, and those that the table itself carries."""

import logging
from dataclasses import replace

from assets.spec import TableSpec
from ops.errors import IcepuffinError
from ops.index import list_definitions
from ops.index.definition import IndexDefinition
from ops.index.retention import Keep, Retention
from ops.resources import Catalogs
from orchestration.settings import IndexSettings, KeepSettings, TableSettings

logger = logging.getLogger(__name__)


def index_definition(name: str, settings: IndexSettings) -> IndexDefinition:
    return IndexDefinition(name=name, **settings.model_dump(exclude={"keep"}))


def retention(keep: KeepSettings) -> Retention:
    return Retention(Keep(keep.versions), keep.last, keep.days)


def table_spec(table: TableSettings, catalogs: Catalogs) -> TableSpec:
    """The spec of one table. A catalog that does not answer leaves the settings' own indexes, and a note says so."""
    definitions = {name: index_definition(name, item) for name, item in table.indexes.items()}
    note = ""
    if table.indexes_from_table:
        try:
            for definition in list_definitions(catalogs.look(table.catalog, table.name)):
                given = definitions.get(definition.name)
                definitions[definition.name] = replace(given, field_id=definition.field_id) if given else definition
        except IcepuffinError as error:
            note = f"Indexes in table properties are not shown: {error}."
            logger.warning("%s: %s", table.name, note)
    return TableSpec(
        catalog=table.catalog,
        identifier=table.name,
        indexes=tuple(definitions[name] for name in sorted(definitions)),
        theta_sketches=table.theta_sketches,
        theta_columns=table.theta_columns,
        watched_refs=table.watched_refs,
        retries=table.retries,
        retry_delay_seconds=table.retry_delay_seconds,
        max_freshness_lag=table.max_freshness_lag,
        max_freshness_minutes=table.max_freshness_minutes,
        retention=retention(table.keep),
        retentions={name: retention(item.keep) for name, item in table.indexes.items() if item.keep is not None},
        note=note,
    )
