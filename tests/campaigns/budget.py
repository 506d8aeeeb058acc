"""The time that a campaign has, its seed, and what it has tried so far."""

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_SECONDS_PER_LINE = 20.0


@dataclass(slots=True)
class Budget:
    """How long a campaign may draw trials."""

    seconds: float
    seed: int
    """Seed of the campaign; a trial has one of its own"""
    first: int = 0
    """Number of the first trial, to repeat a late one"""
    counts: Counter[str] = field(default_factory=Counter)
    """Number of trials by outcome"""
    notes: Counter[str] = field(default_factory=Counter)
    """Events that are no trials"""
    is_enough: Callable[[Counter[str]], bool] = lambda _: False
    """Condition of `counts` that ends a campaign before its time is over"""

    def trials(self) -> Iterator[tuple[int, random.Random]]:
        """(number, generator) of each trial, until the time is over. The same seed gives the same trials."""
        begun = shown = time.monotonic()
        number = self.first
        while time.monotonic() - begun < self.seconds and not self.is_enough(self.counts):
            yield number, random.Random(f"{self.seed}-{number}")
            number += 1
            if time.monotonic() - shown > _SECONDS_PER_LINE:
                shown = time.monotonic()
                print(f"{shown - begun:,.0f} s: {self}", file=sys.stderr, flush=True)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.counts.items()))
        return f"{self.counts.total():,} trials ({kinds})"

    def report(self) -> str:
        """The number of trials, and a line for each event that is none."""
        return "\n".join([str(self), *(f"{count:>9,} {event}" for event, count in sorted(self.notes.items()))])


class BrokenPromiseError(AssertionError):
    """Raised when a promise is broken; its message repeats the trial."""
