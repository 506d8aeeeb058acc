"""The definitions that Dagster loads. Reads settings and table properties; starts no JVM."""

import logging
import warnings
from collections.abc import Mapping
from dataclasses import replace

import dagster as dg
from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext, DefinitionsLoadType
from dagster_shared.check import CheckError

from icepuffin.assets.ann_index import ann_index_asset
from icepuffin.assets.checks import freshness_check, integrity_check
from icepuffin.assets.spec import TableSpec
from icepuffin.assets.tables import table_asset
from icepuffin.assets.theta_sketches import theta_sketches_asset
from icepuffin.orchestration.discovery import PropertyIndexes, find_indexes, from_text, shown_spec, to_text
from icepuffin.orchestration.engines import catalogs_of, engine_of
from icepuffin.orchestration.jobs import maintenance_job, refresh_job, verify_job
from icepuffin.orchestration.processes import run_process_executor
from icepuffin.orchestration.schedules import schedules
from icepuffin.orchestration.sensor.definition import snapshot_sensor
from icepuffin.orchestration.settings import GarbageSettings, Settings, load

_log = logging.getLogger(__name__)
_INDEXES = "icepuffin/indexes"


def build(settings: Settings, indexes: Mapping[str, PropertyIndexes] | None = None) -> dg.Definitions:
    """The definitions of every table of the settings.

    `indexes`: by a table's key in the settings, the indexes that its properties define; what lacks is read now.
    """
    catalogs = catalogs_of(settings)
    parts = [
        _isolated(shown_spec(table, catalogs, (indexes or {}).get(key)), settings.retention)
        for key, table in settings.tables.items()
    ]
    return dg.Definitions.merge(
        dg.Definitions(resources={"catalogs": catalogs, "engine": engine_of(settings)}, executor=run_process_executor),
        *parts,
    )


def _isolated(spec: TableSpec, garbage: GarbageSettings) -> dg.Definitions:
    """The definitions of one table. Where Dagster refuses them, the table's asset says why, and other tables load."""
    try:
        return table_definitions(spec, garbage)
    except (dg.DagsterError, CheckError) as error:
        _log.exception("%s: Dagster refuses its definitions, and shows its name only", spec.identifier)
        note = f"Nothing is derived from it here, since Dagster does not take its definitions: {error}."
        return dg.Definitions(assets=[table_asset(replace(spec, note=note))])


def table_definitions(spec: TableSpec, garbage: GarbageSettings) -> dg.Definitions:
    """Assets, checks, jobs, sensor and schedules of one table."""
    assets: list[dg.AssetSpec | dg.AssetsDefinition] = [table_asset(spec)]
    if spec.settings.theta_sketches:
        assets.append(theta_sketches_asset(spec))
    assets += [ann_index_asset(spec, index) for index in spec.indexes]
    checks = [check(spec, index) for index in spec.indexes for check in (freshness_check, integrity_check)]
    maintenance = maintenance_job(spec, garbage)
    if not spec.derived_keys:
        return dg.Definitions(assets=assets, jobs=[maintenance])
    refresh = refresh_job(spec)
    verify = verify_job(spec) if spec.indexes else None
    return dg.Definitions(
        assets=assets,
        asset_checks=checks,
        jobs=[refresh, maintenance, *([verify] if verify else [])],
        sensors=[snapshot_sensor(spec, refresh)],
        schedules=list(schedules(spec, refresh, maintenance, verify)),
    )


@dg.definitions
def defs() -> dg.Definitions:
    """The entry point that workspace.yaml and `dg` name.

    The code server reads each table's properties once, and hands the result to the processes of its runs.
    """
    settings = load()
    context = DefinitionsLoadContext.get()
    is_server = context.load_type is DefinitionsLoadType.INITIALIZATION
    handed_over = {} if is_server else context.reconstruction_metadata
    if _INDEXES in handed_over:
        indexes = from_text(handed_over[_INDEXES])
    else:
        catalogs = catalogs_of(settings)
        indexes = {key: find_indexes(table, catalogs) for key, table in settings.tables.items()}
        for key, table in indexes.items():
            if table.unknown:
                _log.warning("%s: its own indexes are unknown: %s", settings.tables[key].name, table.unknown)
    with warnings.catch_warnings(action="ignore", category=dg.PreviewWarning):
        return build(settings, indexes).with_reconstruction_metadata({_INDEXES: to_text(indexes)})
