"""Matches that are kept for conditions that come again."""

import numpy as np

from icepuffin.ops.filters.matches import MatchCache, Matches
from icepuffin.ops.model import FileNumber


def matches(rows: int) -> Matches:
    return Matches({FileNumber(0): np.arange(rows)}, 1)


def found(cache: MatchCache, condition: str, rows: int) -> bool:
    """Whether the matches of a condition have to be found; they are kept then."""
    calls: list[int] = []
    kept = cache.get(condition, lambda: calls.append(rows) or matches(rows))
    assert kept.count == rows
    return bool(calls)


def test_the_matches_of_the_last_sixty_four_conditions_are_kept() -> None:
    cache = MatchCache()
    assert all(found(cache, f"id = {number}", 1) for number in range(64))
    assert not found(cache, "id = 0", 1)
    assert found(cache, "id = 64", 1)
    assert not found(cache, "id = 0", 1), "it came again lately"
    assert found(cache, "id = 1", 1)


def test_matches_of_many_rows_leave_room_for_fewer_others() -> None:
    """Four million rows are kept, of as many conditions as they are of."""
    cache = MatchCache()
    for name in ("first", "second"):
        assert found(cache, name, 2_000_000)
    assert not found(cache, "first", 2_000_000)
    assert found(cache, "third", 1)
    assert not found(cache, "first", 2_000_000)
    assert found(cache, "second", 2_000_000)
    assert found(cache, "all", 4_000_001)
    assert found(cache, "all", 4_000_001), "too many to be kept"


def test_matches_are_marked_by_file_and_position() -> None:
    own = Matches({FileNumber(0): np.array([1, 5]), FileNumber(2): np.array([5])}, 3)
    files, positions = np.array([0, 0, 1, 2, 2, -1]), np.array([1, 2, 1, 5, 1, 5])
    assert own.mask(files, positions).tolist() == [True, False, False, True, False, False]
    part = own.in_files([FileNumber(1), FileNumber(2)])
    assert (part.count, part.files_read, [*part.positions]) == (1, 3, [2])
    assert (own.count, own.weight, own.count_by_nodes(1, 1)) == (3, 3, 3)
