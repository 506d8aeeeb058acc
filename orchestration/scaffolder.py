"""The `defs.yaml` that `dg scaffold defs icepuffin.IcepuffinTableComponent` writes."""

from typing import Any

import dagster as dg

TEMPLATE = {
    "catalog": {"name": "lake", "type": "sql", "uri": "{{ env.LAKE_URI }}"},
    "table": "search.docs",
    "indexes": {"embedding": {"column": "embedding", "metric": "cosine"}},
    "sensor_running": True,
}
"""The attributes of docs/dagster.md: a project changes names, and sets the variable."""


class TableScaffolder(dg.Scaffolder[Any]):
    """Writes a table with one index."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        dg.scaffold_component(request, TEMPLATE)
