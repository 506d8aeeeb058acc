"""Proof that the balls of a version without graphs hold all rows of its snapshot."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from pyiceberg.schema import Schema

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.model import FileSlot, LiveFile, StorageConfig
from icepuffin.ops.tasks.enclosure import BallCheckTask, CheckedFile, check_balls
from icepuffin.ops.tasks.file_balls import Ball
from icepuffin.ops.tasks.runner import StageProgress, TaskRunner, balanced_groups, small_work_runner
from icepuffin.puffin.blobs.centroid import CentroidIndex
from icepuffin.puffin.blobs.routing import Routing


def tally_balls(
    files: Sequence[tuple[FileSlot, LiveFile]],
    index: CentroidIndex,
    expected: Routing,
    schema: Schema,
    field_id: int,
    storage: StorageConfig,
    runner: TaskRunner,
    progress: StageProgress | None,
) -> list[CheckedFile]:
    """Read the vectors of all live rows of files, and compare them with the balls. `expected`: the routing blob.

    Raises VectorColumnError, DataFileError, StorageError.
    """
    by_path = balls_by_path(index)
    balls = {slot: by_path[expected.files[slot].path] for slot, _ in files}
    runner = small_work_runner(runner, 4 * expected.dims * sum(file.record_count for _, file in files))
    tasks = [
        BallCheckTask(
            group,
            {slot: balls[slot] for slot, _ in group},
            schema,
            field_id,
            Metric.of_code(index.metric),
            expected.dims,
            storage,
        )
        for group in balanced_groups(files, runner, lambda item: (item[0], item[1].record_count))
    ]
    watched = None if progress is None else partial(progress, "verify")
    return [file for part in runner.run(check_balls, tasks, label="read all rows", progress=watched) for file in part]


def ball_faults(checked: Sequence[CheckedFile], paths: frozenset[str], expected: Routing) -> Iterator[str]:
    """One line on each file that is not what the version says. `paths`: relative ones of the snapshot's live files."""
    slots = {file.path: slot for slot, file in enumerate(expected.files) if file.present}
    for path in sorted(slots.keys() ^ paths):
        yield f"{path} is live in only one of snapshot and index"
    for file in checked:
        covered = expected.files[file.slot]
        if file.rows != covered.live_rows:
            yield (
                f"{covered.path}: {file.rows:,} live rows have a vector, the routing blob says {covered.live_rows:,}"
            )
        if file.outside:
            yield f"{covered.path}: {file.outside:,} of {file.rows:,} rows lie in none of its balls"


def balls_by_path(index: CentroidIndex) -> Mapping[str, list[Ball]]:
    """Balls of each file, by the path that the blob has for it; none for a file without."""
    balls: defaultdict[str, list[Ball]] = defaultdict(list)
    for number, center, radius in zip(index.file_ordinals, index.centroids, index.max_distances, strict=True):
        balls[index.files[number]].append((center, float(radius)))
    return balls
