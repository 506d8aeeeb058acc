import pytest

from icepuffin.ops.spark import places
from icepuffin.ops.spark.places import Places


def test_places_follow_executors_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """What registers may not take tasks yet, and what was lost is soon replaced."""
    seconds = 0.0
    monkeypatch.setattr(places, "monotonic", lambda: seconds)
    of_session, settled = Places(), places.SETTLED_SECONDS

    def executors(current: str) -> str:
        return of_session._executors(current)

    assert executors("a b") == "a b", "the first ones at once"
    seconds += 2 * settled
    assert executors("a") == "a b"
    seconds += settled - 1
    assert executors("a") == "a b"
    assert executors("a c") == "a b", "a set that is new again"
    seconds += settled - 1
    assert executors("a c") == "a b"
    seconds += 1
    assert executors("a c") == "a c"
    assert executors("a c") == "a c"
    assert executors("a b") == "a c"
