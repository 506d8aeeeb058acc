"""`icepuffin demo`."""

from pathlib import Path

import click

from icepuffin.orchestration.cli.session import Session


@click.command("demo")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=None,
    help="Everything is kept under this folder. [default: demo-data]",
)
@click.pass_obj
def command(session: Session, directory: Path | None) -> None:
    """Make a table with a history, index every snapshot through Dagster, and search it.

    \b
    Example:
      icepuffin demo --dir demo-data
    """
    from icepuffin.orchestration.demo import run_demo

    run_demo((directory or session.directory or Path("demo-data")).resolve(), session.console)
