"""How long the stages of a materialisation take."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StageClock:
    """Seconds of each stage, and of all since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.stages: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.stages[name] = self.stages.get(name, 0.0) + time.perf_counter() - begun

    def split(self, name: str, part: str, seconds: float) -> None:
        """So many of a stage's seconds were a stage of their own."""
        self.stages[name] -= seconds
        self.stages[part] = self.stages.get(part, 0.0) + seconds

    @property
    def total(self) -> float:
        return time.perf_counter() - self._start
