"""`icepuffin tune`."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from icepuffin.orchestration.cli.output import (
    print_grid,
    print_json,
    print_lines,
    print_warnings,
    progress_bars,
)
from icepuffin.orchestration.cli.table_options import TableContext, index_name, options_as, table_command

if TYPE_CHECKING:
    from rich.console import Console

    from icepuffin.ops.recall.measured_points import MeasuredPoint
    from icepuffin.ops.search.measured.tuning_run import TuningReport


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningArguments:
    """The options of one tuning."""

    index: str | None
    queries: Path | None
    column: str | None
    snapshot: str | None
    target: tuple[float, ...]
    dry_run: bool
    forget: bool
    spark: bool

    def check(self) -> None:
        """Raises UsageError for options that do not go together."""
        if self.forget == (self.queries is not None):
            raise click.UsageError("give --queries, or --forget")
        of_queries = {
            "column": self.column, "snapshot": self.snapshot, "target": self.target, "dry-run": self.dry_run,
            "spark": self.spark,
        }  # fmt: skip
        for name, value in of_queries.items() if self.forget else ():
            if value:
                raise click.UsageError(f"--{name} goes with --queries")


@click.command("tune")
@table_command
@index_name("The same as INDEX. [default: the table's only index]")
@click.option(
    "--queries",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A .npy [queries, dims], a JSON list of lists, or a Parquet file with a column of vectors.",
)
@click.option("--column", help="Column of the Parquet file. [default: its only one of lists or bytes]")
@click.option(
    "--snapshot", help="Snapshot id, tag, branch or time, whose version is measured. [default: that at the index tag]"
)
@click.option(
    "--target",
    type=click.FloatRange(0, 1, min_open=True),
    multiple=True,
    help="Recall to report parameters for. May be given several times; others can be searched with, too. "
    "[default: 0.9, 0.95, 0.99]",
)
@click.option("--dry-run", is_flag=True, help="Measure, and keep nothing.")
@click.option("--forget", is_flag=True, help="Remove what was measured: the index's own curves count again.")
@click.option("--spark", is_flag=True, help="Search an index of more than [spark] in_process_mb by tasks on Spark.")
@options_as(TuningArguments)
def command(context: TableContext, arguments: TuningArguments, /) -> None:
    """Measure the recall of an index by queries of your own, so that a target recall is met for queries like these.

    For queries that are not like the rows: texts that search images, titles that search articles. Up to 1,000 of the
    file, evenly, are compared with every row, and searched for with many parameters. What readers need of it is kept
    in a property of the table, through refreshes, until the index is built otherwise or dropped.

    \b
    Examples:
      icepuffin tune demo.packages --queries logged.npy
      icepuffin tune demo.packages embedding --queries logged.parquet --column vector --dry-run
      icepuffin tune demo.packages --forget
    """
    arguments.check()
    if arguments.forget or arguments.queries is None:
        _forget(context, context.index(arguments.index).name)
        return
    from icepuffin.orchestration.cli.query_vectors import read_queries

    queries = read_queries(arguments.queries, arguments.column)
    from icepuffin.ops.search.measured.tuning_run import TARGETS, tune

    session = context.session
    with progress_bars(quiet=context.as_json) as bars:
        report = tune(
            context.table,
            queries,
            context.index(arguments.index),
            targets=arguments.target or TARGETS,
            snapshot=arguments.snapshot,
            dry_run=arguments.dry_run,
            storage=context.storage,
            threads=session.settings.thread_count,
            runner=session.engine.spark_runner() if arguments.spark else None,
            in_process_mb=session.settings.spark.in_process_mb,
            progress=bars,
        )
    if context.as_json:
        print_json(_document(report))
    else:
        _show(context.console, report)


def _forget(context: TableContext, index: str) -> None:
    from icepuffin.ops.index.versions.tuning_record import forget_record

    is_forgotten = forget_record(context.table, index)
    if context.as_json:
        print_json({"table": context.name, "index": index, "forgotten": is_forgotten})
    else:
        what = "is forgotten" if is_forgotten else "was not there"
        print_lines(context.console, f"the tuning of index {index} of {context.name} {what}")


def _document(report: "TuningReport") -> dict[str, object]:
    record = report.record
    return {
        "table": report.table,
        "index": report.index,
        "queries": record.queries,
        "offered_queries": report.offered_queries,
        "index_snapshot_id": str(record.index_snapshot_id),
        "base_snapshot_id": str(record.base_snapshot_id),
        "kept": report.is_kept,
        "targets": [
            {
                "k": choice.k,
                "target": choice.target,
                "by_curves": _point(choice.by_curves),
                "tuned": _point(choice.tuned),
                "reached": choice.is_reached,
            }
            for choice in report.targets
        ],
        "points": [_point(point) for point in report.points],
        "warnings": list(report.warnings),
    }


def _point(point: "MeasuredPoint") -> dict[str, object]:
    """A point as JSON has it: null for the slack that admits every shard."""
    slack = None if math.isinf(point.probe_slack) else point.probe_slack
    return {**asdict(point), "probe_slack": slack, "interval": list(point.interval)}


def _show(console: "Console", report: "TuningReport") -> None:
    measured = f"{report.record.queries:,} of {report.offered_queries:,} queries, evenly"
    print_lines(console, f"index {report.index} of {report.table}, measured by {measured}")
    for grid in report.grids():
        print_grid(console, grid)
    print_warnings(console, report.warnings)
    if report.is_kept:
        print_lines(console, "kept with the table: each reader that opens it from now on chooses by it")
    else:
        print_lines(console, "nothing was kept (--dry-run)")
