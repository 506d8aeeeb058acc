"""Tables of random rows of many types: some deleted, some columns added later with a default, later files partitioned.

Of columns that are an identity partition some files have none, as files that Hive wrote.
"""

import datetime as dt
import math
import random
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import write_file
from pyiceberg.partitioning import (
    PartitionField,
    PartitionFieldValue,
    PartitionKey,
    _to_partition_representation,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table, WriteTask
from pyiceberg.transforms import IdentityTransform, Transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.model import Action
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from tests.conftest import STORAGE

_ROWS = 60
_HALVES: list[Any] = [number / 2 for number in range(-4, 5)]
_FLOATS = [*_HALVES, *_HALVES, 0.1, -0.0, float("inf"), -float("inf"), float("nan")]
_TEXTS = ["", "a", "ab", "abc", "abd", "b", "it's", "%", "a_c", "ä", "z" * 20, "z" * 20 + "a", "\U0001f600"]
_BYTES = [b"", b"\x00", b"\x01", b"\x7f", b"\x80\x01", b"\xff" * 18]


def _day(rng: random.Random) -> dt.date:
    first = rng.choice([dt.date(1969, 12, 25), dt.date(2026, 1, 1)])  # before 1970 numbers of days are negative
    return first + dt.timedelta(rng.randrange(14))


def _time(rng: random.Random) -> dt.datetime:
    return dt.datetime.combine(_day(rng), dt.time(rng.randrange(24), 30, 0, rng.choice([0, 1, 999_999])))


TYPES: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "i32": (pa.int32(), lambda rng: rng.choice([rng.randrange(-5, 6), 2**31 - 1, -(2**31)])),
    "i64": (pa.int64(), lambda rng: rng.choice([rng.randrange(-5, 6), 2**63 - 1, -(2**63), 2**31])),
    "f32": (pa.float32(), lambda rng: rng.choice(_FLOATS)),
    "f64": (pa.float64(), lambda rng: rng.choice(_FLOATS)),
    "price": (pa.decimal128(9, 2), lambda rng: Decimal(rng.randrange(-300, 300)).scaleb(-2)),
    "day": (pa.date32(), _day),
    "local": (pa.timestamp("us"), _time),
    "utc": (pa.timestamp("us", "UTC"), lambda rng: _time(rng).replace(tzinfo=dt.UTC)),
    "hour": (pa.time64("us"), lambda rng: dt.time(rng.randrange(24), 30)),
    "text": (pa.string(), lambda rng: rng.choice(_TEXTS)),
    "raw": (pa.binary(), lambda rng: rng.choice(_BYTES)),
    "flag": (pa.bool_(), lambda rng: rng.random() < 0.5),
}
"""Column -> (type, a random value)"""


KINDS = {
    "i32": IntegerType(),
    "i64": LongType(),
    "f32": FloatType(),
    "f64": DoubleType(),
    "price": DecimalType(9, 2),
    "day": DateType(),
    "local": TimestampType(),
    "utc": TimestamptzType(),
    "hour": TimeType(),
    "text": StringType(),
    "raw": BinaryType(),
    "flag": BooleanType(),
}


def random_table(
    catalog: Catalog, name: str, column: str, transform: Transform[Any, Any] | None, seed: str = ""
) -> tuple[Table, pa.Table]:
    """(a table, its live rows): two files with deletes, and more under a spec of later, with nulls as a partition.

    The two files lack some columns, which have the default of later in them, or null.
    """
    rng = random.Random(f"{seed or name} rows")  # no other draw of a test has this stream
    rows = random_rows(rng, 0)
    late = rng.sample(list(TYPES), 4)
    early = rows.drop_columns(late)
    table = catalog.create_table(name, early.schema, properties={"format-version": "2"})
    table.append(early.slice(0, 25))
    table.append(early.slice(25))
    removed = _delete_random_rows(table.refresh(), rng)
    rows = _add_columns(table.refresh(), rows, late, rng)
    if transform is not None:
        with table.update_spec() as spec:
            spec.add_field(column, transform, "part")
        more = random_rows(rng, _ROWS)
        append_rows(table.refresh(), more, column)
        if isinstance(transform, IdentityTransform):
            _strip(table.refresh(), column, rng)
        rows = pa.concat_tables([rows, more])
    return table.refresh(), rows.filter(pa.array([number not in removed for number in rows["id"].to_pylist()]))


def random_rows(rng: random.Random, first: int) -> pa.Table:
    columns = {
        name: pa.array([None if rng.random() < 0.15 else draw(rng) for _ in range(_ROWS)], kind)
        for name, (kind, draw) in TYPES.items()
    }
    ids = range(first, first + _ROWS)
    vectors = pa.array([[float(number), 1.0] for number in ids], pa.list_(pa.float32()))
    return pa.table({"id": ids, **columns, "embedding": vectors})


def _add_columns(table: Table, rows: pa.Table, names: Sequence[str], rng: random.Random) -> pa.Table:
    """Add columns to the table, each with a default or without; the rows that it has then."""
    with table.update_schema() as change:
        for name in names:
            kind, draw = TYPES[name]
            default = None if rng.random() < 0.3 else draw(rng)
            while isinstance(default, float) and not math.isfinite(default):  # JSON has none
                default = draw(rng)
            change.add_column(name, KINDS[name], default_value=default)
            same = pa.array([default] * len(rows), kind)
            rows = rows.set_column(rows.schema.get_field_index(name), name, same)
    return rows


def _strip(table: Table, column: str, rng: random.Random) -> None:
    """Take a column that is an identity partition out of half the files that have it as one."""
    for file in live_files(table, table.metadata.current_snapshot_id or 0).files:
        if file.spec_id == table.spec().spec_id and rng.random() < 0.5:
            path = to_path(file.path)
            pq.write_table(pq.read_table(path).drop_columns([column]), path)


def _delete_random_rows(table: Table, rng: random.Random) -> set[int]:
    """The ids that are gone."""
    removed, positions = set(), {}
    for file in live_files(table, table.metadata.current_snapshot_id or 0).files:
        some = np.array(sorted(rng.sample(range(file.record_count), 4)))
        positions[file.path] = some
        removed |= set(np.asarray(pq.read_table(to_path(file.path), columns=["id"])["id"])[some].tolist())
    append_position_deletes(table, positions)
    return removed


def append_rows(table: Table, rows: pa.Table, column: str) -> None:
    """As a writer with Iceberg's transforms does it; PyIceberg's own wants a package of Rust for most."""
    spec, schema = table.spec(), table.schema()
    parts: dict[str, tuple[PartitionKey, list[int]]] = {}
    for place, value in enumerate(rows[column].to_pylist()):
        key = PartitionKey([_part(spec.fields, schema, value)], spec, schema)
        parts.setdefault(repr(key.partition), (key, []))[1].append(place)
    stored = rows.select([field.name for field in schema.fields]).cast(schema.as_arrow())
    tasks = [
        WriteTask(uuid.uuid4(), number, schema, stored.take(pa.array(places)).to_batches(), None, key)
        for number, (key, places) in enumerate(parts.values())
    ]
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for file in write_file(table.io, table.metadata, iter(tasks)):
            append.append_data_file(file)


def _part(fields: Sequence[PartitionField], schema: Schema, value: Any) -> PartitionFieldValue:
    kind = schema.find_field(fields[0].source_id).field_type
    return PartitionFieldValue(
        fields[0], fields[0].transform.transform(kind)(_to_partition_representation(kind, value))
    )


def build_version(table: Table, definition: IndexDefinition) -> Action:
    """Make the version of the head, in this process."""
    head = table.refresh().metadata.current_snapshot_id or 0
    return materialize_index(RunContext(table, STORAGE, LocalRunner(1)), definition, head).action
