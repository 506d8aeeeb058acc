"""The code location that `icepuffin ui` and `deploy/` load: the tables of the settings. Starts no JVM."""

import dagster as dg

from icepuffin.orchestration.component import SettingsComponent
from icepuffin.orchestration.processes import run_process_executor
from icepuffin.orchestration.settings import load


@dg.definitions
def defs() -> dg.Definitions:
    """The entry point that workspace.yaml and `dg` name."""
    return dg.Definitions.merge(
        dg.build_defs_for_component(SettingsComponent(load())), dg.Definitions(executor=run_process_executor)
    )
