"""A Dagster instance in a folder, for the demo, the command line and a laptop. Clusters have `deploy/dagster.yaml`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from icepuffin.orchestration.settings import Settings

if TYPE_CHECKING:
    from dagster import DagsterInstance

WORKSPACE = "workspace.yaml"
"""File in the folder with which Dagster's own commands are started (`-w`)."""
DAGSTER_YAML = """\
# Written by icepuffin when the folder was empty; yours to change.
telemetry:
  enabled: false
nux:
  enabled: false
concurrency:
  pools:
    default_limit: 1    # one piece of work per table at a time
    granularity: run
  runs:
    max_concurrent_runs: 2
run_monitoring:
  enabled: true
  start_timeout_seconds: 300
  max_runtime_seconds: 86400    # of backfills and clicks; runs of the tables' jobs have their own limit
  max_resume_run_attempts: 0
run_retries:
  enabled: true
  max_retries: 1
  retry_on_asset_or_op_failure: false    # a lost process is tried again; a failed step has its own retry policy
"""
WORKSPACE_YAML = """\
# Written by icepuffin when there was none; yours to change.
# Dagster keeps sensors' switches and cursors by the name of the location.
load_from:
  - python_module:
      module_name: icepuffin.orchestration.definitions
      location_name: icepuffin
"""


def home_of(settings: Settings, settings_file: Path) -> Path:
    """Where the instance lives: the settings' `dagster_home`, else DAGSTER_HOME, else a folder beside the file.

    `~` is the user's home directory, as Dagster itself has it in DAGSTER_HOME.
    """
    if settings.dagster_home is not None:
        return (settings_file.parent / settings.dagster_home.expanduser()).resolve()
    named = os.environ.get("DAGSTER_HOME")
    return Path(named).expanduser().absolute() if named else (settings_file.parent / "dagster_home").resolve()


def prepare_home(home: Path) -> Path:
    """Make the folder, with a `dagster.yaml` and a `workspace.yaml` where there is none."""
    home.mkdir(parents=True, exist_ok=True)
    for name, text in (("dagster.yaml", DAGSTER_YAML), (WORKSPACE, WORKSPACE_YAML)):
        if not (home / name).exists():
            (home / name).write_text(text, encoding="utf-8")
    return home


def open_instance(home: Path) -> "DagsterInstance":
    """The instance in `home`, made if need be. Use as a context manager: it holds threads and connections."""
    from dagster import DagsterInstance  # noqa: PLC0415  takes a second, and whoever names the folder does not need it

    return DagsterInstance.from_config(str(prepare_home(home)))
