"""`icepuffin ui`."""

import os
import shlex
import signal
import socket
import sys
from contextlib import suppress
from importlib.util import find_spec

import click

from icepuffin.orchestration.cli.session import Session, session_command


@click.command("ui")
@click.option("--start", is_flag=True, help="Start webserver and daemon here, and stay until Ctrl-C or SIGTERM.")
@click.option("--port", type=click.IntRange(1, 65_535), default=3000, show_default=True, help="Port on 127.0.0.1.")
@session_command
def command(session: Session, *, start: bool, port: int) -> None:
    """Say how to open the Dagster UI on this instance, or start it.

    \b
    Example:
      icepuffin ui --start
    """
    from icepuffin.orchestration.instance import WORKSPACE, home_of, open_instance, prepare_home
    from icepuffin.orchestration.request_guard import MODULE
    from icepuffin.orchestration.settings import PATH_VARIABLE

    if start:
        if find_spec("dagster_webserver") is None:
            raise ModuleNotFoundError("No module named 'dagster_webserver'", name="dagster_webserver")
        _require_free(port)
    home = prepare_home(home_of(session.settings, session.settings_file))
    environment = {"DAGSTER_HOME": str(home), PATH_VARIABLE: str(session.settings_file)}
    program = [sys.executable, "-P", "-m", MODULE]
    arguments = [*program, "-w", str(home / WORKSPACE), "-h", "127.0.0.1", "-p", str(port)]
    if start:
        from icepuffin.orchestration.processes import end_lost_runs

        with open_instance(home) as instance:
            for run_id in end_lost_runs(instance):
                click.echo(f"run {run_id} was ended: its process is gone")
        for number in (signal.SIGINT, signal.SIGTERM):  # a script's background jobs ignore SIGINT; Dagster SIGTERM then
            signal.signal(number, signal.SIG_DFL)
        os.execve(sys.executable, arguments, {**os.environ, **environment})  # noqa: S606  our own program
    variables = " ".join(f"{key}={shlex.quote(value)}" for key, value in environment.items())
    short = shlex.join(["icepuffin", "ui", "--start", "--port", str(port), "--settings", str(session.settings_file)])
    click.echo(
        f"Start it with:\n  {variables} {shlex.join(arguments)}\nor: {short}\n"
        f"Then open http://127.0.0.1:{port}/asset-groups : "
        "choose an asset, 'Partitions' for its snapshots, "
        "'Materialize' to backfill any of them; 'Automation' starts the sensor."
    )


def _require_free(port: int) -> None:
    """Raises ClickException where somebody listens there: Dagster would go on without a webserver."""
    with socket.socket() as taken, suppress(ConnectionRefusedError):
        taken.connect(("127.0.0.1", port))
        raise click.ClickException(
            f"port {port} of 127.0.0.1 is taken: end what listens there, or name another by --port"
        )
