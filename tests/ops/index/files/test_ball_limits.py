"""Balls of a version that has too many: which files keep their balls, and that a merged ball holds all of its file."""

import numpy as np
import pytest

from icepuffin.ops.index.files import assembly, ball_limits
from icepuffin.ops.index.files.ball_limits import limited, merged
from icepuffin.puffin.blobs.centroid_blob import CentroidIndex, encoded_bytes

COUNTS = [3, 1, 4, 0, 2]
"""Balls of each file, by its ordinal"""


def index_of(counts: list[int]) -> CentroidIndex:
    ordinals = np.repeat(np.arange(len(counts), dtype=np.uint32), counts)
    centroids = np.arange(2 * len(ordinals), dtype=np.float32).reshape(-1, 2)
    radii = np.linspace(1, 2, len(ordinals), dtype=np.float32)
    return CentroidIndex(0, 2, centroids, ordinals, radii, tuple("abcdef"[: len(counts)]))


def counts_of(index: CentroidIndex) -> list[int]:
    return np.bincount(index.file_ordinals, minlength=len(index.files)).tolist()


def test_a_merged_ball_holds_those_of_its_file_and_others_stay() -> None:
    before = index_of(COUNTS)
    after = merged(before, np.array([False, True, True, True, False]))
    assert counts_of(after) == [3, 1, 1, 0, 2]
    kept = np.delete(np.arange(len(before.centroids)), [4, 5, 6, 7])
    others = np.delete(np.arange(len(after.centroids)), [4])
    np.testing.assert_array_equal(after.centroids[others], before.centroids[kept])
    np.testing.assert_array_equal(after.max_distances[others], before.max_distances[kept])
    gaps = np.linalg.norm(before.centroids[4:8] - after.centroids[4], axis=1)
    assert (gaps + before.max_distances[4:8] <= after.max_distances[4]).all()
    assert after.files == before.files


@pytest.mark.parametrize(
    ("most", "kept", "counts"),
    [
        (10, [True] * 5, COUNTS),
        (9, [True] * 5, [1, 1, 4, 0, 2]),
        (8, [True] * 5, [1, 1, 4, 0, 2]),
        (7, [True] * 5, [1, 1, 1, 0, 2]),
        (5, [True] * 5, [1, 1, 1, 0, 2]),
        (4, [True] * 5, [1, 1, 1, 0, 1]),
        (9, [False, True, True, True, True], [3, 1, 1, 0, 2]),
        (5, [False, False, False, True, True], [3, 1, 4, 0, 1]),
        (5, [False] * 5, COUNTS),
    ],
)
def test_balls_of_the_first_files_that_were_kept_are_merged_as_many_as_it_takes(
    most: int, kept: list[bool], counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[tuple[int, int]] = []

    def most_balls(files: int, dims: int) -> int:
        limits.append((files, dims))
        return most

    monkeypatch.setattr(ball_limits, "most_balls", most_balls)
    assert counts_of(limited(index_of(COUNTS), np.array(kept))) == counts
    assert limits == [(4, 2)], "a file without balls takes no room"


def test_a_blob_may_have_as_many_bytes_as_readers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """All balls, one for each file, or none: of each as many as there is room for to the byte."""
    index = index_of(COUNTS)
    one = merged(index, np.ones(len(COUNTS), np.bool_))
    for most, counts in (
        (encoded_bytes(index), COUNTS),
        (encoded_bytes(index) - 1, [1, 1, 1, 0, 1]),
        (encoded_bytes(one), [1, 1, 1, 0, 1]),
        (encoded_bytes(one) - 1, [0] * 5),
    ):
        monkeypatch.setattr(assembly, "MAX_CENTROID_BYTES", most)
        assert counts_of(assembly._fitting(index)) == counts
