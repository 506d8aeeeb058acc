"""Distribution of data files over tasks that sketch them, with a bound on what the tasks return. Pure."""

from collections.abc import Iterator, Sequence

from pyiceberg.schema import Schema

from icepuffin.ops.model import StorageConfig
from icepuffin.ops.tasks.sketches.statistic import image_bound
from icepuffin.ops.tasks.sketches.theta_task import FilePart, SketchTask
from icepuffin.ops.tasks.task_runner import UNION_BYTES

_ROUNDS = 8
"""File parts that a worker gets one after the other."""
_MANY = 1 << 31
"""Rows that give the longest image of each kind"""


def plan_tasks(
    file_parts: Sequence[FilePart],
    storage: StorageConfig,
    schema: Schema,
    *,
    parallelism: int,
    threads: int,
    image_bytes: int,
) -> list[SketchTask]:
    """Distribute file parts over tasks: several per worker, the largest first, so that none waits long for the last.

    `parallelism`: tasks that run at once. `threads`: of one task. `image_bytes`: bytes of single files' sketches that
    all tasks return, at most. Where all sketches may be more, there are as few tasks as `UNION_BYTES` admits.
    """
    if not file_parts:
        return []
    count = (
        min(len(file_parts), parallelism * _ROUNDS) if parallelism > 1 else -(-len(file_parts) // (threads * _ROUNDS))
    )
    ordered = sorted(file_parts, key=lambda s: (-s.file.record_count // s.parts, s.file.path, s.part))
    if sum(map(_most_bytes, ordered)) <= image_bytes:
        return [SketchTask(storage, schema, tuple(ordered[number::count]), threads) for number in range(count)]
    together = -(-len(ordered) // count)
    by_task = _by_file(ordered, min(count, _most_tasks(ordered, parallelism)))
    shares = _shares(by_task, image_bytes)
    return [
        SketchTask(storage, schema, task, threads, together, share) for task, share in zip(by_task, shares, strict=True)
    ]


def _most_bytes(file_part: FilePart) -> int:
    """Bytes of the sketches of a part, at most."""
    return sum(image_bound(statistic.key, file_part.file.record_count) for statistic in file_part.statistics)


def _most_tasks(file_parts: Sequence[FilePart], parallelism: int) -> int:
    """Number of tasks, each of which returns a union per statistic."""
    distinct = {
        id(file_part.statistics): file_part.statistics for file_part in file_parts
    }  # most files share one tuple
    keys = {statistic.key for statistics in distinct.values() for statistic in statistics}
    most = UNION_BYTES // max(1, sum(image_bound(key, _MANY) for key in keys))
    return max(1, most, min(parallelism, 2 * most))


def _by_file(ordered: Sequence[FilePart], count: int) -> list[tuple[FilePart, ...]]:
    """The parts of each task, files of most rows first: a file is in one task, unless that is more than its share."""
    units = sorted(_units(ordered, -(-len(ordered) // count)), key=lambda unit: -sum(_rows(part) for part in unit))
    return [
        tuple(
            sorted(
                (file_part for unit in units[number::count] for file_part in unit),
                key=lambda s: (-s.file.record_count, s.file.path, s.part),
            )
        )
        for number in range(min(count, len(units)))
    ]


def _units(ordered: Sequence[FilePart], longest: int) -> Iterator[list[FilePart]]:
    """Parts of one file each that a task gets together."""
    unit: list[FilePart] = []
    for file_part in ordered:
        if unit and (unit[0].file.path != file_part.file.path or len(unit) == longest):
            yield unit
            unit = []
        unit.append(file_part)
    yield unit


def _rows(file_part: FilePart) -> int:
    return file_part.file.record_count // file_part.parts


def _shares(by_task: Sequence[Sequence[FilePart]], image_bytes: int) -> list[int]:
    """Bytes of single files' sketches that each task returns, at most: as many as those of its files take, at most,
    that are the longest of all.
    """
    shares = [0] * len(by_task)
    first_parts = [
        (-file_part.file.record_count, file_part.file.path, number, _most_bytes(file_part))
        for number, task in enumerate(by_task)
        for file_part in {file_part.file.path: file_part for file_part in task}.values()
    ]
    for _, _, number, size in sorted(first_parts):
        shares[number] += min(size, image_bytes)
        image_bytes -= min(size, image_bytes)
    return shares
