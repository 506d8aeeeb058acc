"""Vectors to search with: of a row of the table, of a JSON text, of a file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa
    from pyiceberg.table import Table

    from icepuffin.ops.model import StorageConfig

_REMEDY = "give a JSON list of numbers such as [0.1, 0.2], a list of such lists, or a .npy file"
_JSON_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}


def vector_of_row(
    table: "Table",
    column: str,
    row: str,
    *,
    id_column: str,
    element_type: str,
    snapshot: str | None = None,
    storage: "StorageConfig",
) -> "npt.NDArray[Any]":
    """Array [1, dims]: the vector of the row whose `id_column` is `row`, as of the snapshot and by its column names.

    Raises ClickException where not one row has it, or the column cannot be looked up; UnknownSnapshotError.
    """
    from pyiceberg.expressions import EqualTo

    from icepuffin.ops.filters.matches import find_matches
    from icepuffin.ops.rows.datafile import take_rows
    from icepuffin.ops.rows.vector_column import exact_vectors
    from icepuffin.ops.search.errors import FilterError
    from icepuffin.ops.storage import open_storage
    from icepuffin.ops.table.live_files import live_files
    from icepuffin.ops.table.snapshots import resolve_snapshot, schema_at, table_name

    name = table_name(table)
    schema = schema_at(table, snapshot)
    live = live_files(table, resolve_snapshot(table, snapshot).snapshot_id)
    fields = {field.name: field for field in schema.fields}
    if id_column not in fields:
        raise click.ClickException(
            f"{name} has no column '{id_column}'; name one with --id-column: {', '.join(fields)}"
        )
    try:
        matches = find_matches(table, live, schema, EqualTo(term=id_column, value=row), storage)
    except FilterError as error:
        raise click.ClickException(
            f"{name}: {id_column} = {row} cannot be looked up, {id_column} is {fields[id_column].field_type}; "
            "name another column with --id-column"
        ) from error
    if not matches.positions:
        raise click.ClickException(
            f"{name}, snapshot {live.snapshot_id}: no row has {id_column} = {row}; "
            "take an id of that snapshot, or name the column with --id-column"
        )
    if matches.count > 1:
        raise click.ClickException(
            f"{name}, snapshot {live.snapshot_id}: {matches.count:,} rows have {id_column} = {row}; "
            "name a column that tells rows apart with --id-column, or give a vector with --vector"
        )
    ((number, positions),) = matches.positions.items()
    file = live.files[number]
    fields_read = [schema.find_field(column).field_id]
    vector = take_rows(open_storage(file.path, storage), file, schema, fields_read, positions).column(0)
    if vector.null_count:
        raise click.ClickException(
            f"{name}, snapshot {live.snapshot_id}: the row with {id_column} = {row} has no vector"
        )
    return exact_vectors(vector, None, element_type)


def read_vectors(path: Path) -> "npt.NDArray[Any]":
    """Array [queries, dims] of a .npy or a JSON file. Raises ClickException for a file that holds no vectors."""
    import numpy as np

    try:
        if path.suffix != ".npy":
            return parse_vectors(path.read_text(encoding="utf-8"), str(path))
        array: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    except UnicodeDecodeError:
        raise _no_vector(f"{path} is neither text nor named .npy") from None
    except (ValueError, EOFError):  # numpy's own message is about pickles
        raise _no_vector(f"{path} is no .npy file of numbers") from None
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2):
        raise _no_vector(f"{path} holds {array.dtype} of shape {array.shape}, not numbers [queries, dims]")
    return np.ascontiguousarray(np.atleast_2d(array))


def read_queries(path: Path, column: str | None) -> "npt.NDArray[Any] | pa.ChunkedArray":
    """The queries of a .npy or a JSON file, array [queries, dims]; or a column of a Parquet file.

    column: which one; where a Parquet file has one column of lists or bytes, None stands for it.
    Raises ClickException for a file that holds no vectors, and for a column that it lacks.
    """
    if path.suffix != ".parquet":
        if column is not None:
            raise click.UsageError(f"--column goes with a Parquet file, not with {path}")
        return read_vectors(path)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
        possible = [field.name for field in schema if pa.types.is_nested(field.type) or _holds_bytes(field.type)]
        if column is None and len(possible) == 1:
            column = possible[0]
        if column is None:
            names = ", ".join(possible) or "none"
            raise click.ClickException(f"{path}: name the column of the queries with --column: {names}")
        if column not in schema.names:
            raise click.ClickException(f"{path} has no column '{column}'; it has {', '.join(schema.names)}")
        queries: pa.ChunkedArray = pq.read_table(path, columns=[column]).column(0)
    except (pa.ArrowInvalid, OSError) as error:
        raise click.ClickException(f"{path} is no Parquet file that can be read: {error}") from None
    if queries.null_count:
        raise click.ClickException(f"{path}: column '{column}' has {queries.null_count:,} nulls; leave these rows out")
    return queries


def _holds_bytes(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def parse_vectors(text: str, source: str) -> "npt.NDArray[Any]":
    """f64[queries, dims] of a JSON text. Raises ClickException, which names `source`, for a text without vectors."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise _no_vector(f"{source} is not JSON ({error.msg} at character {error.pos + 1})") from None
    except RecursionError:
        raise _no_vector(f"{source} is nested too deeply") from None
    if not isinstance(value, list):
        raise _no_vector(f"{source} is {_json_kind(value)}, not a list")
    rows = value if value and all(isinstance(row, list) for row in value) else [value]
    if not rows[0]:
        raise _no_vector(f"{source} is an empty list")
    for row in rows:
        if len(row) != len(rows[0]):
            raise _no_vector(f"{source} has lists of {len(rows[0])} and of {len(row)} numbers")
        for position, number in enumerate(row, start=1):
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise _no_vector(f"{source} has {_json_kind(number)} at position {position}, not a number")

    import numpy as np

    try:
        return np.array(rows, np.float64)
    except OverflowError:
        raise _no_vector(f"{source} has a number that is too large for a double") from None


def _no_vector(reason: str) -> click.ClickException:
    return click.ClickException(f"the query is no vector: {reason}; {_REMEDY}")


def _json_kind(value: object) -> str:
    return _JSON_KINDS.get(type(value), "a number")
