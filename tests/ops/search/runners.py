"""Runners that work in this process, and cut and ship the work as a cluster would."""

import pickle
from collections.abc import Callable, Sequence

from icepuffin.ops.tasks.task_runner import LocalRunner, Progress, R, T


class SeveralAtOnce(LocalRunner):
    """Cuts work as for three executors, which get copies of it."""

    parallelism = 3

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], *, label: str, progress: Progress | None = None
    ) -> list[R]:
        results = super().run(copy(function), [copy(task) for task in tasks], label=label, progress=progress)
        return [copy(result) for result in results]


def copy(value: T) -> T:
    """As another process gets it."""
    copied: T = pickle.loads(pickle.dumps(value))  # noqa: S301  our own
    return copied


class LabelRecorder(SeveralAtOnce):
    """Records the labels of what was run, and the tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[str] = []
        self.tasks: list[object] = []

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], *, label: str, progress: Progress | None = None
    ) -> list[R]:
        self.jobs.append(label)
        self.tasks += tasks
        return super().run(function, tasks, label=label, progress=progress)


class ResultRecorder(SeveralAtOnce):
    """Records the bytes of the results of each job, as Spark sends them."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: list[int] = []

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], *, label: str, progress: Progress | None = None
    ) -> list[R]:
        results = super().run(function, tasks, label=label, progress=progress)
        self.bytes.append(sum(len(pickle.dumps(result)) for result in results))
        return results
