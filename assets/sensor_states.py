"""What Dagster keeps of a table's sensor: whether it is switched on, its cursor, its last tick."""

from typing import Any

import dagster as dg

from icepuffin.assets.spec import TableSpec


def sensor_states(instance: dg.DagsterInstance, spec: TableSpec) -> list[Any]:
    """The states of sensors with the name of the table's, in whichever code location; none in an instance in memory.

    They are of Dagster's InstigatorState, which has no public name.
    """
    if instance.schedule_storage is None:
        return []
    return [
        state
        for state in instance.all_instigator_state()
        if state.instigator_type.value == "SENSOR" and state.instigator_name == spec.sensor_name
    ]
