import pickle
import tracemalloc
from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from examples.demo.row_deletes import append_position_deletes, commit_delete_files
from icepuffin.ops.errors import ArgumentError, IcepuffinError, TableFaultError
from icepuffin.ops.model import NO_SNAPSHOT, DeleteFile, DeleteKind, LiveFile, SnapshotId
from icepuffin.ops.rows.datafile import DataFileError
from icepuffin.ops.storage import open_storage
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table import live_files as live_files_module
from icepuffin.ops.table import row_deletes
from icepuffin.ops.table.delete_keys import KeyBounds
from icepuffin.ops.table.live_files import (
    EqualityDeletesError,
    _as_live_file,
    _Delete,
    _DeleteIndex,
    live_files,
)
from icepuffin.ops.table.manifests import (
    ROW_ID,
    EntryObserver,
    _inherit_row_ids,
    _listed_files,
    _with_statistics_of,
    field_of,
    live_entries,
    read_manifests,
)
from icepuffin.ops.table.row_deletes import NO_DELETES, deleted_positions, fingerprint
from icepuffin.ops.table.shared_deletes import DeleteFilter, compares_keys, distinct_deletes, path_and_offset
from icepuffin.ops.table.snapshots import UnknownSnapshotError, find_snapshot
from tests.conftest import STORAGE, make_rows
from tests.ops.catalog.equality import delete_where_id_is

TableFactory = Callable[..., Table]


def head(table: Table) -> int:
    table.refresh()
    assert table.metadata.current_snapshot_id is not None
    return table.metadata.current_snapshot_id


def test_live_files_are_those_that_a_scan_reads(table_factory: TableFactory) -> None:
    table = table_factory()
    table.append(make_rows(0, 100))
    table.append(make_rows(100, 150))
    live = live_files(table, head(table))
    assert [file.path for file in live.files] == sorted(task.file.file_path for task in table.scan().plan_files())
    assert live.record_count == 150


def test_files_that_a_snapshot_has_deleted_are_not_live_and_its_schema_is_its_own(table_factory: TableFactory) -> None:
    table = table_factory()
    table.append(make_rows(0, 10))
    table.append(make_rows(10, 20))
    table.delete("id < 10")
    before = head(table)
    with table.update_schema() as update:
        update.rename_column("name", "title")
    table.append(make_rows(20, 30).rename_columns(["id", "title", "section", "embedding"]))
    live = live_files(table, before)
    assert [file.record_count for file in live.files] == [10]
    assert "name" in table.schemas()[live.schema_id].column_names
    assert "title" in table.schemas()[live_files(table, head(table)).schema_id].column_names


def test_position_deletes_apply_to_the_file_that_they_name(table_factory: TableFactory) -> None:
    table = table_factory()
    table.append(make_rows(0, 100))
    table.append(make_rows(100, 150))
    first, second = live_files(table, head(table)).files
    append_position_deletes(table, {first.path: np.array([3, 1])})
    append_position_deletes(table, {first.path: np.array([1, 7])})
    live = live_files(table, head(table)).by_path()
    store = open_storage(table.location(), STORAGE)
    assert deleted_positions(store, live[first.path]).tolist() == [1, 3, 7]
    assert deleted_positions(store, live[second.path]).tolist() == []
    assert fingerprint(live[second.path]) == NO_DELETES
    assert table.scan().to_arrow().num_rows == 147


def test_position_deletes_apply_to_files_of_every_partition_spec(table_factory: TableFactory) -> None:
    table = table_factory()
    table.append(make_rows(0, 10))
    with table.update_spec() as update:
        update.add_field("section", IdentityTransform())
    table.append(make_rows(10, 20))
    files = live_files(table, head(table)).files
    assert len({file.spec_id for file in files}) == 2
    append_position_deletes(table, {file.path: np.array([0]) for file in files})
    live = live_files(table, head(table)).files
    store = open_storage(table.location(), STORAGE)
    assert [deleted_positions(store, file).tolist() for file in live] == [[0]] * 6
    assert table.scan().to_arrow().num_rows == 14


def test_equality_deletes_of_a_spec_whose_fields_are_all_void_apply_to_every_file(table_factory: TableFactory) -> None:
    table = table_factory(**{"format-version": "1"})
    with table.update_spec() as update:
        update.add_field("section", IdentityTransform())
    table.append(make_rows(0, 10))
    with table.update_spec() as update:  # v1 keeps the field, as void
        update.remove_field("section")
    with table.transaction() as transaction:
        transaction.upgrade_table_version(2)
    table.append(make_rows(10, 20))
    snapshot = delete_where_id_is(table, 3)
    assert [any(map(compares_keys, file.deletes)) for file in live_files(table, snapshot).files] == [True] * 6


def test_equality_deletes_of_a_partition_apply_to_its_files_alone(table_factory: TableFactory) -> None:
    table = table_factory()
    with table.update_spec() as update:
        update.add_field("section", IdentityTransform())
    table.append(make_rows(0, 10))
    snapshot = delete_where_id_is(table, 3, 4, partition=("section 3",))
    files = live_files(table, snapshot).files
    assert [value for file in files if file.deletes for _, value in file.constants] == ["section 3"]
    assert len(files) == 5


@pytest.mark.parametrize("lacking", ["added_files_count", "existing_files_count"])
def test_a_manifest_list_of_v1_may_not_count_its_files(lacking: str) -> None:
    counts = {"added_files_count": 1, "existing_files_count": 2}
    whole, other = (
        ManifestFile.from_args(manifest_path="m", content=ManifestContent.DATA, **given)
        for given in (counts, {**counts, lacking: None})
    )
    assert _listed_files([whole]) == 3
    assert _listed_files([whole, other]) is None


def entry(path: str, sequence_number: int = 1, rows: int = 1, stored: int = 1, **more: object) -> ManifestEntry:
    """Of a data file of an unpartitioned table. `stored`: id of the column that it has."""
    file = DataFile.from_args(
        _table_format_version=3,
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows,
        column_sizes={stored: 8},
        **more,
    )
    file.spec_id = 0
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED, snapshot_id=1, sequence_number=sequence_number, data_file=file
    )


def delete(path: str, lower: bytes | None, upper: bytes | None) -> _Delete:
    """A file of position deletes of an unpartitioned table, that does not say which data file it is about."""
    file = DeleteFile(path=path, kind=DeleteKind.POSITION, record_count=1, sequence_number=2, size=1)
    return _Delete(file=file, partition=(0, ()), referenced=None, lower=lower, upper=upper, is_global=False)


def test_deletes_whose_bounds_name_one_file_are_applied_to_that_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    data = [entry(f"s3://lake/t/data/{number:05}.parquet") for number in range(2000)]
    bounds = [item.data_file.file_path.encode() for item in data]
    index = _DeleteIndex([delete(f"d{number:05}", bound, bound) for number, bound in enumerate(bounds)], data)
    comparisons = []
    through = _Delete.applies_to
    monkeypatch.setattr(_Delete, "applies_to", lambda *given: comparisons.append(1) or through(*given))
    assert [[found.path for found in index.deletes_of(item)] for item in data] == [
        [f"d{number:05}"] for number in range(2000)
    ]
    assert len(comparisons) == 2000


def test_deletes_apply_whatever_their_writer_made_of_the_bounds() -> None:
    data = [entry(name) for name in ("s3://lake/a/1", "s3://lake/a/1", "s3://lake/a/12", "s3://lake/b/1")]
    short = b"s3://lake/a"
    index = _DeleteIndex(
        [
            delete("exact", b"s3://lake/a/1", b"s3://lake/a/1"),
            delete("cut short", short, short),
            delete("a range", short, b"s3://lake/b"),
            delete("no bounds", None, None),
            delete("of what is gone", b"s3://lake/a/11", b"s3://lake/a/11"),
        ],
        data,
    )
    found = [[item.path for item in index.deletes_of(file)] for file in data]
    first = ["a range", "cut short", "exact", "no bounds"]
    assert found == [first, first, first, ["a range", "no bounds"]], "rows name their file: too many do no harm"


@pytest.mark.parametrize(
    ("kind", "of_data", "about", "partition", "applies"),
    [
        (DeleteKind.DELETION_VECTOR, 2, "f", (0, ()), True),
        (DeleteKind.DELETION_VECTOR, 3, "f", (0, ()), False),
        (DeleteKind.DELETION_VECTOR, 2, "g", (0, ()), False),
        (DeleteKind.DELETION_VECTOR, 1, None, (0, ()), False),
        (DeleteKind.EQUALITY, 1, None, (0, ()), True),
        (DeleteKind.EQUALITY, 2, None, (0, ()), False),
        (DeleteKind.EQUALITY, 1, None, (1, ("x",)), False),
        (DeleteKind.POSITION, 2, None, (0, ()), True),
        (DeleteKind.POSITION, 3, None, (0, ()), False),
        (DeleteKind.POSITION, 2, None, (1, ("x",)), False),
        (DeleteKind.POSITION, 2, "f", (1, ("x",)), True),
        (DeleteKind.POSITION, 3, "f", (0, ()), False),
        (DeleteKind.POSITION, 2, "g", (0, ()), False),
    ],
)
def test_deletes_apply_by_the_rules_of_scan_planning(
    kind: DeleteKind, of_data: int, about: str | None, partition: tuple[int, tuple[str, ...]], applies: bool
) -> None:
    """Of a delete with sequence number 2, and a data file `f` that may have come again under its name since."""
    file = DeleteFile(path="d", kind=kind, record_count=1, sequence_number=2, size=1)
    delete = _Delete(file=file, partition=partition, referenced=about, lower=None, upper=None, is_global=False)
    data = entry("f", of_data)
    assert bool(_DeleteIndex([delete], [data]).deletes_of(data)) is applies
    assert delete.applies_to(data, (0, ())) is applies


def test_a_deletion_vector_stands_for_all_position_deletes_of_its_file() -> None:
    """Spec, "Scan Planning": these must be ignored then."""
    data = [entry("f"), entry("g")]
    file = DeleteFile(path="v", kind=DeleteKind.DELETION_VECTOR, record_count=1, sequence_number=2, size=1)
    vector = _Delete(file=file, partition=(0, ()), referenced="f", lower=None, upper=None, is_global=False)
    index = _DeleteIndex([delete("d", None, None), vector], data)
    assert [[item.path for item in index.deletes_of(item)] for item in data] == [["v"], ["d"]]


@pytest.mark.parametrize(("lower", "upper", "applies"), [(b"e", b"g", True), (b"g", b"h", False), (b"a", b"e", False)])
def test_deletes_whose_bounds_leave_a_file_out_are_not_of_it(lower: bytes, upper: bytes, applies: bool) -> None:
    data = entry("f")
    assert bool(_DeleteIndex([delete("d", lower, upper)], [data]).deletes_of(data)) is applies


def test_row_ids_are_inherited_in_turn_and_none_without_the_manifests() -> None:
    """Spec, "First Row ID Inheritance"."""
    entries = [entry(name, rows=10) for name in "abc"]
    _inherit_row_ids(entries[1:2], 7)
    _inherit_row_ids(entries, 100)
    assert [field_of(item.data_file, "first_row_id") for item in entries] == [100, 7, 110]
    _inherit_row_ids(entries, None)
    assert [field_of(item.data_file, "first_row_id") for item in entries] == [None] * 3


def test_entries_keep_statistics_of_some_columns_and_the_size_of_the_row_ids(table_factory: TableFactory) -> None:
    """Sizes, counts and bounds of 100 columns take 27 KB per file, and live sets need those of deletes' keys alone."""
    table = table_factory()
    table.append(make_rows(0, 20))
    (manifest,) = read_manifests(table.io, find_snapshot(table, head(table)))
    (full,), (of_id,), (lean,) = (live_entries(table.io, manifest, columns=columns) for columns in (None, {1, 99}, ()))
    maps = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
    assert [name for name in maps if not getattr(full.data_file, name)] in ([], ["nan_value_counts"])
    assert not any(getattr(lean.data_file, name) for name in maps)
    for name in ("file_path", "partition", "record_count", "file_size_in_bytes", "file_format"):
        assert getattr(lean.data_file, name) == getattr(full.data_file, name)
    for name in maps:
        own = getattr(full.data_file, name) or {}
        assert getattr(of_id.data_file, name) == ({1: own[1]} if 1 in own else None)
    full.data_file[6] = {1: 5, ROW_ID: 7}
    assert _with_statistics_of((), full).data_file.column_sizes == {ROW_ID: 7}


@pytest.mark.parametrize("at_once", [True, False])
def test_bounds_of_the_keys_of_deletes_tell_which_files_these_are_about(
    table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """Manifests of data files are read after those of deletes, where they are large."""
    reads: list[Collection[int] | None] = []

    def read(
        io: FileIO, manifest: ManifestFile, *, columns: Collection[int] | None, observe: EntryObserver | None
    ) -> list[ManifestEntry]:
        reads.append(columns)
        return live_entries(io, manifest, columns=columns, observe=observe)

    monkeypatch.setattr(live_files_module, "live_entries", read)
    monkeypatch.setattr(live_files_module, "_READ_AT_ONCE", 1 << 20 if at_once else 0)
    table = table_factory()
    table.append(make_rows(0, 20))
    table.append(make_rows(100, 120))
    files = live_files(table, head(table)).files
    assert reads == [frozenset()] * 2
    with_id_3 = next(file.path for file in files if 3 in pq.read_table(to_path(file.path))["id"].to_pylist())
    append_position_deletes(table, {with_id_3: np.array([1])})
    reads.clear()
    assert [len(file.deletes) for file in live_files(table, head(table)).files if file.path == with_id_3] == [1]
    assert reads == ([None] * 3 if at_once else [None, frozenset(), frozenset()])
    snapshot = delete_where_id_is(table, 3, bounded=True)
    reads.clear()
    deletes = {file.path: len(file.deletes) for file in live_files(table.refresh(), SnapshotId(snapshot)).files}
    assert deletes == {file.path: 2 if file.path == with_id_3 else 0 for file in files}
    assert reads == ([None] * 4 if at_once else [None, None, frozenset({1}), frozenset({1})])


def test_a_file_has_row_ids_where_it_stores_the_column_that_the_spec_reserves() -> None:
    """Spec, "Reserved Field IDs": `_row_id` is 2147483540."""
    data = [entry("f", stored=field_id) for field_id in (2147483539, 2147483540, 2147483541)]
    files = [_as_live_file(one, _DeleteIndex([], data), None, {0: ()}) for one in data]
    assert [file.has_row_ids for file in files] == [False, True, False]


def test_a_file_is_of_the_commit_that_its_entry_names_and_of_none_where_it_names_none() -> None:
    one = entry("f", 7, rows=3)
    file = _as_live_file(one, _DeleteIndex([], [one]), None, {0: ()})
    assert (file.added_by, file.sequence_number, file.file_sequence_number, file.record_count) == (1, 7, 0, 3)
    one.snapshot_id = one.sequence_number = None
    one.file_sequence_number = 5
    file = _as_live_file(one, _DeleteIndex([], [one]), None, {0: ()})
    assert (file.added_by, file.sequence_number, file.file_sequence_number) == (NO_SNAPSHOT, 0, 5)


@pytest.mark.parametrize("error", [ArgumentError, EqualityDeletesError, TableFaultError, UnknownSnapshotError])
def test_what_only_another_table_or_argument_mends_is_not_tried_again(error: type[IcepuffinError]) -> None:
    assert not error("").retryable


def applies_by_the_spec(delete: _Delete, data: ManifestEntry) -> bool:
    """The rules of scan planning, word by word, for deletes that name no data file."""
    path, upper = data.data_file.file_path.encode(), delete.upper
    if delete.partition != (data.data_file.spec_id, ()):
        return False
    if delete.file.kind is DeleteKind.EQUALITY:
        return (data.sequence_number or 0) < delete.file.sequence_number
    above = delete.lower is None or path >= delete.lower
    below = upper is None or path <= upper or path.startswith(upper)
    return (data.sequence_number or 0) <= delete.file.sequence_number and above and below


@given(st.data())
def test_deletes_of_a_partition_are_those_of_the_spec_in_the_order_of_their_paths(data: st.DataObject) -> None:
    names = st.sampled_from(["a", "ab", "abc", "b", "ba", "c", "\u00e9", "b\U00010348"])
    sequences = st.integers(1, 4)
    entries = [entry(*given) for given in data.draw(st.lists(st.tuples(names, sequences), max_size=8))]
    for one in entries:
        one.data_file.spec_id = data.draw(st.sampled_from([0, 0, 1]))
    deletes = []
    for number in range(data.draw(st.integers(0, 8))):
        kind = data.draw(st.sampled_from([DeleteKind.POSITION, DeleteKind.POSITION, DeleteKind.EQUALITY]))
        bounds = [data.draw(st.none() | names.map(str.encode)) for _ in range(2)]
        path = f"d{data.draw(st.integers(0, 2))}-{number}"
        file = DeleteFile(path=path, kind=kind, record_count=1, sequence_number=data.draw(sequences), size=1)
        partition = data.draw(st.sampled_from([(0, ()), (0, ()), (1, ())]))
        deletes.append(_Delete(file, partition, None, *bounds, is_global=False))
    index = _DeleteIndex(deletes, entries)
    for one in entries:
        expected = [delete.file for delete in deletes if applies_by_the_spec(delete, one)]
        applying = list(index.deletes_of(one))
        assert applying == sorted(applying, key=lambda file: file.path)
        assert {file.path for file in expected} == {file.path for file in applying}


@given(st.data())
def test_deletes_of_random_histories_are_those_that_apply_one_by_one(data: st.DataObject) -> None:
    """Of all kinds, in all scopes, and as tasks get them."""
    names = [f"f{number}" for number in range(6)]
    entries = [entry(name, data.draw(st.integers(1, 6))) for name in names]
    deletes = []
    for number in range(data.draw(st.integers(0, 12))):
        kind = data.draw(st.sampled_from(DeleteKind))
        name = data.draw(st.sampled_from(names))
        has_bounds = kind is DeleteKind.POSITION and data.draw(st.booleans())
        sequence = data.draw(st.integers(1, 6))
        file = DeleteFile(f"d{data.draw(st.integers(0, 2))}-{number}", kind, 1, sequence, 1, content_offset=number)
        referenced = name if kind is DeleteKind.DELETION_VECTOR else None
        bound = name.encode() if has_bounds else None
        is_global = kind is DeleteKind.EQUALITY and data.draw(st.booleans())
        deletes.append(_Delete(file, (0, ()), referenced, bound, bound, is_global=is_global))
    index = _DeleteIndex(deletes, entries)
    older = DeleteFilter(lambda file: file.sequence_number < 4)
    files = []
    for one in entries:
        applying = [delete.file for delete in deletes if delete.applies_to(one, (0, ()))]
        if any(file.kind is DeleteKind.DELETION_VECTOR for file in applying):
            applying = [file for file in applying if file.kind is not DeleteKind.POSITION]
        expected = tuple(sorted(applying, key=path_and_offset))
        found = index.deletes_of(one)
        assert (found, len(found), bool(found), hash(found)) == (
            expected,
            len(expected),
            bool(expected),
            hash(expected),
        )
        assert found != (*expected, None)
        assert (
            older.select(found)
            == older.select(expected)
            == tuple(file for file in expected if file.sequence_number < 4)
        )
        files.append(LiveFile(one.data_file.file_path, 1, 1, 1, "PARQUET", deletes=found))
    assert pickle.loads(pickle.dumps(files)) == files  # noqa: S301  as tasks get them
    everything = {id(delete) for file in files for delete in file.deletes}
    assert sorted(map(id, distinct_deletes(files))) == sorted(everything)


def test_a_history_of_upserts_takes_a_bit_for_each_pair_of_a_data_file_and_a_delete() -> None:
    """As Flink writes it: a commit has a data file, an equality delete of older rows, and deletes of its own file."""
    commits = 2_000
    asked: list[DeleteFile] = []
    data = [entry(f"f{number:05}", number) for number in range(commits)]
    deletes = []
    for number in range(commits):
        by_key = DeleteFile(f"f{number:05}-eq", DeleteKind.EQUALITY, 1, number, 1)
        own = DeleteFile(f"f{number:05}-pos", DeleteKind.POSITION, 1, number, 1)
        bound = f"f{number:05}".encode()
        deletes.append(_Delete(by_key, (0, ()), None, None, None, is_global=True))
        deletes.append(_Delete(own, (0, ()), None, bound, bound, is_global=False))
    tracemalloc.start()
    try:
        index = _DeleteIndex(deletes, data)
        before, _ = tracemalloc.get_traced_memory()
        found = [index.deletes_of(one) for one in data]
        newer = DeleteFilter(lambda file: asked.append(file) or file.sequence_number >= commits // 2)
        later = [newer.select(deletes) for deletes in found]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [len(deletes) for deletes in found] == [commits - number for number in range(commits)]
    assert [len(deletes) for deletes in later[: commits // 2]] == [commits // 2] * (commits // 2)
    assert len(asked) == 2 * commits
    assert after - before < 3_000_000
    # together they go with one copy of all deletes, and one file of few deletes goes without the others
    assert len(pickle.dumps(found)) < 2_000_000
    assert len(pickle.dumps(found[-3])) < 1_000


@pytest.mark.parametrize(("low", "high", "applies"), [(0, 9, False), (5, 12, True), (21, 30, False)])
def test_deletes_of_keys_that_a_data_file_cannot_have_are_not_of_it(low: int, high: int, applies: bool) -> None:
    keys = Schema(NestedField(1, "id", LongType(), required=False))
    file = DeleteFile(path="d", kind=DeleteKind.EQUALITY, record_count=2, sequence_number=3, size=1, keys=keys)
    bounds = {1: KeyBounds(10, 20, has_null=False, is_null=False)}
    one = _Delete(file, (0, ()), None, None, None, is_global=False, bounds=bounds)
    ends = {"lower_bounds": {1: to_bytes(LongType(), low)}, "upper_bounds": {1: to_bytes(LongType(), high)}}
    data = entry("a", **ends)
    assert [*_DeleteIndex([one], [data]).deletes_of(data)] == ([file] if applies else [])
    for name, end in ends.items():
        data = entry("a", **{name: end})
        assert [*_DeleteIndex([one], [data]).deletes_of(data)] == [file], "one end alone tells nothing"


def test_thousands_of_deletes_of_thousands_of_files_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pair would be looked at else, here and wherever the deletes of a file are gone through."""
    data = [entry(f"s3://lake/t/data/{number:05}.parquet", 1 + number % 2) for number in range(2000)]
    index = _DeleteIndex([delete(f"d{number:05}", None, None) for number in range(2000)], data)
    monkeypatch.setattr(_Delete, "applies_to", None)
    applying = [index.deletes_of(one) for one in data]
    assert {len(deletes) for deletes in applying} == {2000}
    assert len({id(deletes) for deletes in applying}) == 1
    files = [
        LiveFile(one.data_file.file_path, 1, 100, 1, "PARQUET", deletes=of)
        for one, of in zip(data, applying, strict=True)
    ]
    hashed = []
    real = row_deletes.hashlib.sha256
    monkeypatch.setattr(row_deletes.hashlib, "sha256", lambda *given: hashed.append(1) or real(*given))
    assert len({row_deletes.fingerprint(file) for file in files}) == 1
    assert len(hashed) <= 1


def test_a_fingerprint_is_made_once_per_set_of_deletes_and_a_name_once_per_delete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A history of upserts has thousands of sets, of thousands of deletes each, and a plan compares them often."""
    data = [entry(f"s3://lake/t/data/upsert-{number:05}.parquet", number) for number in range(20)]
    deletes = [delete(f"s3://lake/t/data/upsert-{number:05}-delete.parquet", None, None) for number in range(20)]
    newer = [replace(one, file=replace(one.file, sequence_number=number)) for number, one in enumerate(deletes)]
    index = _DeleteIndex(newer, data)
    files = [LiveFile(one.data_file.file_path, 1, 1, 1, "PARQUET", deletes=index.deletes_of(one)) for one in data]
    hashed, named = [], []
    hash_of, name_of = row_deletes.hashlib.sha256, row_deletes.normalize
    monkeypatch.setattr(row_deletes.hashlib, "sha256", lambda *given: hashed.append(1) or hash_of(*given))
    monkeypatch.setattr(row_deletes, "normalize", lambda path: named.append(path) or name_of(path))
    prints = [[fingerprint(file) for file in files] for _ in range(3)]
    assert prints[0] == prints[1] == prints[2]
    assert (len(set(prints[0])), len(hashed), len(named)) == (20, 20, 20)
    unpickled = pickle.loads(pickle.dumps(files))  # noqa: S301  as tasks get them
    assert ([fingerprint(file) for file in unpickled], len(hashed)) == (prints[0], 20)
    assert [fingerprint(replace(file, deletes=tuple(file.deletes))) for file in files] == prints[0]


@pytest.mark.parametrize("content", [DataFileContent.DATA, DataFileContent.POSITION_DELETES])
def test_an_encrypted_file_is_refused_by_name(table_factory: Callable[..., Table], content: DataFileContent) -> None:
    table = table_factory()
    table.append(make_rows(0, 10))
    file = DataFile.from_args(
        content=content,
        file_path=f"{table.location()}/data/secret.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=3,
        file_size_in_bytes=100,
        key_metadata=b"which key",
    )
    file.spec_id = table.spec().spec_id
    if content is DataFileContent.DATA:
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            append.append_data_file(file)
    else:
        commit_delete_files(table, [file])
    with pytest.raises(
        DataFileError, match=r"data/secret\.parquet is encrypted, and icepuffin reads plain data files only"
    ):
        live_files(table.refresh(), table.metadata.current_snapshot_id or 0)
