"""What is known of a table, and one evaluation of its sensor, as the code server and the daemon make them."""

import dagster as dg

from icepuffin.assets.spec import TableSpec
from icepuffin.assets.table_settings import TableSettings
from icepuffin.ops.resources import Catalogs
from icepuffin.orchestration.discovery import list_tables, table_spec
from icepuffin.orchestration.engines import catalogs_of
from icepuffin.orchestration.factory import build
from icepuffin.orchestration.settings import Settings


def found_spec(table: TableSettings, catalogs: Catalogs) -> TableSpec:
    """The spec of a table, whose properties are read now."""
    return table_spec(table, list_tables({"table": table}, catalogs)["table"].tables[table.name])


def evaluated(
    settings: Settings, instance: dg.DagsterInstance, cursor: str | None = None, table: str = "packages"
) -> dg.SensorResult:
    """What the sensor of `demo.<table>` requests and reports."""
    definitions = build(settings)
    context = dg.build_sensor_context(
        instance=instance,
        cursor=cursor,
        definitions=definitions,
        resources={"icepuffin_catalogs": catalogs_of(settings)},
    )
    (sensor,) = (sensor for sensor in definitions.sensors or () if sensor.name == f"watch_demo_demo_{table}")
    assert isinstance(sensor, dg.SensorDefinition)
    result = sensor(context)
    assert isinstance(result, dg.SensorResult)
    return result
