import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ann_kernels.compilation import JIT
from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.sketches.hashing import fold_bytes, fold_words
from tests.naive.theta import murmur3_x64_128


def folded(rows: list[int], values: list[bytes | None]) -> list[int]:
    """The naive form: murmur3 of 16 bytes, the row's hash and the value's."""
    pairs = [(row, 0 if v is None else murmur3_x64_128(v, 9001)[0]) for row, v in zip(rows, values, strict=True)]
    return [murmur3_x64_128(struct.pack("<QQ", *pair), 9001)[0] for pair in pairs]


u64 = st.integers(0, 2**64 - 1)


@given(rows=st.lists(st.tuples(u64, st.none() | u64), max_size=40))
def test_words_are_folded_into_the_hashes_of_their_rows(rows: list[tuple[int, int | None]]) -> None:
    hashes = np.array([row for row, _ in rows], np.uint64)
    words = np.array([word or 0 for _, word in rows], np.uint64)
    present = np.array([word is not None for _, word in rows], np.bool_)
    expected = folded(hashes.tolist(), [None if w is None else struct.pack("<Q", w) for _, w in rows])
    fold_words(hashes, words, None if present.all() else present)
    assert hashes.tolist() == expected


@given(rows=st.lists(st.tuples(u64, st.none() | st.binary(max_size=40)), max_size=20), large=st.booleans())
def test_byte_strings_are_folded_into_the_hashes_of_their_rows(
    rows: list[tuple[int, bytes | None]], large: bool
) -> None:
    hashes = np.array([row for row, _ in rows], np.uint64)
    values = [b"hidden" if value is None else value for _, value in rows]
    present = np.array([value is not None for _, value in rows], np.bool_)
    expected = folded(hashes.tolist(), [value for _, value in rows])
    offsets = np.cumsum([2, *map(len, values)]).astype(np.int64 if large else np.int32)
    fold_bytes(hashes, offsets, np.frombuffer(b"xx" + b"".join(values), np.uint8), None if present.all() else present)
    assert hashes.tolist() == expected


def test_arrays_that_do_not_belong_together_are_refused_before_a_kernel_sees_them() -> None:
    hashes, present = np.zeros(3, np.uint64), np.ones(2, np.bool_)
    data, offsets = np.zeros(9, np.uint8), np.array([0, 1, 2, 9], np.int32)
    for bad in ((hashes[:2],), (hashes, present)):
        with pytest.raises(KernelError, match="do not fit 3 rows"):
            fold_words(hashes, *bad)
    for bad_bytes in ((offsets[:3], data), (offsets, data, present)):
        with pytest.raises(KernelError, match="do not fit 3 rows"):
            fold_bytes(hashes, *bad_bytes)
    for wrong in ([0, 5, 3, 9], [-1, 1, 2, 9], [0, 1, 2, 10]):
        with pytest.raises(KernelError, match="must ascend within the 9 bytes"):
            fold_bytes(hashes, np.array(wrong, np.int32), data)


USES_KERNELS = """
import numpy as np
from numba.core.dispatcher import Dispatcher
from icepuffin.ann_kernels.sketches import hashing

def compiled_forms():
    return {name: kernel.signatures for name, kernel in vars(hashing).items() if isinstance(kernel, Dispatcher)}

hashing.warm()
before = compiled_forms()
hashes, some = np.zeros(8, np.uint64), np.arange(8) > 3
for present in (None, some):
    hashing.fold_words(hashes[:8], np.arange(8).view(np.uint64), present)
    for dtype in (np.int32, np.int64):
        hashing.fold_bytes(hashes, np.arange(9, dtype=dtype), np.arange(8, dtype=np.uint8), present)
assert len(before) > 2
assert compiled_forms() == before, compiled_forms()
"""


@pytest.mark.skipif(not JIT, reason="nothing is compiled")
def test_what_comes_after_warming_compiles_nothing() -> None:
    """In a process of its own: other tests compile other forms."""
    subprocess.run([sys.executable, "-W", "error", "-c", USES_KERNELS], check=True)
