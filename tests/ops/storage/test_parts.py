from hypothesis import given
from hypothesis import strategies as st

from ops.model import ObjectRange
from ops.storage.parts import MIN_PART, CopyPart, plan_parts

SEGMENTS = st.lists(
    st.one_of(
        st.integers(0, 2 * MIN_PART).map(bytes),
        st.builds(ObjectRange, st.sampled_from("ab"), st.integers(0, 10), st.integers(0, 5 * MIN_PART)),
    ),
    max_size=6,
)


@given(SEGMENTS)
def test_parts_keep_every_byte_in_order_and_are_large_enough(segments: list[bytes | ObjectRange]) -> None:
    parts = plan_parts(segments)
    flat: list[bytes | ObjectRange] = []
    for part in parts:
        flat += [part.range] if isinstance(part, CopyPart) else part.pieces
    assert _bytes(flat) == _bytes(segments)
    assert all(part.length >= MIN_PART for part in parts[:-1])


def _bytes(pieces: list[bytes | ObjectRange]) -> list[tuple[str, int, int]]:
    """Runs of consecutive bytes: (source, first, length); a literal's source is its place among literals."""
    runs: list[tuple[str, int, int]] = []
    for piece in pieces:
        length = len(piece) if isinstance(piece, bytes) else piece.length
        if not length:
            continue
        source, first = ("", -1) if isinstance(piece, bytes) else (piece.path, piece.offset)
        if runs and runs[-1][0] == source and (source == "" or runs[-1][1] + runs[-1][2] == first):
            runs[-1] = (source, runs[-1][1], runs[-1][2] + length)
        else:
            runs.append((source, first, length))
    return runs
