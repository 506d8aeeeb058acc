"""The demo's table and its history: each snapshot is written as a user's engine would write it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.errors import FileDamageError
from icepuffin.ops.model import SnapshotId

IDENTIFIER = "demo.packages"
FILES_PER_ROUND = 6
SHIPPED = Path(__file__).resolve().parents[1] / "packages.parquet"


class DemoDataError(FileDamageError):
    """The rows of the demo are missing, or a change to its table left no snapshot."""


@dataclass(frozen=True, slots=True)
class DemoRows:
    """The rows of the demo's table, and query vectors that are not in it."""

    table: pa.Table
    """id long, name, section, description string, embedding list<float>."""
    held_out: np.ndarray
    """Query vectors, f32[queries, dims]; none is a row of the table."""


@dataclass(frozen=True, slots=True)
class Step:
    """One change to the table."""

    what: str
    """The change in words."""
    snapshot_id: SnapshotId


def load_rows(*, held_out: int = 200, seed: int = 7) -> DemoRows:
    """Read the shipped rows. Raises DemoDataError where they are missing."""
    if not SHIPPED.exists():
        raise DemoDataError(f"{SHIPPED} is missing")
    rows = pq.read_table(SHIPPED)
    index = rows.schema.get_field_index("embedding")
    rows = rows.set_column(index, "embedding", pc.cast(rows["embedding"], pa.list_(pa.float32())))
    order = np.random.default_rng(seed).permutation(len(rows))
    table = rows.take(np.sort(order[held_out:]))
    queries = rows.take(order[:held_out])["embedding"].combine_chunks()
    return DemoRows(table, queries.flatten().to_numpy().reshape(held_out, -1))


def write_history(catalog: Catalog, rows: pa.Table) -> Iterator[Step]:
    """Create the table and change it step by step. The next change is made when the caller resumes the iterator."""
    first, second, spare = _split(rows, (0.60, 0.35))
    table = _create(catalog, rows.schema, rows_per_file=max(1, first.num_rows // FILES_PER_ROUND))
    changes: tuple[tuple[str, Callable[[], None]], ...] = (
        (f"append {first.num_rows:,} rows", lambda: table.append(first)),
        (f"append {second.num_rows:,} rows", lambda: table.append(second)),
        ("delete one whole file", lambda: _delete_one_file(table)),
        (f"overwrite {spare.num_rows:,} rows: a delete, an append", lambda: _overwrite(table, spare)),
        ("delete the games (position deletes)", lambda: _delete_games(table)),
    )
    for what, change in changes:
        table.refresh()  # index versions were committed meanwhile
        change()
        table.refresh()
        snapshot = table.current_snapshot()
        if snapshot is None:
            raise DemoDataError(f"{IDENTIFIER}: '{what}' left no snapshot")
        yield Step(what, SnapshotId(snapshot.snapshot_id))


def _split(rows: pa.Table, shares: tuple[float, ...]) -> list[pa.Table]:
    ends = [int(len(rows) * share) for share in np.cumsum(shares)]
    starts = [0, *ends]
    return [rows.slice(start, end - start) for start, end in zip(starts, [*ends, len(rows)], strict=True)]


def _create(catalog: Catalog, schema: pa.Schema, rows_per_file: int) -> Table:
    namespace = IDENTIFIER.split(".", maxsplit=1)[0]
    catalog.create_namespace_if_not_exists(namespace)
    bytes_per_row = 4 * 384 + 120
    return catalog.create_table(
        IDENTIFIER,
        schema,
        properties={"format-version": "2", "write.target-file-size-bytes": str(rows_per_file * bytes_per_row)},
    )


def _delete_one_file(table: Table) -> None:
    """Delete every row of the file with the lowest ids: PyIceberg drops the file, and rewrites nothing."""
    table.refresh()
    bounds = [metrics["id"] for metrics in table.inspect.files()["readable_metrics"].to_pylist()]
    lowest = min(bounds, key=lambda bound: bound["lower_bound"])
    table.delete(f"id >= {lowest['lower_bound']} and id <= {lowest['upper_bound']}")


def _overwrite(table: Table, spare: pa.Table) -> None:
    """Replace as many of the lowest ids as there are spare rows."""
    table.refresh()
    ids = np.sort(table.scan(selected_fields=("id",)).to_arrow()["id"].to_numpy())
    table.overwrite(spare, overwrite_filter=f"id <= {ids[min(len(ids), spare.num_rows) - 1]}")


def _delete_games(table: Table) -> None:
    """Delete the games by position deletes. They lie close together, so one shard loses more rows than the others."""
    table.refresh()
    positions: dict[str, np.ndarray] = {}
    for task in table.scan().plan_files():
        with table.io.new_input(task.file.file_path).open() as stream:
            section = pq.read_table(stream, columns=["section"])["section"]
        games = np.flatnonzero(pc.equal(section, "games"))
        if len(games):
            positions[task.file.file_path] = games.astype(np.int64)
    append_position_deletes(table, positions)
