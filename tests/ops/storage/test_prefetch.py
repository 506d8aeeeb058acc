"""Ranges that are read together."""

from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ops.storage.prefetch import GAP, coalesced

RANGES = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40)), max_size=12)


def naive(ranges: list[tuple[int, int]], longest: int | None, gap: int) -> list[tuple[int, int]]:
    """Each range in turn joins the one before it where it may."""
    spans: list[list[int]] = []
    for offset, length in sorted(ranges):
        end = offset + length
        if (
            spans
            and offset <= spans[-1][1] + gap
            and (longest is None or max(end, spans[-1][1]) <= spans[-1][0] + longest)
        ):
            spans[-1][1] = max(end, spans[-1][1])
        else:
            spans.append([offset, end])
    return [(start, end - start) for start, end in spans]


@given(RANGES, st.none() | st.integers(0, 120), st.integers(0, 30))
def test_ranges_are_joined_over_gaps_up_to_a_length(
    ranges: list[tuple[int, int]], longest: int | None, gap: int
) -> None:
    joined = coalesced(ranges, longest=longest, gap=gap)
    assert joined == naive(ranges, longest, gap)
    for offset, length in ranges:
        assert any(start <= offset and offset + length <= start + size for start, size in joined)


def test_a_gap_of_a_mebibyte_is_read_and_a_longer_one_is_skipped() -> None:
    assert GAP == 1024 * 1024
    assert coalesced([(0, 10), (10 + GAP, 5)]) == [(0, 15 + GAP)]
    assert coalesced([(0, 10), (11 + GAP, 5)]) == [(0, 10), (11 + GAP, 5)]
