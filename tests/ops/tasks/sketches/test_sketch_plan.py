"""How parts of data files are distributed over tasks, and how much comes back from them."""

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema

from icepuffin.ops.model import LiveFile, StorageConfig
from icepuffin.ops.tasks.sketches import sketch_plan
from icepuffin.ops.tasks.sketches.sketch_plan import plan_tasks
from icepuffin.ops.tasks.sketches.theta_task import FilePart, SketchTask
from tests.ops.tasks.sketches.ndvs import ndvs

ANY = 1 << 60
FULL = 24 + 8 * 4_096


def parts_of(*rows: int, columns: int = 1, parts: int = 1) -> list[FilePart]:
    statistics = ndvs(*["long"] * columns)
    return [
        FilePart(LiveFile(f"f{i}", 1, count, 1, "PARQUET"), statistics, part, parts)
        for i, count in enumerate(rows)
        for part in range(parts)
    ]


def plan(file_parts: list[FilePart], parallelism: int, threads: int, image_bytes: int = ANY) -> list[SketchTask]:
    tasks = plan_tasks(
        file_parts,
        StorageConfig({}),
        Schema(),
        parallelism=parallelism,
        threads=threads,
        image_bytes=image_bytes,
    )
    assert all(task.threads == threads for task in tasks)
    return tasks


def paths(tasks: list[SketchTask]) -> list[list[str]]:
    return [[file_part.file.path for file_part in task.file_parts] for task in tasks]


def test_one_process_gets_a_few_large_tasks_whose_threads_share_the_files() -> None:
    assert paths(plan(parts_of(5, 9, 7), 1, 2)) == [["f1", "f2", "f0"]]
    assert [len(task.file_parts) for task in plan(parts_of(*range(40)), 1, 2)] == [14, 13, 13]


def test_workers_get_several_tasks_each_the_largest_files_first() -> None:
    assert paths(plan(parts_of(5, 9, 7), 4, 1)) == [["f1"], ["f2"], ["f0"]]
    planned = paths(plan(parts_of(*range(100)), 2, 1))
    assert len(planned) == 16
    assert planned[0][0] == "f99"
    assert sorted(path for task in planned for path in task) == sorted(f"f{i}" for i in range(100))


def test_nothing_to_sketch_is_no_task() -> None:
    assert plan([], 4, 2) == []


def test_all_sketches_come_back_where_they_are_within_the_bound_whatever_is_in_the_files() -> None:
    file_parts = parts_of(5_000, 10, columns=2)
    bound = 2 * FULL + 2 * (24 + 80)
    assert {task.image_bytes for task in plan(file_parts, 2, 1, bound)} == {None}
    assert sum(task.image_bytes or 0 for task in plan(file_parts, 2, 1, bound - 1)) == bound - 1


def test_the_tasks_with_the_longest_files_have_the_room() -> None:
    tasks = plan(parts_of(9_000, 8_000, 7_000, 6_000), 2, 1, 2 * FULL + 5)
    assert {task.file_parts[0].file.path: task.image_bytes for task in tasks} == {
        "f0": FULL, "f1": FULL, "f2": 5, "f3": 0,
    }  # fmt: skip


def test_tasks_are_as_few_as_their_unions_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker has a task all the same, while the unions are at most twice as many. A task of many files does not
    have the deletes of all in memory."""
    monkeypatch.setattr(sketch_plan, "UNION_BYTES", 30 * FULL)
    file_parts = parts_of(*[5_000] * 1_000, columns=3)

    def count(parallelism: int) -> tuple[int, set[int | None]]:
        tasks = plan(file_parts, parallelism, 2, 0)
        return len(tasks), {task.together for task in tasks}

    assert count(1) == (10, {16})
    assert count(2) == (10, {63})
    assert count(15) == (15, {9})
    assert count(100) == (20, {2})


def test_the_parts_of_a_file_are_in_one_task_unless_they_are_more_than_its_share() -> None:
    """Each task returns a sketch of the file."""

    def tasks_of_files(tasks: list[SketchTask]) -> set[int]:
        numbers: dict[str, set[int]] = defaultdict(set)
        for number, task in enumerate(tasks):
            for file_part in task.file_parts:
                numbers[file_part.file.path].add(number)
        return {len(own) for own in numbers.values()}

    files = [7_000_000] * 100
    assert tasks_of_files(plan(parts_of(*files, parts=7), 4, 1, ANY)) == {7}
    assert tasks_of_files(plan(parts_of(*files, parts=7), 4, 1, 10 * FULL)) == {1}
    assert tasks_of_files(plan(parts_of(7_000_000, parts=7), 4, 1, FULL)) == {7}


@given(
    files=st.lists(st.tuples(st.integers(0, 9_000), st.integers(1, 9)), min_size=1, max_size=60),
    parallelism=st.integers(1, 40),
    threads=st.integers(1, 4),
    image_bytes=st.integers(0, 40 * FULL),
)
def test_each_part_is_in_one_task_and_no_more_comes_back_than_may(
    files: list[tuple[int, int]], parallelism: int, threads: int, image_bytes: int
) -> None:
    statistics = ndvs("long", "string")
    file_parts = [
        FilePart(LiveFile(f"f{i}", 1, rows, 1, "PARQUET"), statistics, part, parts)
        for i, (rows, parts) in enumerate(files)
        for part in range(parts)
    ]
    tasks = plan(file_parts, parallelism, threads, image_bytes)
    planned = [file_part for task in tasks for file_part in task.file_parts]
    assert sorted(planned, key=repr) == sorted(file_parts, key=repr)
    assert all(task.file_parts for task in tasks)
    at_most = sum(2 * (24 + 8 * min(4_096, part.file.record_count)) for part in file_parts)
    if at_most > image_bytes:
        assert sum(task.image_bytes or 0 for task in tasks) <= image_bytes
    for task in tasks:
        order = [file_part.file.path for file_part in task.file_parts]
        changes = sum(one != other for one, other in pairwise(order))
        assert changes == len(set(order)) - 1, "the parts of a file lie side by side"
