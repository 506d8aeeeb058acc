"""`read_statistics`: all kinds of a snapshot, of real files; what is bad is passed over by name and nothing else."""

import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.table.update import SetStatisticsUpdate

import icepuffin
from icepuffin.errors import FileDamageError
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.tasks.sketches.statistic import Kind
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta.build_id import OTHERS
from icepuffin.ops.theta.requested_statistics import RequestedStatistics
from icepuffin.ops.theta.snapshot_statistics import SCHEMA, SnapshotStatistics, statistics_beside_ndvs
from icepuffin.ops.theta.statistics_slot import BLOB_TYPES
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.ops.theta.theta_report import ThetaReport
from icepuffin.puffin import BlobMetadata, PuffinReader, PuffinWriter
from icepuffin.puffin.sources import BytesSource
from tests.ops.theta.conftest import STORAGE, ThreadlessRunner, append, current, rows
from tests.ops.theta.foreign import analyze

ALL_KINDS = RequestedStatistics(
    ndv=("id", "name", "price", "weight"),
    histogram=("price", "weight", "size"),
    size="*",
    frequent=("name",),
    joint=(("name", "size"),),
)
Stored = list[tuple[BlobMetadata, bytes]]


def made_now(table: Table, requested: RequestedStatistics) -> ThetaReport:
    """Make the statistics of the head."""
    run = RunContext(table, STORAGE, ThreadlessRunner())
    return count_theta_sketches(run, SnapshotId(current(table)), requested=requested).publish()


def counted(table: Table, requested: RequestedStatistics = ALL_KINDS) -> SnapshotId:
    made_now(table, requested)
    table.refresh()
    return SnapshotId(current(table))


@pytest.fixture
def filled(table: Table) -> Table:
    """100 rows in two files, with statistics of all kinds."""
    append(table, 0, 60)
    append(table, 60, 100)
    counted(table)
    return table


def path_of(table: Table) -> Path:
    entry = find_statistics(table, SnapshotId(current(table)))
    assert entry is not None
    return Path(entry.statistics_path.removeprefix("file://"))


def change_file(table: Table, change: Callable[[Stored, dict[str, str]], object]) -> None:
    """Write the head's statistics file again, in its place, with other blobs (as they are stored) or properties."""
    path = path_of(table)
    reader = PuffinReader(BytesSource(path.read_bytes()))
    blobs = [(blob, reader.read_blob_range(blob, 0, blob.length)) for blob in reader.footer.blobs]
    properties = dict(reader.footer.properties)
    change(blobs, properties)
    sink = io.BytesIO()
    writer = PuffinWriter(sink)
    for blob, data in blobs:
        writer.add_blob(
            blob.type,
            fields=blob.fields,
            snapshot_id=blob.snapshot_id,
            sequence_number=blob.sequence_number,
            data=data,
            codec=blob.compression_codec,
            properties=blob.properties,
            is_stored=True,
        )
    writer.finish(properties)
    path.write_bytes(sink.getvalue())


def made(statistics: SnapshotStatistics) -> set[tuple[str, tuple[str, ...]]]:
    return {(str(kind), columns) for kind, columns, _ in statistics.rows()}


EVERYTHING = {
    *(("ndv", (name,)) for name in ("id", "name", "price", "weight")),
    *(("histogram", (name,)) for name in ("price", "weight", "size")),
    ("size", ("name",)),
    ("frequent", ("name",)),
    ("joint", ("name", "size")),
}


def test_each_kind_is_read_with_its_error(filled: Table) -> None:
    read = icepuffin.read_statistics(filled)
    assert made(read) == EVERYTHING
    assert read.left_out == ()
    assert all(it.fresh and it.why == f"counted for snapshot {current(filled)}" for _, _, it in read.rows())
    assert (read.ndv["id"].ndv, read.ndv["id"].lower, read.ndv["id"].upper, read.ndv["id"].error) == (100,) * 3 + (0,)
    price = read.histogram["price"]
    assert (price.count, price.minimum, price.maximum) == (100, Decimal("-50.00"), Decimal("49.00"))
    assert price.fraction_between(Decimal(0), Decimal("9.50")) == pytest.approx(0.1)
    names = [value.as_py() for value in rows(0, 100)["name"] if value.is_valid]
    assert read.size["name"].bytes == sum(map(len, names))
    assert {value.text: (value.lower, value.upper) for value in read.frequent["name"].values} == {
        name: (names.count(name),) * 2 for name in set(names)
    }
    assert (read.frequent["name"].total, read.frequent["name"].offset) == (len(names), 0)
    table = rows(0, 100)
    assert read.joint["name", "size"].ndv == len(table.group_by(["name", "size"]).aggregate([]))


def test_the_report_of_a_run_names_the_kinds_that_it_made(table: Table) -> None:
    append(table, 0, 10)
    report = made_now(table, ALL_KINDS)
    assert report.fields()["beside them"] == "3 histogram, 1 size, 1 frequent, 1 joint"
    append(table, 10, 20)
    assert "beside them" not in made_now(table, RequestedStatistics((), (), (), (), ())).fields()


def test_a_histogram_is_printed_without_its_sketch(filled: Table) -> None:
    assert "array" not in repr(icepuffin.read_statistics(filled).histogram["price"])


def test_what_is_estimated_says_by_how_much(table: Table) -> None:
    append(table, 0, 20_000)
    counted(table)
    read = icepuffin.read_statistics(table)
    assert 0.01 < read.ndv["id"].error < 1 / 64
    assert read.ndv["id"].lower <= 20_000 <= read.ndv["id"].upper
    assert read.ndv["id"].ndv - read.ndv["id"].lower == pytest.approx(2 * read.ndv["id"].error * 20_000, rel=0.05)
    assert read.ndv["id"].upper == 20_000, "there are no more values than rows"
    assert (read.ndv["name"].error, read.histogram["price"].rank_error) == (0, pytest.approx(0.0068, abs=1e-4))
    assert read.histogram["weight"].quantiles([0.5])[0] == pytest.approx(2_500, abs=0.0068 * 5_000)


def test_an_ancestors_statistics_are_not_fresh(filled: Table) -> None:
    before = current(filled)
    head = append(filled, 100, 101)
    read = icepuffin.read_statistics(filled)
    assert made(read) == EVERYTHING
    assert {it.fresh for _, _, it in read.rows()} == {False}
    assert all(f"counted for snapshot {before}" in it.why and str(head) in it.why for _, _, it in read.rows())
    assert all(it.fresh for _, _, it in icepuffin.read_statistics(filled, before).rows())


def test_a_table_without_statistics_has_none(table: Table) -> None:
    append(table, 0, 10)
    read = icepuffin.read_statistics(table)
    assert (made(read), read.left_out, read.statistics_path, read.to_arrow().num_rows) == (set(), (), None, 0)
    assert statistics_beside_ndvs(table, SnapshotId(current(table)), table.schema(), STORAGE) is None


def test_whether_there_are_others_stands_in_the_metadata(table: Table) -> None:
    append(table, 0, 10)
    counted(table, RequestedStatistics(histogram=(), size=(), frequent=(), joint=()))
    path_of(table).unlink()
    assert statistics_beside_ndvs(table, SnapshotId(current(table)), table.schema(), STORAGE) is None
    append(table, 10, 20)
    head = counted(table)
    assert statistics_beside_ndvs(table, head, table.schema(), STORAGE)
    path, later = path_of(table), SnapshotId(append(table, 20, 30))
    assert statistics_beside_ndvs(table, later, table.schema(), STORAGE), "those of the ancestor"
    path.unlink()
    with pytest.raises(FileDamageError):
        statistics_beside_ndvs(table, later, table.schema(), STORAGE)


def test_a_lost_file_is_an_error_that_says_what_to_do(filled: Table) -> None:
    path_of(filled).unlink()
    with pytest.raises(FileDamageError, match=f"is lost.*icepuffin refresh db.t --snapshot {current(filled)}"):
        icepuffin.read_statistics(filled)


def test_a_file_cut_short_is_left_out(filled: Table) -> None:
    path_of(filled).write_bytes(path_of(filled).read_bytes()[:-9])
    read = icepuffin.read_statistics(filled)
    assert (made(read), len(read.left_out)) == (set(), 1)
    assert str(path_of(filled)) in read.left_out[0]


OTHER_SEED = b"\x01\x03\x03\x00\x00\x3a\x01\x02" + bytes(7) + b"\x01"
BAD = {
    "ndv": [OTHER_SEED, b"", b"\x03\x04\x03"],
    "histogram": [b"\x05\x01\x0f", b"\x05\x01\x08\x02\x00\x02\x08\x00" + bytes(60), b""],
    "frequent": [b"\x04\x02\x0a", b"\x04\x01\x0a\x09\x09\x00\x00\x00" + b"\xff" * 40, b""],
    "joint": [OTHER_SEED, b"\x00"],
}
"""Images of another seed, cut short, of another version or family, and of nothing"""


@pytest.mark.parametrize(("kind", "number"), [(kind, i) for kind, images in BAD.items() for i in range(len(images))])
def test_one_bad_blob_is_left_out_by_name(filled: Table, kind: str, number: int) -> None:
    def damage(blobs: Stored, _: dict[str, str]) -> None:
        place = next(i for i, (blob, _) in enumerate(blobs) if blob.type == BLOB_TYPES[Kind(kind)])
        blobs[place] = replace(blobs[place][0], compression_codec=None), BAD[kind][number]

    columns = {"ndv": ("id",), "histogram": ("price",), "frequent": ("name",), "joint": ("name", "size")}[kind]
    change_file(filled, damage)
    read = icepuffin.read_statistics(filled)
    assert EVERYTHING - made(read) == {(kind, columns)}
    assert [text.partition(":")[0] for text in read.left_out] == [f"{kind} of {', '.join(columns)}"]
    assert all(it.fresh for _, _, it in read.rows())


def test_a_size_that_is_none_is_left_out(filled: Table) -> None:
    def damage(blobs: Stored, _: dict[str, str]) -> None:
        place = next(i for i, (blob, _) in enumerate(blobs) if blob.type == BLOB_TYPES[Kind.SIZE])
        blobs[place] = replace(blobs[place][0], properties={"data_size": "-1"}), b""

    change_file(filled, damage)
    read = icepuffin.read_statistics(filled)
    assert EVERYTHING - made(read) == {("size", ("name",))}
    assert read.left_out == ("size of name: data_size '-1' is no size",)


def test_blobs_of_others_are_named_and_left_out(filled: Table) -> None:
    def add(blobs: Stored, _: dict[str, str]) -> None:
        blobs.append((replace(blobs[0][0], type="theirs-v1", fields=(2, 99), compression_codec=None), b"x"))
        blobs.append((replace(blobs[0][0], fields=(5, 6)), blobs[0][1]))

    change_file(filled, add)
    read = icepuffin.read_statistics(filled)
    assert made(read) == EVERYTHING
    assert [text.partition(":")[0] for text in read.left_out] == [
        "theirs-v1 of name, field 99",
        "apache-datasketches-theta-v1 of weight, size",
    ]


@pytest.mark.parametrize("text", ["[", "{}x", "[[1]]", '[[4, 4, "histogram/1 {}", "x"]]', "[[99, 1, 2, 3]]"])
def test_a_property_that_lies_costs_the_other_kinds_alone(filled: Table, text: str) -> None:
    change_file(filled, lambda _, properties: properties.update({OTHERS: text}))
    read = icepuffin.read_statistics(filled)
    assert made(read) == {one for one in EVERYTHING if one[0] == "ndv"}
    assert read.left_out[0].startswith("all statistics but NDVs: ")
    assert all(it.fresh for it in read.ndv.values())


def test_statistics_that_the_entry_does_not_name_are_not_fresh(filled: Table) -> None:
    """As after an engine has copied the file's blobs, and left some out."""

    def change(_: Stored, properties: dict[str, str]) -> None:
        properties[OTHERS] = json.dumps(json.loads(properties[OTHERS])[:-1])

    change_file(filled, change)
    read = icepuffin.read_statistics(filled)
    by_kind = {kind: {it.fresh for of, _, it in read.rows() if of is kind} for kind in Kind}
    assert by_kind == {Kind.NDV: {True}, Kind.JOINT: set(), **{kind: {False} for kind in list(Kind)[1:4]}}
    assert "names other statistics" in read.histogram["price"].why


def test_a_sketch_of_another_build_than_the_entry_says_is_left_out(filled: Table) -> None:
    def change(blobs: Stored, _: dict[str, str]) -> None:
        blobs[0] = replace(blobs[0][0], properties={**blobs[0][0].properties, "icepuffin.build-id": "theta/4:0"}), b""

    change_file(filled, change)
    read = icepuffin.read_statistics(filled)
    assert read.left_out == ("ndv of id: the file lacks the sketch that the table's entry lists",)
    assert EVERYTHING - made(read) == {("ndv", ("id",))}


def test_a_sketch_that_the_file_lacks_is_named(filled: Table) -> None:
    def change(blobs: Stored, properties: dict[str, str]) -> None:
        del blobs[0]
        del properties[OTHERS]

    change_file(filled, change)
    read = icepuffin.read_statistics(filled)
    assert read.left_out[-1] == "ndv of id: the file lacks the sketch that the table's entry lists"
    assert read.left_out[0].startswith("presto-kll-sketch-bytes-v1 of price: neither listed")
    assert made(read) == {("ndv", (name,)) for name in ("name", "price", "weight")}


def test_an_entry_whose_snapshot_is_gone_is_named(filled: Table) -> None:
    entry = find_statistics(filled, SnapshotId(current(filled)))
    assert entry is not None
    lost = entry.model_copy(update={"snapshot_id": 7})
    with filled.transaction() as change:
        change._apply((SetStatisticsUpdate(statistics=lost),), ())
    read = icepuffin.read_statistics(filled.refresh())
    assert read.left_out == ("the entry of snapshot 7: the table has no such snapshot",)
    assert made(read) == EVERYTHING


def test_another_engines_counts_are_shown_and_not_fresh(filled: Table) -> None:
    analyze(filled, ["id", "price"])
    read = icepuffin.read_statistics(filled.refresh())
    assert made(read) == {("ndv", ("id",)), ("ndv", ("price",))}
    assert {(it.ndv, it.error, it.fresh) for it in read.ndv.values()} == {(100, 0, False)}


def test_columns_are_named_as_the_snapshot_is_read_and_dropped_ones_left_out(filled: Table) -> None:
    with filled.update_schema(allow_incompatible_changes=True) as change:
        change.rename_column("price", "cost")
        change.delete_column("size")
    read = icepuffin.read_statistics(filled.refresh())
    assert set(read.histogram) == {"cost", "weight"}
    assert (read.joint, read.left_out) == ({}, ())
    assert set(icepuffin.read_statistics(filled, current(filled)).histogram) == {"price", "weight", "size"}


def test_a_histogram_of_no_values_is_there(table: Table) -> None:
    table.append(rows(0, 3).set_column(4, "weight", pa.nulls(3, pa.float64())))
    counted(table)
    weight = icepuffin.read_statistics(table).histogram["weight"]
    assert (weight.count, weight.minimum, weight.fresh, weight.words()) == (0, None, True, ("no values", "exact"))


def test_one_row_per_statistic(filled: Table) -> None:
    read = icepuffin.read_statistics(filled)
    table = read.to_arrow()
    assert table.schema == SCHEMA
    by = {(row["kind"], tuple(row["columns"])): row for row in table.to_pylist()}
    assert set(by) == EVERYTHING
    assert {key: by["ndv", ("id",)][key] for key in ("value", "lower", "upper", "error")} == {
        "value": 100,
        "lower": 100,
        "upper": 100,
        "error": 0.0,
    }
    price = by["histogram", ("price",)]
    assert (price["value"], price["minimum"], price["maximum"], price["error"]) == (100, "-50.00", "49.00", 0.0)
    assert price["quantiles"][2] == {"rank": 0.5, "value": "-1.00"}
    assert by["frequent", ("name",)]["frequent"][0] == {"text": "name-1", "lower": 14, "upper": 14}
    assert (by["size", ("name",)]["value"], by["size", ("name",)]["quantiles"]) == (540, None)
    frame = read.to_pandas()
    assert list(frame["kind"]) == table["kind"].to_pylist()
    assert frame.columns.tolist() == SCHEMA.names


def test_without_pandas_an_error_says_what_to_install(filled: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    read = icepuffin.read_statistics(filled)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pandas, or use to_arrow"):
        read.to_pandas()


def test_what_a_person_sees(filled: Table) -> None:
    append(filled, 100, 101)
    analyze(filled, ["id"])
    change_file(filled, lambda blobs, _: blobs.append((replace(blobs[0][0], type="x"), blobs[0][1])))
    read = icepuffin.read_statistics(filled.refresh())
    assert repr(read) == f"SnapshotStatistics('db.t', snapshot {current(filled)}, 1 ndv, 1 left out)"
    grids: dict[str, Any] = {grid.title.partition(" ")[0]: grid.rows for grid in read.grids()}
    assert grids["db.t"] == [("id", "ndv", "101", "exact", "no")]
    assert "another engine" in grids["not"][0][0]
    assert grids["left"][0][0].startswith("x of id: ")
    before = filled.current_snapshot().parent_snapshot_id  # type: ignore[union-attr]
    words = {kind: it.words() for kind, _, it in icepuffin.read_statistics(filled, before).rows()}
    assert words[Kind.FREQUENT] == ("name-1 14, name-0 13, name-2 13", "exact")
    assert words[Kind.SIZE] == ("540 bytes", "exact")
