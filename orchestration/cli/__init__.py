"""The command `icepuffin`. Only click is imported here; each command imports what it uses when it runs."""

import atexit
import gc
import io
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

_COMMANDS = {
    "init": ("init", "Write icepuffin.toml for a table and an index, from options or questions."),
    "index": ("index", "Create, list, show, verify and drop ANN indexes."),
    "plan": ("plan", "Say what a refresh will do, shard by shard, and what it will take."),
    "refresh": ("refresh", "Make the sketches and index versions of a snapshot now."),
    "search": ("search", "Find the nearest rows to a row or a vector."),
    "tune": ("tune", "Measure recall by queries of your own, so that a target recall is met for them."),
    "sql": ("sql", "Run SQL: nearest rows, conditions, time travel, indexes."),
    "stats": ("stats", "Show the distinct values of each column, and the index versions."),
    "report": ("report", "Write a page on a table: versions, recall, shards, sizes, what is behind."),
    "snapshots": ("snapshots", "List snapshots by time and operation, and what is derived from each."),
    "metrics": ("metrics", "Print lag, recall, bytes and seconds as Prometheus reads them, or serve them."),
    "mcp": ("mcp", "Serve tables, searches and snapshots to a language model, read only (MCP)."),
    "gc": ("gc", "Expire old versions, delete index files that nothing needs."),
    "ui": ("ui", "Say how to start the Dagster UI on this instance, or start it."),
}
"""Module in this package and line of help of each command, by its name."""


class _LazyGroup(click.Group):
    """A group that knows names and lines of help, and imports the module of the command that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[cmd_name]
        command: click.Command = import_module(f"{__name__}.{module}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            alike = get_close_matches(args[0], _COMMANDS, n=1)
            if not alike:
                raise
            raise click.UsageError(f"{error.message} Did you mean '{alike[0]}'?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.command(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Settings: icepuffin.toml in the current folder, or --dir, --settings, ICEPUFFIN_SETTINGS.",
)
@click.option("--debug", is_flag=True, help="Show tracebacks; works after a command as well.")
@click.version_option(package_name="icepuffin")
def group(**_: Any) -> None:
    """Theta sketches and vector indexes for every snapshot of an Iceberg table.

    \b
    Examples:
      icepuffin init --uri sqlite:///catalog.db --table demo.packages --column embedding
      icepuffin search demo.packages --index embedding --like-id 48182 -k 10
      icepuffin stats demo.packages --json
    """


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line. An expected error is one line on stderr and exit code 1 (2 for wrong usage)."""
    if arguments is None:  # a process of its own: looking for garbage among modules takes a third of a short command
        gc.set_threshold(100_000, 50, 100)
        atexit.register(gc.freeze)  # so that nothing is looked through once more at the end
        if isinstance(sys.stdout, io.TextIOWrapper):  # values may have letters that the terminal's encoding lacks
            sys.stdout.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if arguments is None else arguments
    try:
        group.main(args=[word for word in words if word != "--debug"], prog_name="icepuffin", standalone_mode=False)
    except click.exceptions.Exit as exit_request:
        sys.exit(exit_request.exit_code)
    except click.Abort:
        click.echo("stopped", err=True)
        sys.exit(130)
    except click.UsageError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(f"error: {error.format_message()}", err=True)
        sys.exit(error.exit_code)
    except Exception as error:
        if "--debug" in words:
            raise
        click.echo(f"error: {_message(error)}", err=True)
        sys.exit(1)
    return None


def _message(error: Exception) -> str:
    """One line that says what went wrong. The type of the error is in it only where nobody foresaw the error."""
    from icepuffin.ops.errors import IcepuffinError  # only where something went wrong
    from icepuffin.ops.imports import remedy

    if isinstance(error, ModuleNotFoundError) and remedy(error):
        return f"this command needs {error.name}: {remedy(error)}"
    text = " ".join(str(error).split())
    if isinstance(error, IcepuffinError | ValueError):
        return text
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {text or 'no message'} (--debug shows where)"
