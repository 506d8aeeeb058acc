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
@click.option(
    "--source",
    type=click.Path(path_type=Path),
    help="Folder with packages.parquet and embeddings.f16.npy: the full set instead of the shipped rows.",
)
@click.pass_obj
def command(session: Session, directory: Path | None, source: Path | None) -> None:
    """Make a table with a history, index every snapshot through Dagster, and search it.

    \b
    Example:
      icepuffin demo --dir demo-data
    """
    from icepuffin.orchestration.demo import run_demo

    run_demo((directory or session.directory or Path("demo-data")).resolve(), source, session.console)
