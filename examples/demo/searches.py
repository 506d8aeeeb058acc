"""The searches of the demo: packages like a well-known one, in the newest snapshot and in an older one."""

import pyarrow.compute as pc
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table
from rich.console import Console

from examples.demo.demo_report import INDEX, SnapshotLine
from examples.demo.history import IDENTIFIER
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.presentation import Grid
from icepuffin.ops.resources import Catalogs
from icepuffin.ops.rows.vector_column import exact_vectors
from icepuffin.ops.search.opening import open_index
from icepuffin.orchestration.cli.output import print_grid
from icepuffin.orchestration.settings import Settings

PACKAGES = ("postgresql", "nginx", "git")
_SHOWN = 5


def show(settings: Settings, catalogs: Catalogs, lines: list[SnapshotLine], console: Console) -> int:
    """Search the newest snapshot, and the one before it for a deleted row. Returns the id of a row to search with."""
    table = catalogs.table("demo", IDENTIFIER)
    newest, older = lines[-1].snapshot_id, lines[-2].snapshot_id
    for name in PACKAGES:
        _search(table, name, newest, "the newest snapshot", console)
    game = _name_of_a_game(table, older)
    _search(table, game, older, "the snapshot before the games were deleted", console)
    _search(table, game, newest, "the newest snapshot, from its vector then", console, vector_from=older)
    first = table.scan(row_filter=EqualTo(term="name", value=PACKAGES[0]), selected_fields=("id",)).to_arrow()
    return int(first["id"][0].as_py())


def _search(
    table: Table,
    name: str,
    snapshot_id: SnapshotId,
    where: str,
    console: Console,
    *,
    vector_from: int | None = None,
) -> None:
    row = table.scan(
        row_filter=EqualTo(term="name", value=name),
        snapshot_id=vector_from or snapshot_id,
        selected_fields=("embedding",),
    ).to_arrow()
    if not row.num_rows:
        return
    vector = exact_vectors(row["embedding"])
    reader = open_index(table, INDEX, snapshot=snapshot_id)
    result = reader.search(vector[:1], _SHOWN + 1, columns=["name", "section", "description"])
    others = result.rows.filter(pc.not_equal(result.rows["name"], name)).drop_columns(["query", "rank"])
    print_grid(console, Grid.of_rows(f"Packages like {name} at {where} ({result.coverage})", others.slice(0, _SHOWN)))


def _name_of_a_game(table: Table, snapshot_id: SnapshotId) -> str:
    games = table.scan(
        row_filter=EqualTo(term="section", value="games"),
        snapshot_id=snapshot_id,
        selected_fields=("name",),
    ).to_arrow()
    return str(min(games["name"].to_pylist()))
