"""Clock of a run's stages."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StageClock:
    """Seconds per stage, and in total since the clock was made.

    Stages are timed as blocks (`with clock.stage("plan")`), or as laps that end where the next one begins.
    """

    def __init__(self) -> None:
        self._start = self._lap_start = time.perf_counter()
        self.stages: dict[str, float] = {}
        """Seconds by stage"""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a block; a stage that is entered again adds up."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.stages[name] = self.stages.get(name, 0.0) + time.perf_counter() - begun

    def lap(self, name: str) -> None:
        """End a stage that began with the last lap, or when the clock was made; one that comes again adds up."""
        now = time.perf_counter()
        self.stages[name] = self.stages.get(name, 0.0) + now - self._lap_start
        self._lap_start = now

    def split(self, name: str, part: str, seconds: float) -> None:
        """Book some seconds of one stage under a stage of their own."""
        self.stages[name] -= seconds
        self.stages[part] = self.stages.get(part, 0.0) + seconds

    @property
    def total(self) -> float:
        return time.perf_counter() - self._start

    @property
    def milliseconds(self) -> dict[str, float]:
        """Milliseconds, by stage, to the microsecond."""
        return {name: round(seconds * 1000, 3) for name, seconds in self.stages.items()}
