from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icepuffin.ops.model import ObjectRange
from icepuffin.ops.storage.multipart import S3_LIMITS, CopyPart, PartLimits, UploadPart, part_share, plan_parts

SMALL = PartLimits(min_part=5, max_part=40, max_parts=100, part=12, copy=30)
SEGMENTS = st.lists(
    st.one_of(
        st.binary(max_size=100),
        st.builds(ObjectRange, st.sampled_from("ab"), st.integers(0, 10), st.integers(0, 150)),
    ),
    max_size=8,
)


@given(SEGMENTS)
def test_parts_keep_every_byte_in_order_and_stay_within_the_limits(segments: list[bytes | ObjectRange]) -> None:
    parts = list(plan_parts(segments, SMALL))
    flat: list[bytes | ObjectRange] = []
    for part in parts:
        flat += [part.range] if isinstance(part, CopyPart) else part.pieces
    assert _bytes(flat) == _bytes(segments)
    assert all(part.length >= SMALL.min_part for part in parts[:-1])
    assert all(part.length <= (SMALL.copy if isinstance(part, CopyPart) else SMALL.part) for part in parts)


def _bytes(pieces: list[bytes | ObjectRange]) -> list[tuple[str, int, int] | bytes]:
    """Runs of consecutive bytes: literals joined, ranges as (source, first, length)."""
    runs: list[tuple[str, int, int] | bytes] = []
    for piece in pieces:
        last = runs[-1] if runs else None
        if isinstance(piece, bytes):
            if isinstance(last, bytes):
                runs[-1] = last + piece
            elif piece:
                runs.append(piece)
        elif isinstance(last, tuple) and last[0] == piece.path and last[1] + last[2] == piece.offset:
            runs[-1] = (last[0], last[1], last[2] + piece.length)
        elif piece.length:
            runs.append((piece.path, piece.offset, piece.length))
    return runs


def test_a_large_range_is_copied_but_for_what_a_small_neighbour_borrows() -> None:
    parts = list(plan_parts([b"abc", ObjectRange("x", 100, 60)], SMALL))
    assert [part.length for part in parts] == [5, 29, 29]
    assert [isinstance(part, CopyPart) for part in parts] == [False, True, True]


def test_a_range_of_the_least_size_of_a_part_is_copied_and_one_below_it_is_sent() -> None:
    for length, kind in ((5, CopyPart), (4, UploadPart)):
        (part,) = plan_parts([ObjectRange("x", 100, length)], SMALL)
        assert (type(part), part.length) == (kind, length)
    assert [part_share(length, SMALL) for length in (4, 5, 30, 31)] == [4 / 12, 2, 2, 3]


def test_a_part_is_known_before_later_segments_are() -> None:
    def segments() -> Iterator[bytes | ObjectRange]:
        yield ObjectRange("x", 0, 30)
        raise KeyError

    parts = plan_parts(segments(), SMALL)
    assert next(parts) == CopyPart(ObjectRange("x", 0, 30))
    with pytest.raises(KeyError):
        next(parts)


def test_ten_thousand_parts_hold_the_largest_object() -> None:
    sizes = [S3_LIMITS.size_of(number) for number in range(S3_LIMITS.max_parts)]
    assert sum(sizes) > 5 * 1024**4
    assert (S3_LIMITS.min_part, sizes[0]) == (5 * 1024**2, 16 * 1024**2)
    assert max(sizes) <= 5 * 1024**3


@given(SEGMENTS)
@example([*5 * [b"\0"], *2 * [ObjectRange("a", 0, 4)]])
def test_ranges_take_no_more_parts_than_their_shares(segments: list[bytes | ObjectRange]) -> None:
    """Beside what the bytes between them fill."""
    shares = [part_share(item.length, SMALL) for item in segments if isinstance(item, ObjectRange)]
    pieces = [item if isinstance(item, ObjectRange) else item[:1] for item in segments]
    between = sum(len(piece) for piece in pieces if isinstance(piece, bytes))
    assert sum(1 for _ in plan_parts(pieces, SMALL)) <= sum(shares) + between / SMALL.part + 1


@pytest.mark.parametrize("mib", [1, 5, 6, 20])
def test_no_number_of_small_ranges_takes_all_parts(mib: int) -> None:
    """30,000 of 6 MiB took 30,000 parts, and S3 takes 10,000."""
    length = mib << 20
    parts = list(plan_parts(ObjectRange(f"s3://lake/{number}", 0, length) for number in range(30_000)))
    assert len(parts) <= 8_000
    assert sum(part.length for part in parts) == 30_000 * length
    assert max(part.length for part in parts) <= 2 << 30


@pytest.mark.parametrize("wrong", [{"part": 4}, {"part": 41}, {"copy": 9}, {"copy": 41}], ids=str)
def test_limits_that_cannot_be_kept_are_refused(wrong: dict[str, int]) -> None:
    replace(SMALL, part=5, copy=10)
    replace(SMALL, part=40, copy=40)
    with pytest.raises(ValueError, match="within the limits"):
        replace(SMALL, **wrong)


def test_each_copy_counts_towards_larger_parts() -> None:
    limits = PartLimits(min_part=1, max_part=100, part=4, copy=2)
    *copies, first, second, last = plan_parts([ObjectRange("a", 0, 2_000), bytes(20)], limits)
    assert len(copies) == 1_000
    assert (first.length, second.length, last.length) == (8, 8, 4)
