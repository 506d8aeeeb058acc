"""Of the sketches of single files no more are in memory than may be kept; those of the snapshot are the same anyway."""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.snapshots import find_snapshot
from icepuffin.ops.tasks.sketches import sketch_plan
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta.file_sketches import (
    BUDGET_BYTES,
    SKETCH_DIRECTORY,
    FileKey,
    FileSketchesReader,
    image_bytes,
)
from icepuffin.ops.theta.requested_statistics import KEPT_UP
from icepuffin.ops.theta.snapshot_sketches import sketch_snapshot
from icepuffin.ops.theta.theta_estimate import files_over_budget
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.ops.theta.theta_plan import plan_sketches
from icepuffin.ops.theta.theta_report import ThetaReport
from icepuffin.puffin import BytesSource, PuffinReader
from icepuffin.puffin.blobs import sketch_directory_blob
from icepuffin.puffin.blobs.theta_blob import ThetaSketch, decode
from icepuffin.puffin.types import BlobType
from tests.naive import theta as naive
from tests.ops.theta.conftest import STORAGE, ThreadlessRunner, current
from tests.selection import some

ROWS = (5_200, 3_000, 2_500, 900, 700, 500, 300, 200, 150, 90, 40, 9)


class FourAtOnceRunner(ThreadlessRunner):
    """Plans for four workers, and remembers the results, too."""

    parallelism = 4

    def __init__(self) -> None:
        super().__init__()
        self.results: list[Any] = []

    def run(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], *, label: str, progress: Any = None
    ) -> list[Any]:
        results = super().run(function, tasks, label=label, progress=progress)
        self.results += results
        return results

    @property
    def image_bytes(self) -> int:
        return sum(len(image) for result in self.results for file in result.files for image in file.images)


@pytest.fixture
def table(catalog: SqlCatalog, tmp_path: Path) -> Table:
    """Twelve files of row groups of 100 rows; `few` has seven values, the largest file more `many` than a sketch has
    hashes.
    """
    created = catalog.create_table("db.m", pa.schema([("many", pa.int64()), ("few", pa.int64())]))
    paths = []
    for number, count in enumerate(ROWS):
        paths.append(str(tmp_path / f"{number}.parquet"))
        many = list(range(1_000 * number, 1_000 * number + count))
        pq.write_table(pa.table({"many": many, "few": [i % 7 for i in many]}), paths[-1], row_group_size=100)
    created.add_files(paths)
    return created


@pytest.fixture(autouse=True)
def _short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icepuffin.ops.theta.snapshot_sketches.PART_ROWS", 1_000)


def materialize(table: Table, runner: Any, budget_bytes: int) -> ThetaReport:
    return count_theta_sketches(
        RunContext(table.refresh(), STORAGE, runner), current(table), budget_bytes=budget_bytes
    ).publish()


def of_values(values: Sequence[int]) -> tuple[int, list[int]]:
    return naive.sketch(value.to_bytes(8, "little") for value in values)


def pair(sketch: ThetaSketch) -> tuple[int, list[int]]:
    return sketch.theta, sketch.hashes.tolist()


def of_snapshot(table: Table) -> dict[int, tuple[int, list[int]]]:
    entry = find_statistics(table.refresh(), current(table))
    assert entry is not None
    reader = PuffinReader(BytesSource(Path(entry.statistics_path.removeprefix("file://")).read_bytes()))
    return {b.fields[0]: pair(decode(reader.read_blob(b))) for b in reader.footer.of_type(BlobType.THETA)}


def of_files(report: ThetaReport) -> dict[str, list[tuple[int, list[int]]]]:
    """Sketches by the path of each data file, in the order of the columns."""
    if report.file_sketches_path is None:
        return {}
    folder = Path(report.file_sketches_path.removeprefix("file://")).parent
    by_path = {}
    for path in folder.glob(f"theta-*{Path(report.file_sketches_path).name.split('-', 2)[-1]}"):
        reader = PuffinReader(BytesSource(path.read_bytes()))
        sketches = FileSketchesReader(reader)
        for blob in reader.footer.of_type(SKETCH_DIRECTORY):
            for entry in sketch_directory_blob.decode(reader.read_blob(blob)).files:
                own = sketches.read(FileKey(entry.path, entry.deletes), sketches.statistics())
                by_path[entry.path] = [pair(sketch) for _, sketch in sorted(own.items())]
    return by_path


@pytest.mark.parametrize("runner", [ThreadlessRunner(), FourAtOnceRunner()], ids=["one", "four"])
@pytest.mark.parametrize("budget", some([0, 1_000, 9_000, 30_000, 45_000, 60_000, 90_000, BUDGET_BYTES], 4))
def test_the_sketches_of_a_snapshot_do_not_depend_on_those_that_are_kept(
    table: Table, tmp_path: Path, runner: ThreadlessRunner, budget: int
) -> None:
    report = materialize(table, runner, budget)
    values = {path: pq.read_table(path).to_pydict() for path in map(str, tmp_path.glob("*.parquet"))}
    all_values = {name: [v for own in values.values() for v in own[name]] for name in ("many", "few")}
    assert of_snapshot(table) == {1: of_values(all_values["many"]), 2: of_values(all_values["few"])}
    kept = of_files(report)
    for path, sketches in kept.items():
        own = values[path.removeprefix("file://")]
        assert sketches == [of_values(own["many"]), of_values(own["few"])], "never those of a part of a file"
    out = len(ROWS) - len(kept)
    assert report.note == (f"the sketches of {out} files are over the budget of {budget:,} bytes" if out else "")
    assert (out == 0) == (budget == BUDGET_BYTES)
    assert files_over_budget(table.refresh()) == (out if kept else 0), "without any there is no version to say so"
    table.delete("many < 1000")
    again = ThreadlessRunner()
    following = materialize(table, again, BUDGET_BYTES)
    assert following.files_reused == sum("/0.parquet" not in path for path in kept)
    assert len(again.files) == len(ROWS) - following.files_reused
    expected = [value for value in all_values["many"] if value >= 1_000]
    assert of_snapshot(table)[1] == of_values(expected)


def test_no_more_comes_back_from_tasks_than_may_be_kept(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    full = 24 + 8 * 4_096
    monkeypatch.setattr(sketch_plan, "UNION_BYTES", 12 * full)
    runner = FourAtOnceRunner()
    report = materialize(table, runner, 60_000)
    assert 30_000 < runner.image_bytes <= 60_000
    assert len(runner.results) == 6, "each returns a union of each of two columns"
    assert "files are over the budget" in report.note


def test_earlier_sketches_over_the_budget_are_united_and_not_kept(table: Table) -> None:
    """Those of a version with a larger budget."""
    materialize(table, ThreadlessRunner(), BUDGET_BYTES)
    table.delete("many >= 11000")
    runner, store = ThreadlessRunner(), open_storage(table.location(), STORAGE)
    plan = plan_sketches(table, find_snapshot(table, current(table)), store, KEPT_UP)
    sketched = sketch_snapshot(RunContext(table, STORAGE, runner), plan, store, budget_bytes=30_000)
    assert 20_000 < sum(image_bytes(own.values()) for own in sketched.by_file.values()) <= 30_000
    report = materialize(table, runner, 30_000)
    assert (report.files_sketched, report.outcome) == (0, "written")
    first = current(table)
    table.append(pa.table({"many": [1, 20_000], "few": [None, 8]}))
    table.delete("many >= 10000 and many < 11000")
    report = materialize(table, runner, 30_000)
    assert (report.files_sketched, first != current(table)) == (1, True)
    values = table.scan().to_arrow()
    assert of_snapshot(table)[1] == of_values(values["many"].to_pylist())
    assert sum(24 + 8 * len(hashes) for own in of_files(report).values() for _, hashes in own) <= 30_000
    assert "files are over the budget of 30,000 bytes" in report.note


def test_random_budgets_and_files_change_nothing_but_what_is_kept(table: Table, tmp_path: Path) -> None:
    random = Random(7)
    for step in range(8):
        count = random.choice([3, 700, 4_500])
        many = [random.randrange(30_000) for _ in range(count)]
        pq.write_table(pa.table({"many": many, "few": many}), tmp_path / f"new-{step}.parquet", row_group_size=100)
        table.add_files([str(tmp_path / f"new-{step}.parquet")])
        if step % 3 == 2:
            table.delete(f"many = {random.choice(many)}")
        runner = random.choice([ThreadlessRunner(), FourAtOnceRunner()])
        materialize(table, runner, random.choice([0, 5_000, 50_000, 200_000]))
        values = table.scan().to_arrow()
        sketches = of_snapshot(table)
        assert sketches[1] == of_values(values["many"].to_pylist())
        assert sketches[2] == of_values(values["few"].to_pylist())
