from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from icepuffin.ann_kernels.theta import ThetaAccumulator
from icepuffin.ops.datafile import DataFileError
from icepuffin.ops.model import LiveFile, StorageConfig
from icepuffin.ops.tasks.theta import FilePart, SketchTask, plan_tasks, sketch_files
from icepuffin.ops.tasks.theta_columns import update_from_arrow
from icepuffin.puffin.blobs.theta import decode
from tests.naive import theta as naive


def shares_of(*rows: int) -> list[FilePart]:
    return [FilePart(LiveFile(f"f{i}", 1, count, 1, "PARQUET"), ((1, "long"),)) for i, count in enumerate(rows)]


def plan(shares: list[FilePart], parallelism: int, threads: int) -> list[list[str]]:
    tasks = plan_tasks(shares, StorageConfig({}), Schema(), parallelism=parallelism, threads=threads)
    assert all(task.threads == threads for task in tasks)
    return [[share.file.path for share in task.file_parts] for task in tasks]


def test_one_process_gets_a_few_large_tasks_whose_threads_share_the_files() -> None:
    assert plan(shares_of(5, 9, 7), 1, 2) == [["f1", "f2", "f0"]]
    assert [len(task) for task in plan(shares_of(*range(40)), 1, 2)] == [14, 13, 13]


def test_workers_get_several_tasks_each_the_largest_files_first() -> None:
    assert plan(shares_of(5, 9, 7), 4, 1) == [["f1"], ["f2"], ["f0"]]
    planned = plan(shares_of(*range(100)), 2, 1)
    assert len(planned) == 16
    assert planned[0][0] == "f99"
    assert sorted(path for task in planned for path in task) == sorted(f"f{i}" for i in range(100))


def test_nothing_to_sketch_is_no_task() -> None:
    assert plan([], 4, 2) == []


@pytest.mark.parametrize("parts", [1, 3])
def test_the_parts_of_a_file_make_one_sketch(tmp_path: Path, parts: int) -> None:
    values = [number % 250 + 7 for number in range(1_000)]
    arrow = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    pq.write_table(pa.table([values], arrow), tmp_path / "f.parquet", row_group_size=90)
    file = LiveFile(f"file://{tmp_path}/f.parquet", (tmp_path / "f.parquet").stat().st_size, 1_000, 1, "PARQUET")
    own = tuple(FilePart(file, ((1, "long"),), part, parts) for part in range(parts))
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    (result,) = sketch_files(SketchTask(StorageConfig({}), schema, own, threads=2))
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
        (FilePart(LiveFile(f"file://{path}", len(whole), 1_000, 1, "PARQUET"), ((1, "long"),)),),
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
    update_from_arrow(accumulator, pa.array(range(1, 9)).slice(2, 3), "long")
    theta, hashes = accumulator.result()
    assert (theta, hashes.tolist()) == naive.sketch(value.to_bytes(8, "little") for value in (3, 4, 5))
