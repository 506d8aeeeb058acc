"""`icepuffin snapshots`."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from icepuffin.ops.presentation import Grid
from icepuffin.orchestration.cli.output import print_grid, print_json, print_lines, report_document
from icepuffin.orchestration.cli.table_options import TableContext, metadata_command

if TYPE_CHECKING:
    from icepuffin.assets.newest_snapshots import SnapshotEntry

_OPERATIONS = ("append", "overwrite", "delete", "replace")
"""Operations of snapshots, by Iceberg's specification"""


class _TimeType(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no arguments of it
    """A time by ISO 8601, in UTC where it has no zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time; write one such as 2026-11-20 or 2026-11-20T08:00", param, ctx)
        return time if time.tzinfo else time.replace(tzinfo=UTC)


@click.command("snapshots")
@metadata_command
@click.option("--operation", type=click.Choice(_OPERATIONS), help="Only snapshots of this operation.")
@click.option("--since", type=_TimeType(), help="Only snapshots committed then (UTC) or later: 2026-11-20T08:00.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Snapshots to list, the newest first."
)
def command(context: TableContext, /, operation: str | None, since: datetime | None, limit: int) -> None:
    """List the table's snapshots, newest first: when and how each was written, and what is derived from it.

    A snapshot's id is the key of its partition in Dagster. Reads metadata only.

    \b
    Examples:
      icepuffin snapshots demo.packages
      icepuffin snapshots demo.packages --operation delete --since 2026-11-01 --json
    """
    from icepuffin.assets.newest_snapshots import newest_snapshots

    entries = [
        entry
        for entry in newest_snapshots(context.table, context.spec)
        if operation in (None, entry.operation) and (since is None or entry.committed >= since)
    ][:limit]
    if context.as_json:
        snapshots = [report_document(entry) for entry in entries]
        print_json({"table": context.name, "catalog": context.spec.catalog, "snapshots": snapshots})
    elif entries:
        rows = [entry.cells | {"derived": ", ".join(entry.derived), "missing": _missing(entry)} for entry in entries]
        print_grid(context.console, Grid("", [[*row.values()] for row in rows], [*rows[0]]), whole=3)
    else:
        written = context.table.metadata.snapshots
        print_lines(context.console, f"{context.name} has no {'such snapshot' if written else 'snapshot yet'}")


def _missing(entry: "SnapshotEntry") -> str:
    return ", ".join(f"{name} (layout given up)" if name in entry.given_up else name for name in entry.missing)
