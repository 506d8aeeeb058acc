"""The demo: the history of a table, indexed snapshot by snapshot through Dagster, then searched."""

import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import dagster as dg
from rich.console import Console

from examples.demo import searches
from examples.demo.demo_report import SnapshotLine, measure, print_report
from examples.demo.history import load_rows, write_history
from examples.demo.local_sensor import tick
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.errors import TableStateError
from icepuffin.ops.model import SnapshotId
from icepuffin.orchestration.engines import catalogs_of
from icepuffin.orchestration.instance import home_of, open_instance
from icepuffin.orchestration.settings import FILE_NAME, Settings, load

SETTINGS = """\
# Written by the demo. `icepuffin init` writes such a file for a table of your own.
dagster_home = "dagster_home"

[catalogs.demo]
type = "sql"
uri = "sqlite:///{directory}/catalog.db"
warehouse = "file://{directory}/warehouse"

[tables.packages]
catalog = "demo"
name = "demo.packages"
snapshots = "every"
sensor_running = true

[tables.packages.indexes.embedding]
column = "embedding"
metric = "cosine"
filters = ["section"]
text = ["name", "description"]
vectors = "f32"
shards = 4
target_recall = 0.95

[spark]
master = "local[2]"
driver_only_rows = 0    # so that even this small table goes through Spark

[spark.conf]
"spark.driver.bindAddress" = "127.0.0.1"
"spark.driver.host" = "127.0.0.1"
"spark.driver.memory" = "1g"
"spark.ui.enabled" = "false"
"spark.ui.showConsoleProgress" = "false"
"spark.log.level" = "ERROR"
"spark.sql.shuffle.partitions" = "2"
"""


_UNFIT = re.compile(r"""["\\?#%\x00-\x1f\x7f]""")
"""Characters that mean something else in a URI, or in a text of TOML"""


class DemoError(TableStateError):
    """The demo cannot start here, or one of its runs failed."""


def run_demo(directory: Path, console: Console) -> None:
    """Make everything under `directory`, which must hold neither a demo nor settings yet, and report progress on
    `console`.

    Raises DemoError, DemoDataError.
    """
    if wrong := _UNFIT.search(str(directory)):
        raise DemoError(
            f"{str(directory)!r} has {wrong[0]!r} in its name, which the URI of the demo's catalog cannot have: name "
            "another folder"
        )
    settings_file, text = directory / FILE_NAME, SETTINGS.format(directory=directory)
    if (directory / "catalog.db").exists():
        raise DemoError(f"{directory} holds a demo already: search it, remove it, or name another folder")
    if settings_file.exists() and settings_file.read_bytes() != text.encode():
        raise DemoError(f"{settings_file} is not the demo's, which would replace it: name another folder")
    begun = time.perf_counter()
    rows = load_rows()
    (directory / "warehouse").mkdir(parents=True, exist_ok=True)
    settings_file.write_text(text, encoding="utf-8")
    settings = load(settings_file)
    catalog = open_catalog("demo", settings.catalogs["demo"].properties)
    console.print(f"[bold]icepuffin demo[/] in {directory}: {rows.table.num_rows:,} packages, 384 dimensions")
    console.print("Five changes, each with its runs: half a minute for the first, which starts Spark; then seconds\n")
    lines: list[SnapshotLine] = []
    with open_instance(home_of(settings, settings_file)) as instance:
        for number, step in enumerate(write_history(catalog, rows.table), start=1):
            console.print(f"[bold]{number}.[/] {step.what}", highlight=False)
            indexed = _tick(settings, instance, console)
            lines += [measure(settings, instance, snapshot, step.what, rows.held_out) for snapshot in indexed]
    print_report(lines, console)
    row_id = searches.show(settings, catalogs_of(settings), lines, console)
    _suggest(directory, row_id, time.perf_counter() - begun, console)


def _tick(settings: Settings, instance: dg.DagsterInstance, console: Console) -> list[SnapshotId]:
    """One sensor tick, as the daemon makes one every 30 seconds. Returns the snapshots whose runs succeeded."""
    done: list[SnapshotId] = []
    with console.status("the sensor is evaluated, and its runs build sketches and index"):
        for run in tick(settings, instance):
            if not run.succeeded:
                raise DemoError(f"the run for snapshot {run.partition_key} failed: {run.message}")
            done.append(SnapshotId(int(run.partition_key)))
    for snapshot_id in done:
        console.print(f"   sensor saw snapshot {snapshot_id}; its run built sketches and index", highlight=False)
    return done


def _suggest(directory: Path, row_id: int, seconds: float, console: Console) -> None:
    where = shlex.join(["--dir", str(directory)])
    say: Callable[[str], None] = lambda text: console.print(text, highlight=False, soft_wrap=True)  # noqa: E731
    say(f"\nDone in {seconds:.0f} s. Everything is under {directory}. Try, with .venv/bin on the PATH:")
    say(f"  icepuffin search demo.packages --index embedding --like-id {row_id} -k 10 {where}")
    say(f"  icepuffin search demo.packages --like-id {row_id} --where \"section = 'web'\" {where}")
    say(f"  icepuffin stats demo.packages {where}")
    say(f"  icepuffin snapshots demo.packages {where}")
    say(f"  icepuffin report demo.packages {where}    what each version took, as a page")
    say(f"\nThe Dagster UI on this same instance:  icepuffin ui --start {where}")
    say("  http://127.0.0.1:3000/asset-groups   the table, its sketches, its index")
    say("  .../assets/demo/demo/packages/ann_index/embedding?view=partitions   one partition per snapshot: click one")
    say("  for its recall, tombstones and bytes; 'Materialize' backfills any of them; 'Automation' shows the sensor")
