"""Lists in messages have an end."""

from icepuffin.ops.line_lists import MOST_LISTED, listed


def test_a_list_has_its_first_lines_and_the_number_of_the_others() -> None:
    lines = [f"line {number}" for number in range(MOST_LISTED + 1_000)]
    assert listed(lines) == (*lines[:MOST_LISTED], "and 1,000 more")
    assert listed(lines[: MOST_LISTED + 1]) == (*lines[:MOST_LISTED], "and 1 more")
    assert listed(lines[:MOST_LISTED]) == tuple(lines[:MOST_LISTED])
    assert listed([]) == ()
