from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator
from icepuffin.ops.model import LiveFile, StorageConfig
from icepuffin.ops.rows.datafile import DataFileError
from icepuffin.ops.tasks.sketches.accumulators import UnitedSketches
from icepuffin.ops.tasks.sketches.column_updates import update_ndv
from icepuffin.ops.tasks.sketches.theta_task import FilePart, SketchTask, sketch_files
from icepuffin.puffin.blobs.theta_blob import decode
from tests.naive import theta as naive
from tests.ops.tasks.sketches.ndvs import ndvs


@pytest.mark.parametrize("parts", [1, 3])
def test_the_parts_of_a_file_make_one_sketch(tmp_path: Path, parts: int) -> None:
    values = [number % 250 + 7 for number in range(1_000)]
    arrow = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    pq.write_table(pa.table([values], arrow), tmp_path / "f.parquet", row_group_size=90)
    file = LiveFile(f"file://{tmp_path}/f.parquet", (tmp_path / "f.parquet").stat().st_size, 1_000, 1, "PARQUET")
    own = tuple(FilePart(file, ndvs("long"), part, parts) for part in range(parts))
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    (result,) = sketch_files(SketchTask(StorageConfig({}), schema, own, threads=2)).files
    sketch = decode(result.images[0])
    expected = naive.sketch(value.to_bytes(8, "little") for value in values)
    assert (result.path, (sketch.theta, sketch.hashes.tolist())) == (file.path, expected)


def test_damage_is_reported_with_the_name_of_the_file(tmp_path: Path) -> None:
    """Arrow has several errors for it."""
    path = tmp_path / "f.parquet"
    arrow = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    pq.write_table(pa.table([range(1_000)], arrow), path, use_dictionary=False)
    whole, reports = path.read_bytes(), set[str]()
    task = SketchTask(
        StorageConfig({}),
        Schema(NestedField(1, "id", LongType(), required=False)),
        (FilePart(LiveFile(f"file://{path}", len(whole), 1_000, 1, "PARQUET"), ndvs("long")),),
    )
    for place in range(4, 400, 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            sketch_files(task)
        except DataFileError as error:
            reports.add(type(error.__cause__).__name__)
    assert reports >= {"OSError"}


def test_only_values_of_a_slice_are_sketched() -> None:
    accumulator = ThetaAccumulator()
    update_ndv(accumulator, pa.array(range(1, 9)).slice(2, 3), "long")
    theta, hashes = accumulator.result()
    assert (theta, hashes.tolist()) == naive.sketch(value.to_bytes(8, "little") for value in (3, 4, 5))


@pytest.mark.parametrize(("zone", "kind"), [(None, "timestamp"), ("UTC", "timestamptz")])
def test_nanoseconds_are_cut_off_where_a_column_has_microseconds(zone: str | None, kind: str) -> None:
    accumulator = ThetaAccumulator()
    update_ndv(accumulator, pa.array([1_999, 2_000], pa.timestamp("ns", zone)), kind)
    theta, hashes = accumulator.result()
    assert (theta, hashes.tolist()) == naive.sketch(value.to_bytes(8, "little") for value in (1, 2))


def test_over_the_bound_the_first_files_come_back_one_by_one_and_the_others_as_a_union(tmp_path: Path) -> None:
    """The last of four files is no larger than what the third, which is too large, leaves of the bound."""
    arrow = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    numbers = {"a": range(500), "b": range(400, 700), "c": range(5_000, 15_000), "d": range(20)}
    file_parts = []
    for name, values in numbers.items():
        pq.write_table(pa.table([list(values)], arrow), tmp_path / f"{name}.parquet")
        size = (tmp_path / f"{name}.parquet").stat().st_size
        file = LiveFile(f"file://{tmp_path}/{name}.parquet", size, len(values), 1, "PARQUET")
        file_parts.append(FilePart(file, ndvs("long")))
    schema = Schema(NestedField(1, "id", LongType(), required=False))

    def sketch(image_bytes: int | None, together: int | None = None) -> tuple[list[str], set[int], list[int]]:
        """Names of the files that came back, lengths of the unions, and the hashes of all there is."""
        task = SketchTask(StorageConfig({}), schema, tuple(file_parts), 2, together, image_bytes)
        result = sketch_files(task)
        united = UnitedSketches()
        for image in (*(image for file in result.files for image in file.images), *result.others.values()):
            united.add((1, "long"), decode(image))
        assert image_bytes is None or sum(len(image) for file in result.files for image in file.images) <= image_bytes
        names = [Path(file.path).stem for file in result.files]
        return (
            names,
            {len(decode(image).hashes) for image in result.others.values()},
            united.union((1, "long")).hashes.tolist(),
        )

    expected = naive.sketch(value.to_bytes(8, "little") for values in numbers.values() for value in values)[1]
    assert sketch(None) == (["a", "b", "c", "d"], set(), expected)
    assert sketch(10_000, together=1) == (["a", "b", "d"], {4_096}, expected)
    assert sketch(10_000, together=3) == (["a", "b", "d"], {4_096}, expected)
    assert sketch(5_000) == (["a", "d"], {4_096}, expected), "what is left of the bound is less than b"
    assert sketch(0) == ([], {4_096}, expected)
