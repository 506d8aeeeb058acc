"""One look at a table: show new snapshots in Dagster, hide expired ones, and say which runs are due.

The sensor and `icepuffin sensor-tick` both look like this. Records and partitions are written here, not by the daemon
from what the sensor returns: only so can a look stop when its time is up, however slow Dagster's database is.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import dagster as dg
from pyiceberg.table import Table

from icepuffin.assets.partitions import partitions_name
from icepuffin.assets.spec import TableSpec
from icepuffin.ops.catalog.snapshots import hides_snapshots
from icepuffin.orchestration.processes import end_lost_runs
from icepuffin.orchestration.sensor import plan as planning
from icepuffin.orchestration.sensor.facts import gather, materialization
from icepuffin.orchestration.settings import TableSettings

WRITING_SECONDS = 3.0
"""How long a look writes into Dagster's database. The rest waits for the next look."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a look has written, and the runs that are due."""

    shown: tuple[str, ...]
    """Snapshots that were recorded and made partitions."""
    dropped: tuple[str, ...]
    """Partitions of expired snapshots."""
    left: int
    """Snapshots and partitions for which the time was not enough."""
    plan: planning.Plan
    waits_for: str = ""
    """The oldest run of the table that is not finished, in words."""
    lost: tuple[str, ...] = ()
    """Runs, of whatever table, that were ended because their process is gone."""


def look(
    instance: dg.DagsterInstance, spec: TableSpec, settings: TableSettings, table: Table, cursor: planning.Cursor
) -> Look:
    """Write for WRITING_SECONDS at most (but one record in any case), and plan from what Dagster shows then.

    Cut off anywhere, it is made again with the same cursor: nothing is recorded, added or requested twice.
    """
    until = time.monotonic() + WRITING_SECONDS
    lost = end_lost_runs(instance)
    facts = gather(instance, spec, table, cursor, settings.snapshots)
    new = planning.unseen(facts, cursor, settings.snapshots)
    shown = _show(instance, spec, table, facts, new, until)
    gone = () if hides_snapshots(table) else planning.expired(facts)
    dropped = tuple(_within(gone, until, lambda key: instance.delete_dynamic_partition(partitions_name(spec), key)))
    facts = replace(facts, partitions=[*facts.partitions, *shown], recorded={*facts.recorded, *shown})
    plan = planning.plan(facts, cursor, policy=settings.snapshots, runs_ahead=settings.runs_ahead)
    return Look(shown, dropped, len(new) - len(shown) + len(gone) - len(dropped), plan, facts.waits_for, lost)


def _show(
    instance: dg.DagsterInstance,
    spec: TableSpec,
    table: Table,
    facts: planning.Facts,
    keys: Sequence[str],
    until: float,
) -> tuple[str, ...]:
    """Record the snapshots in this order, as far as time allows, and add those as partitions."""
    recorded = set(facts.recorded)
    known = {str(snapshot.snapshot_id): snapshot for snapshot in table.metadata.snapshots}  # by_id searches all

    def record(key: str) -> None:
        if key not in recorded:
            instance.report_runless_asset_event(materialization(spec, known[key]))

    shown = tuple(_within(keys, until, record))
    if shown:
        instance.add_dynamic_partitions(partitions_name(spec), list(shown))
    return shown


def _within(keys: Sequence[str], until: float, write: Callable[[str], None]) -> Iterator[str]:
    """Write one after the other, the first in any case; yields what was written."""
    for number, key in enumerate(keys):
        if number and time.monotonic() >= until:
            return
        write(key)
        yield key
