"""One evaluation of a table's sensor, as Dagster's daemon makes it."""

import dagster as dg

from icepuffin.orchestration.engines import catalogs_of
from icepuffin.orchestration.factory import build
from icepuffin.orchestration.settings import Settings


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
