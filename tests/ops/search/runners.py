"""Runners that work in this process and cut the work as a cluster would."""

from collections.abc import Callable, Sequence

from icepuffin.ops.tasks.runner import LocalRunner, Progress, R, T


class SeveralAtOnce(LocalRunner):
    """Cuts work as for three executors."""

    parallelism = 3


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
