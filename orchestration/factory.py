"""Definitions of tables, for any code location: no executor, and keys of resources that are icepuffin's own."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import dagster as dg

from icepuffin.assets.ann_index import ann_index_asset
from icepuffin.assets.checks import freshness_check, integrity_check, live_recall_check, sketches_check
from icepuffin.assets.metadata import plain_text
from icepuffin.assets.near_pairs_asset import near_pairs_asset
from icepuffin.assets.spec import AssetAttributes, ResourceKeys, TableSpec, slug
from icepuffin.assets.table_settings import TableSettings
from icepuffin.assets.tables import table_asset
from icepuffin.assets.theta_sketches import theta_sketches_asset
from icepuffin.ops.resources import Engine
from icepuffin.orchestration.discovery import TableListing, list_tables, listed_tables, shown_spec
from icepuffin.orchestration.engines import catalogs_of, engine_of, engine_on
from icepuffin.orchestration.jobs import jobs_by_kind, schedules
from icepuffin.orchestration.sensor.sensor_definition import snapshot_sensor
from icepuffin.orchestration.settings import GarbageSettings, Settings

_log = logging.getLogger(__name__)


def build(
    settings: Settings,
    listings: Mapping[str, TableListing] | None = None,
    *,
    attributes: AssetAttributes | None = None,
    resources: ResourceKeys | None = None,
) -> dg.Definitions:
    """The definitions of every table of the settings.

    `listings`: by a table's key in the settings, what the catalog has there; without it the catalogs are queried now.
    """
    catalogs, engine = catalogs_of(settings), engine_of(settings)
    keys = resources or ResourceKeys()
    listings = list_tables(settings.tables, catalogs) if listings is None else listings
    parts = [
        _isolated(
            replace(shown_spec(table, indexes), attributes=attributes or AssetAttributes(), resources=keys),
            settings.retention,
            engine,
        )
        for _, table, indexes in listed_tables(settings.tables, listings)
    ]
    unlisted = [
        _unlisted(settings.tables[key], listing.unknown) for key, listing in listings.items() if listing.unknown
    ]
    given: dict[str, Any] = {keys.catalogs: catalogs, keys.engine: engine}
    if key := keys.spark:
        given[keys.engine] = dg.ResourceDefinition(
            lambda context: engine_on(key, getattr(context.resources, key), engine), required_resource_keys={key}
        )
    return dg.Definitions.merge(dg.Definitions(assets=unlisted, resources=given), *parts)


def _unlisted(table: TableSettings, why: str) -> dg.AssetSpec:
    """A pattern whose tables the catalog did not list, as an asset whose description has the error."""
    return dg.AssetSpec(
        key=[table.catalog, slug(table.catalog, table.name)],
        description=plain_text(f"The tables {table.name} are not shown: {why}. Reload the code location to try again."),
        kinds={"iceberg"},
    )


def _isolated(spec: TableSpec, garbage: GarbageSettings, engine: Engine) -> dg.Definitions:
    """The definitions of one table. Where Dagster refuses them, the table's asset says why, and other tables load."""
    try:
        return table_definitions(spec, garbage, engine)
    except Exception as error:  # Dagster's own checks raise an error that has no public name
        _log.exception("%s: Dagster refuses its definitions, and shows its name only", spec.identifier)
        note = f"Nothing is derived from it here, since Dagster does not take its definitions: {error}."
        if spec.is_recorded:
            return dg.Definitions(assets=[table_asset(replace(spec, note=note))])
        return dg.Definitions(assets=[dg.AssetSpec(spec.theta_key, deps=[spec.key], description=plain_text(note))])


def table_definitions(spec: TableSpec, garbage: GarbageSettings, engine: Engine) -> dg.Definitions:
    """Assets, checks, jobs, sensor and schedules of one table."""
    assets: list[dg.AssetSpec | dg.AssetsDefinition] = [table_asset(spec)] if spec.is_recorded else []
    if spec.settings.statistics.keeps_ndv:
        assets.append(theta_sketches_asset(spec))
    assets += [ann_index_asset(spec, index) for index in spec.indexes]
    pairs = spec.near_pairs
    assets += [near_pairs_asset(spec, index, pairs[index.name]) for index in spec.indexes if index.name in pairs]
    kinds = [freshness_check, integrity_check, *([live_recall_check] if spec.settings.recall_reports else [])]
    checks = [check(spec, index) for index in spec.indexes for check in kinds]
    if spec.settings.statistics.keeps_ndv:
        checks.append(sketches_check(spec))
    jobs = jobs_by_kind(spec, garbage)
    if not spec.derived_keys:
        return dg.Definitions(assets=assets, jobs=list(jobs.values()))
    return dg.Definitions(
        assets=assets,
        asset_checks=checks,
        jobs=list(jobs.values()),
        sensors=[snapshot_sensor(spec, jobs["refresh"], engine)],
        schedules=list(schedules(spec, jobs, engine)),
    )
