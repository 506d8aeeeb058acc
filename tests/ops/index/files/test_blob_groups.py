"""Pieces in groups that one blob has room for."""

import pytest

from icepuffin.ops.index.files.included_blobs import blob_groups


@pytest.mark.parametrize(
    ("lengths", "groups"),
    [
        ([], []),
        ([4, 6], [(4, 6)]),
        ([4, 6, 1], [(4, 6), (1,)]),
        ([4, 7, 3, 1], [(4,), (7, 3), (1,)]),
        ([11, 2, 9], [(11,), (2,), (9,)]),
        ([2, 11], [(2,), (11,)]),
    ],
)
def test_a_group_has_as_many_pieces_as_there_is_room_for(lengths: list[int], groups: list[tuple[int, ...]]) -> None:
    assert list(blob_groups(lengths, int, 10)) == groups
