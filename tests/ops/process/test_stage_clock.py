"""Seconds of a run's stages, by a clock that the test sets."""

from contextlib import suppress
from types import SimpleNamespace

import pytest

from icepuffin.ops.process import stage_clock
from icepuffin.ops.process.stage_clock import StageClock


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds = [100.0]
    monkeypatch.setattr(stage_clock, "time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    return seconds


def test_blocks_and_laps_add_up_by_their_names(now: list[float]) -> None:
    clock = StageClock()
    now[0] += 2
    with clock.stage("plan"):
        now[0] += 3
    now[0] += 5
    with suppress(ValueError), clock.stage("plan"):
        now[0] += 7
        raise ValueError
    assert (clock.stages, clock.total) == ({"plan": 10.0}, 17.0)


def test_a_lap_lasts_from_the_one_before_or_from_the_beginning(now: list[float]) -> None:
    clock = StageClock()
    for name, seconds in (("read", 1), ("rank", 2), ("read", 4)):
        now[0] += seconds
        clock.lap(name)
    assert clock.stages == {"read": 5.0, "rank": 2.0}
    clock.split("read", "rows", 1.5)
    clock.split("read", "rows", 0.5)
    assert clock.milliseconds == {"read": 3_000.0, "rank": 2_000.0, "rows": 2_000.0}
