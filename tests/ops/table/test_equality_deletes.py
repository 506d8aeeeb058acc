"""Equality deletes become the row positions that the Iceberg spec gives them."""

import datetime as dt
import decimal
import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icepuffin.ops.model import DeleteFile, DeleteKind, LiveFile, SnapshotId
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.storage import StorageError
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.table import equality_deletes
from icepuffin.ops.table.delete_keys import KeyRanges, KeySchemas, key_bounds
from icepuffin.ops.table.live_files import EqualityDeletesError, live_files
from icepuffin.ops.table.row_deletes import deleted_by_file
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.catalog.equality import delete_where_id_is
from tests.ops.index.comparison import DEFINITION, index_head

STORE = LocalStorage()

VALUES: dict[IcebergType, list[Any]] = {
    BooleanType(): [True, False],
    IntegerType(): [0, -1, 2**31 - 1],
    LongType(): [0, -1, 2**40],
    FloatType(): [0.0, -0.0, 1.5, math.nan, math.inf],
    DoubleType(): [0.0, -0.0, 0.1, math.nan, -math.inf],
    StringType(): ["", "a", "ab", "\u00e9", "\U00010348"],
    BinaryType(): [b"", b"\xff", b"\xff\x00"],
    FixedType(2): [b"ab", b"\xff\xff"],
    UUIDType(): [uuid.UUID(int=1).bytes, uuid.UUID(int=2**127).bytes],
    DecimalType(9, 2): [decimal.Decimal("0.00"), decimal.Decimal("-1.25")],
    DateType(): [dt.date(1970, 1, 1), dt.date(1969, 12, 31)],
    TimeType(): [dt.time(0), dt.time(23, 59, 59, 999_999)],
    TimestampType(): [dt.datetime(1970, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)],  # noqa: DTZ001
}


@pytest.fixture(autouse=True)
def nothing_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equality_deletes, "_resolved", equality_deletes._Resolutions())


class Folder:
    """Data files and delete files, written by Arrow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = 0

    def write(self, schema: Schema, rows: Sequence[Mapping[str, Any]], group: int = 1000) -> tuple[str, int]:
        self._files += 1
        path = self._folder / f"{uuid.uuid4()}-{self._files}.parquet"
        arrow = schema_to_pyarrow(schema)
        plain = schema_to_pyarrow(schema, include_field_ids=False)
        table = pa.Table.from_pylist(list(rows), pa.schema([storage_field(field) for field in plain]))
        fields = [field.with_type(other.type) for field, other in zip(arrow, table.schema, strict=True)]
        nested = [
            stored if pa.types.is_struct(stored.type) else field for field, stored in zip(fields, arrow, strict=True)
        ]
        pq.write_table(table.cast(pa.schema(nested)), path, row_group_size=group)
        return f"file://{path}", path.stat().st_size

    def data(
        self, schema: Schema, rows: Sequence[Mapping[str, Any]], sequence: int = 1, group: int = 2, **other: Any
    ) -> LiveFile:
        path, size = self.write(schema, rows, group)
        return LiveFile(path, size, len(rows), sequence, "PARQUET", file_sequence_number=sequence, **other)

    def deletes(
        self, schema: Schema, rows: Sequence[Mapping[str, Any]], sequence: int = 2, keys: Schema | None = None
    ) -> DeleteFile:
        path, size = self.write(schema, rows)
        return DeleteFile(path, DeleteKind.EQUALITY, len(rows), sequence, size, keys=keys or schema)


def storage_field(field: pa.Field) -> pa.Field:
    """UUIDs are written as their bytes."""
    return field.with_type(pa.binary(16)) if isinstance(field.type, pa.UuidType) else field


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def deleted(*files: LiveFile) -> list[list[int]]:
    positions = deleted_by_file(lambda _: STORE, files)
    return [positions[file.path].tolist() for file in files]


def one(kind: IcebergType, field_id: int = 1, name: str = "a", **other: Any) -> Schema:
    return Schema(NestedField(field_id, name, kind, required=False, **other))


def same(one: Any, other: Any) -> bool:
    """Equality of Java's Float.equals and Double.equals, and null equals null."""
    if isinstance(one, float) and isinstance(other, float):
        return repr(one) == repr(other)
    return type(one) is type(other) and one == other


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_rows_are_deleted_as_comparing_each_with_each_says(folder: Folder, data: st.DataObject) -> None:
    """Any types, several keys, several delete files with other keys and of other sequence numbers."""
    kinds = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    schema = Schema(*(NestedField(7 + n, f"c{n}", kind, required=False) for n, kind in enumerate(kinds)))
    values = [st.sampled_from([None, *VALUES[kind]]) for kind in kinds]
    rows = st.lists(st.fixed_dictionaries({f"c{n}": of for n, of in enumerate(values)}), max_size=7)
    deletes: list[tuple[DeleteFile, list[dict[str, Any]]]] = []
    for _ in range(data.draw(st.integers(1, 4))):
        names = data.draw(st.lists(st.sampled_from(schema.column_names), min_size=1, unique=True))
        keys = data.draw(rows)
        file = folder.deletes(schema, keys, data.draw(st.integers(2, 5)), schema.select(*names))
        deletes.append((file, [{name: key[name] for name in names} for key in keys]))
    files, expected = [], []
    for _ in range(data.draw(st.integers(1, 4))):
        sequence, own = data.draw(st.integers(1, 4)), data.draw(rows)
        applying = [
            (file, keys) for file, keys in deletes if sequence < file.sequence_number and data.draw(st.booleans())
        ]
        file = folder.data(schema, own, sequence)
        files.append(replace(file, deletes=tuple(delete for delete, _ in applying)))
        expected.append(
            [
                position
                for position, row in enumerate(own)
                if any(all(same(row[name], key[name]) for name in key) for _, keys in applying for key in keys)
            ]
        )
    assert deleted(*files) == expected
    assert deleted(*reversed(files)) == expected[::-1], "what was resolved is kept"
    fewer = [replace(file, deletes=tuple(file.deletes)[1:]) for file in files]
    alone = [deleted(replace(file, path=file.path.replace("file://", "file:"))) for file in fewer]
    assert [deleted(file) for file in fewer] == alone


def test_nothing_is_read_again_but_for_new_deletes(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = one(LongType())
    files = [folder.data(schema, [{"a": number} for number in range(first, first + 5)]) for first in (0, 5)]
    older, newer = (folder.deletes(schema, [{"a": number}], sequence) for number, sequence in ((1, 2), (7, 3)))
    opened: list[str] = []
    real = equality_deletes.DataFile
    monkeypatch.setattr(
        equality_deletes, "DataFile", lambda store, file, *more: opened.append(file.path) or real(store, file, *more)
    )

    def resolve(*deletes: DeleteFile) -> tuple[list[list[int]], int]:
        opened.clear()
        found = deleted(*(replace(file, deletes=deletes) for file in files))
        return found, len(opened)

    assert resolve(older) == ([[1], []], 3)
    assert resolve(older) == ([[1], []], 0)
    assert resolve(older, newer) == ([[1], [2]], 3)
    assert older.path not in opened
    assert resolve(older) == ([[1], []], 0), "as after a rollback"
    assert resolve(newer) == ([[], [2]], 3)
    again = [replace(file, added_by=9, deletes=(older,)) for file in files]  # type: ignore[arg-type]
    opened.clear()
    assert deleted(*again) == [[1], []]
    assert len(opened) == 3, "a path that came again is another file"


def test_what_is_kept_is_bounded(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equality_deletes._resolved._of_file, "budget", 2_000)
    schema = one(LongType())
    delete = folder.deletes(schema, [{"a": number} for number in range(20)])
    for _ in range(10):
        file = folder.data(schema, [{"a": number} for number in range(20)], deletes=(delete,))
        assert deleted(file) == [list(range(20))]
        assert equality_deletes._resolved._of_file.weight <= 2_000
    assert len(equality_deletes._resolved._of_file) == 4
    assert equality_deletes._Resolution(3, b"d" * 16, np.arange(40)).nbytes == 40 * 8 + 16 + 256


def test_files_of_more_rows_than_are_read_at_once(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamed and read ahead; looked up in several turns."""
    monkeypatch.setattr(equality_deletes, "_ROWS_AT_ONCE", 7)
    monkeypatch.setattr(equality_deletes, "_SMALL_FILE", 20)
    monkeypatch.setattr(equality_deletes, "_FILES_AT_ONCE", 3)
    schema = one(LongType())
    rng = np.random.default_rng(5)
    doomed = rng.choice(200, 30, replace=False).tolist()
    delete = folder.deletes(schema, [{"a": number} for number in doomed])
    values = [rng.integers(0, 200, size).tolist() for size in (50, 3, 20, 0, 21, 1, 1, 64, 5)]
    files = [folder.data(schema, [{"a": number} for number in own], group=5, deletes=(delete,)) for own in values]
    assert deleted(*files) == [[place for place, number in enumerate(own) if number in set(doomed)] for own in values]


def test_files_with_other_deletes_of_the_same_keys(folder: Folder) -> None:
    """As upserts leave them: the newer file has the row that the delete of the older one made room for."""
    schema = one(LongType())
    first, second = (folder.deletes(schema, [{"a": key}, {"a": 9}], sequence) for key, sequence in ((1, 2), (2, 3)))
    older, newer = (folder.data(schema, [{"a": 1}, {"a": 2}, {"a": 9}], sequence) for sequence in (1, 2))
    assert deleted(replace(older, deletes=(first, second)), replace(newer, deletes=(second,))) == [[0, 1, 2], [1, 2]]


def test_a_history_of_upserts_takes_as_much_per_commit_however_long_it_is(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit deletes the keys that it writes: of a key that all have, one delete file decides, and what is kept
    of a data file does not grow with its deletes.
    """
    monkeypatch.setattr(equality_deletes._KeySet, "_by_all_owners", None)
    schema, commits = one(LongType()), range(1, 13)
    keys = [[{"a": -1}, {"a": number % 5}, {"a": 100 + number}] for number in commits]
    deletes = [folder.deletes(schema, rows, number) for number, rows in zip(commits, keys, strict=True)]
    files = [
        folder.data(schema, rows, number, deletes=tuple(deletes[number:]))
        for number, rows in zip(commits, keys, strict=True)
    ]
    expected = [[0, 1]] * 7 + [[0]] * 4 + [[]]
    assert deleted(*files) == expected
    assert equality_deletes._resolved._of_file.weight == sum(8 * len(rows) + 272 for rows in expected[:-1])


@pytest.mark.parametrize("seed", range(6))
def test_the_files_that_delete_a_row_are_those_that_have_its_keys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    files = [pa.table({"a": rng.integers(0, 4, size), "b": rng.integers(0, 3, size)}) for size in rng.integers(0, 6, 5)]
    keys = equality_deletes._KeySet([[file] for file in files])
    every = [{"a": a, "b": b} for a in range(5) for b in range(3)]
    codes = keys.find(pa.Table.from_pylist(every))
    assert (codes >= 0).tolist() == [any(key in file.to_pylist() for file in files) for key in every]
    present = [key for key, code in zip(every, codes, strict=True) if code >= 0]
    for number in range(1, 32):
        chosen = np.array([number >> place & 1 for place in range(5)], np.bool_)
        expected = [any(key in files[place].to_pylist() for place in np.flatnonzero(chosen)) for key in present]
        assert keys.among(codes[codes >= 0], chosen).tolist() == expected


def test_nan_is_nan_whatever_its_bits(folder: Folder) -> None:
    schema = one(DoubleType())
    patterns = np.array([0x7FF8_0000_0000_0000, 0xFFF8_0000_0000_0001], np.uint64).view(np.float64).tolist()
    delete = folder.deletes(schema, [{"a": patterns[0]}])
    assert deleted(folder.data(schema, [{"a": value} for value in patterns], deletes=(delete,))) == [[0, 1]]


def test_columns_that_were_widened_renamed_added_or_dropped(folder: Folder) -> None:
    schemas = {
        0: one(IntegerType()),
        1: one(LongType(), name="b"),
        2: Schema(*one(LongType(), name="b").fields, NestedField(2, "c", StringType(), required=False)),
        3: one(StringType(), 2, "c", initial_default="x"),
    }
    keys, why = KeySchemas(schemas, 3).schema_of((1,))
    assert (keys, why) == (one(LongType(), name="b"), "")
    both, _ = KeySchemas(schemas, 3).schema_of((1, 2))
    of_default, _ = KeySchemas(schemas, 3).schema_of((2,))
    assert both is not None
    assert of_default is not None
    old = folder.data(schemas[0], [{"a": number} for number in (3, 4, None)])
    widened = folder.data(schemas[1], [{"b": number} for number in (4, 2**40)])
    narrow, wide = folder.deletes(schemas[0], [{"a": 4}], keys=keys), folder.deletes(schemas[1], [{"b": 2**40}])
    assert deleted(*(replace(file, deletes=(narrow, wide)) for file in (old, widened))) == [[1], [0, 1]]
    added = folder.deletes(both, [{"b": 3, "c": None}, {"b": None, "c": "x"}])
    assert deleted(replace(old, deletes=(added,))) == [[0]], "a column that the file lacks is null there"
    of_partition = replace(old, constants=((2, "x"),), deletes=(added,), added_by=1)  # type: ignore[arg-type]
    assert deleted(of_partition) == [[2]], "or the value of its identity partition"
    defaulted = folder.deletes(one(StringType(), 2, "c"), [{"c": "x"}], keys=of_default)
    assert deleted(replace(old, deletes=(defaulted,))) == [[0, 1, 2]], "or its initial default"


def test_fields_inside_of_structs(folder: Folder) -> None:
    inner = StructType(
        NestedField(3, "b", LongType(), required=False), NestedField(4, "other", StringType(), required=False)
    )
    schema = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "s", inner, required=False))
    keys, _ = KeySchemas({0: schema}, 0).schema_of((1, 3))
    assert keys is not None
    rows = [{"id": 1, "s": {"b": 1}}, {"id": 1, "s": {"b": None}}, {"id": 1, "s": None}, {"id": 2, "s": {"b": 1}}]
    file = folder.data(schema, rows)
    first = folder.deletes(keys, [{"id": 1, "s": {"b": 1}}])
    of_null = folder.deletes(keys, [{"id": 1, "s": None}])
    assert deleted(replace(file, deletes=(first,))) == [[0]]
    assert deleted(replace(file, deletes=(of_null,))) == [[1, 2]], "a struct that is null has null fields"


@pytest.mark.parametrize(
    ("field_ids", "why"),
    [((), "names no"), ((9,), r"ids \[9\]"), ((2,), "column list.*list<string>"), ((3,), "inside of column list")],
)
def test_keys_that_cannot_be_compared_are_refused(folder: Folder, field_ids: tuple[int, ...], why: str) -> None:
    listed = ListType(3, StringType(), element_required=False)
    schema = Schema(NestedField(1, "a", LongType(), required=False), NestedField(2, "list", listed, required=False))
    keys, unreadable = KeySchemas({0: schema}, 0).schema_of(field_ids)
    delete = replace(folder.deletes(one(LongType()), [{"a": 1}]), keys=keys, unreadable=unreadable)
    file = folder.data(one(LongType()), [{"a": 1}], deletes=(delete,))
    with pytest.raises(EqualityDeletesError, match=why) as caught:
        deleted(file)
    assert file.path in str(caught.value)
    assert delete.path in str(caught.value)
    assert "rewrite_data_files" in str(caught.value)


def test_a_delete_file_without_its_keys_is_refused(folder: Folder) -> None:
    delete = folder.deletes(one(LongType(), 2, "b"), [{"b": 1}], keys=one(LongType()))
    with pytest.raises(StorageError, match=r"without the columns of ids \[1\]"):
        deleted(folder.data(one(LongType()), [{"a": 1}], deletes=(delete,)))


def test_imported_files_whose_columns_have_no_ids_are_refused(folder: Folder, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "imported.parquet")
    path = tmp_path / "imported.parquet"
    delete = folder.deletes(one(LongType()), [{"a": 1}])
    file = LiveFile(f"file://{path}", path.stat().st_size, 2, 1, "PARQUET", deletes=(delete,))
    with pytest.raises(EqualityDeletesError, match="have none") as caught:
        deleted(file)
    assert "rewrite_data_files" in str(caught.value)


# which delete files are looked at

BOUNDED: list[tuple[IcebergType, st.SearchStrategy[Any], Callable[[Any], Any]]] = [
    (LongType(), st.integers(-3, 3), lambda value: value),
    (
        DecimalType(9, 2),
        st.integers(-300, 300).map(lambda value: decimal.Decimal(value).scaleb(-2)),
        lambda value: value,
    ),
    (StringType(), st.text("ab\u00e9\U00010348", max_size=3), lambda value: value[:2]),
    (DateType(), st.integers(-3, 3), lambda value: value),
    (DoubleType(), st.sampled_from([0.0, -0.0, 1.0, math.nan]), lambda value: value),
]


def file_of(values: Sequence[Any], kind: IcebergType, shorten: Callable[[Any], Any], counts: bool) -> DataFile:
    """The manifest's facts about a file of one column, of id 1."""
    ordered = sorted(
        value for value in values if value is not None and not (isinstance(value, float) and math.isnan(value))
    )
    bounds: dict[str, Any] = {"lower_bounds": None, "upper_bounds": None}
    if ordered:
        lower, upper = shorten(ordered[0]), shorten(ordered[-1])
        bounds = {"lower_bounds": {1: to_bytes(kind, lower)}, "upper_bounds": {1: to_bytes(kind, upper)}}  # type: ignore[arg-type]
    nulls = {"null_value_counts": {1: sum(value is None for value in values)}, "value_counts": {1: len(values)}}
    return DataFile.from_args(**bounds, **(nulls if counts else {}))


@given(data=st.data())
def test_no_delete_file_with_a_row_of_the_data_file_is_left_out(data: st.DataObject) -> None:
    """By bounds that their writer may have cut short, and counts that it may not have written."""
    kind, values, shorten = data.draw(st.sampled_from(BOUNDED))
    lists = st.lists(st.none() | values, min_size=1, max_size=4)
    deletes = [data.draw(st.none() | lists) for _ in range(data.draw(st.integers(1, 5)))]
    own = data.draw(lists)
    key = NestedField(1, "a", kind, required=False)
    bounds = [of and key_bounds(file_of(of, kind, shorten, data.draw(st.booleans())), key) for of in deletes]
    counted = data.draw(st.booleans())
    meets = KeyRanges(key, bounds).may_meet(file_of(own, kind, shorten, counted)).tolist()
    for of, may in zip(deletes, meets, strict=True):
        assert may or (of is not None and not meet(of, own))


def meet(one: Iterable[Any], other: Sequence[Any]) -> bool:
    return any(same(value, another) for value in one for another in other)


@pytest.mark.parametrize(
    ("of_delete", "of_data", "expected"),
    [
        ([1, 2], [3, 4], False),
        ([3], [3, 4], True),
        ([None], [3], False),
        ([None, 1], [None, 3], True),
        ([1], [None], False),
    ],
)
@pytest.mark.parametrize(
    "kind", [IntegerType(), LongType(), DateType(), TimeType(), TimestampType(), TimestamptzType()], ids=str
)
def test_delete_files_without_a_row_of_the_data_file_are_left_out(
    kind: IcebergType, of_delete: list[int | None], of_data: list[int | None], expected: bool
) -> None:
    key = NestedField(1, "a", kind, required=False)
    delete, data = (file_of(values, kind, lambda value: value, counts=True) for values in (of_delete, of_data))
    assert KeyRanges(key, [key_bounds(delete, key)]).may_meet(data).tolist() == [expected]


def test_a_bound_that_was_cut_short_covers_what_begins_like_it() -> None:
    key = NestedField(1, "a", StringType(), required=False)
    delete, data = (
        file_of(values, StringType(), lambda value: value[:2], counts=True) for values in (["abc"], ["abd"])
    )
    assert KeyRanges(key, [key_bounds(data, key)]).may_meet(delete).tolist() == [True]
    exact = file_of(["abb"], StringType(), lambda value: value, counts=True)
    assert KeyRanges(key, [key_bounds(data, key)]).may_meet(exact).tolist() == [True]


def test_bounds_below_zero_are_below_those_above() -> None:
    for kind, values, ends in (
        (DecimalType(9, 2), [decimal.Decimal("-1.25"), decimal.Decimal("0.50")], (-125, 50)),
        (LongType(), [-(2**40), 7], (-(2**40), 7)),
    ):
        file = file_of(values, kind, lambda value: value, counts=True)
        bounds = key_bounds(file, NestedField(1, "a", kind, required=False))
        assert (bounds.lower, bounds.upper) == ends


def test_a_bound_of_another_width_bounds_nothing() -> None:
    """As where a date was widened to a timestamp since: days are no microseconds."""
    file = file_of([3], DateType(), lambda value: value, counts=True)
    assert key_bounds(file, NestedField(1, "a", TimestampType(), required=False)).lower is None


def test_a_table_that_was_replaced_keeps_the_deletes_of_its_past(sql_catalog: Catalog) -> None:
    """`CREATE OR REPLACE TABLE` gives a column of the same name the same id, whatever its type is then."""
    table = sql_catalog.create_table("db.t", one(LongType(), name="id"), properties={"format-version": "2"})
    table.append(pa.table({"id": [1, 256, 512, 1000]}))
    snapshot = delete_where_id_is(table, 256, bounded=True)
    replacement = Schema(*one(StringType(), name="id").fields, schema_id=1)
    updates = AddSchemaUpdate(schema=replacement), SetCurrentSchemaUpdate(schema_id=1)
    table.catalog.commit_table(table.refresh(), (), updates)
    assert table.refresh().schema().find_type(1) == StringType()
    assert deleted(*live_files(table, SnapshotId(snapshot)).files) == [[1]]


def test_an_index_follows_deletes_by_key(table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after its refresh; then the version's tombstones serve, and no keys are read."""
    table = table_factory()
    table.append(make_rows(0, 100))
    index_head(table)
    snapshot = delete_where_id_is(table, 3, 5)
    live_ids = [number for number in range(100) if number not in (3, 5)]

    def ids() -> list[int]:
        result = open_index(table.refresh(), DEFINITION, storage=STORAGE).search(queries(1), 200, columns=["id"])
        return sorted(result.rows["id"].to_pylist())

    assert ids() == live_ids
    report = index_head(table)
    assert (report.rows, report.tombstones, report.inserted) == (98, 2, 0)
    sketches = count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), SnapshotId(snapshot)).publish()
    assert sketches.ndv["id"] == 98
    monkeypatch.setattr(equality_deletes, "_resolved", equality_deletes._Resolutions())
    monkeypatch.setattr(equality_deletes, "DataFile", None)
    assert ids() == live_ids
    monkeypatch.undo()
    delete_where_id_is(table, 7)
    assert ids() == [number for number in live_ids if number != 7]


def test_what_was_resolved_is_kept_for_the_last_three_sets_of_deletes_of_a_file() -> None:
    kept = equality_deletes._Resolutions()
    names = [bytes([number]) for number in range(5)]
    for number, name in enumerate(names):
        kept.keep(("file",), equality_deletes._Resolution(number, name, np.empty(0, np.int64)))
    assert [one.digest for one in kept._of_file.get(("file",)) or ()] == names[-3:]


def test_what_was_resolved_is_shared_by_users_of_local_files_alone() -> None:
    """Who may read the keys of a bucket is for the bucket to say."""
    file: Any = SimpleNamespace(
        path="a", size=1, record_count=1, sequence_number=1, file_sequence_number=1, added_by=SnapshotId(7)
    )
    stores: list[Any] = [object(), object()]
    assert equality_deletes._file_key(LocalStorage(), file) == equality_deletes._file_key(LocalStorage(), file)
    assert len({equality_deletes._file_key(store, file) for store in (*stores, LocalStorage())}) == 3
    again: Any = SimpleNamespace(**{**vars(file), "added_by": SnapshotId(8)})
    assert equality_deletes._file_key(stores[0], again) != equality_deletes._file_key(stores[0], file)
