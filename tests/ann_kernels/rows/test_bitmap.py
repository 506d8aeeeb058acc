"""Bitmaps against arrays of bools."""

import numpy as np
import pytest

from icepuffin.ann_kernels.rows.bitmap import Bitmap, has_row


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 127, 1_000])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_a_bitmap_is_a_set_of_rows(size: int, share: float) -> None:
    rng = np.random.default_rng(size)
    marked, others = rng.random(size) < share, rng.random(size) < 0.5
    rows = np.flatnonzero(marked)
    bitmap, other = Bitmap.from_mask(marked), Bitmap.from_mask(others)
    assert bitmap.count() == len(rows)
    assert np.array_equal(bitmap.indices(), rows)
    assert np.array_equal(bitmap.marked(), marked)
    assert np.array_equal((bitmap & other).marked(), marked & others)
    assert np.array_equal((bitmap | other).marked(), marked | others)
    assert np.array_equal(bitmap.without(other).marked(), marked & ~others)
    for kind in (np.uint32, np.uint64, np.int64):
        assert np.array_equal(Bitmap.of_rows(rng.permutation(rows).astype(kind), size).words, bitmap.words)
    few, few_others = Bitmap.of_few(rows.astype(np.uint32), size), Bitmap.of_few(other.rows(), size)
    assert few.is_few
    assert not bitmap.is_few
    for one, two in ((few, other), (bitmap, few_others), (few, few_others)):
        assert (one & two).is_few
        assert np.array_equal((one & two).rows(), np.flatnonzero(marked & others))
        assert (one & two).count() == np.count_nonzero(marked & others)
        assert np.array_equal((one | two).marked(), marked | others)
    for kind in (np.uint8, np.uint16, np.uint32):
        codes = rng.integers(0, 6, size).astype(kind)
        assert np.array_equal(few.coded(codes, 2, 4).rows(), np.flatnonzero(marked & (codes >= 2) & (codes <= 4)))
    assert np.array_equal(few.words, bitmap.words)
    assert np.array_equal(few.indices(), rows)
    assert [bool(has_row(bitmap.words, row)) for row in range(size)] == marked.tolist()


def test_a_span_of_a_bitmap() -> None:
    marked = np.random.default_rng(0).random(200) < 0.5
    bitmap = Bitmap.from_mask(marked)
    for start in range(200):
        for stop in range(start, 201, 7):
            assert np.array_equal(bitmap.marked(start, stop), marked[start:stop])
