"""Where the arrays of codes get their place."""

import weakref
from typing import Any

import numpy as np
import pytest

from icepuffin.ann_kernels.allocation import in_memory
from icepuffin.ann_kernels.arrays import AnyArray
from icepuffin.ann_kernels.codes import scalar_quantization
from icepuffin.ann_kernels.codes.four_bit_quantization import MIN_DIMS, FourBitCodes
from icepuffin.ann_kernels.codes.scalar_quantization import ScalarCodes
from icepuffin.ann_kernels.distances.coded_comparison import CodedVectors
from icepuffin.ann_kernels.graphs.walk_codes import MIN_SIGNED_DIMS, WalkCodes, walk_codes
from icepuffin.ann_kernels.metric import Metric
from tests.ann_kernels.data import clustered, near_duplicates


class Places:
    """Gives arrays, full of ones, and knows to which somebody refers."""

    def __init__(self) -> None:
        self.refs = list[weakref.ref[AnyArray]]()
        self.most = 0
        """Most bytes that were referred to when another array was given"""

    def __call__(self, shape: tuple[int, ...], dtype: Any) -> AnyArray:
        self.most = max(self.most, sum(self.sizes()))
        array: AnyArray = np.ndarray(shape, dtype, buffer=bytearray(b"\xff" * in_memory(shape, dtype).nbytes))
        self.refs.append(weakref.ref(array))
        return array

    def sizes(self) -> list[int]:
        """Bytes of each array that somebody refers to."""
        return [array.nbytes for ref in self.refs if (array := ref()) is not None]


def arrays_of(codes: WalkCodes) -> list[AnyArray]:
    arrays = [*codes.space, codes.offset]
    if isinstance(codes, FourBitCodes):
        arrays += [codes.widths, *(codes.signs or ())]
    return arrays


@pytest.mark.parametrize("shape", [(0,), (3,), (5, 64), (7, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64, np.float32])
def test_an_array_in_memory_begins_with_a_cache_line(shape: tuple[int, ...], dtype: Any) -> None:
    for _ in range(5):
        array = in_memory(shape, dtype)
        assert array.shape == shape
        assert array.dtype == dtype
        assert array.ctypes.data % 64 == 0 or not array.size
        assert array.flags.c_contiguous
        assert array.flags.writeable


@pytest.mark.parametrize("dims", [20, MIN_DIMS + 3, MIN_SIGNED_DIMS])
def test_all_arrays_of_codes_are_where_the_caller_wants_them(dims: int) -> None:
    vectors, places = clustered(1_200, dims), Places()
    codes, in_this_memory = walk_codes(vectors, Metric.L2, allocate=places), walk_codes(vectors, Metric.L2)
    assert codes is not None
    assert in_this_memory is not None
    own = arrays_of(codes)
    assert [array.nbytes for array in own] == places.sizes()
    for array, other in zip(own, arrays_of(in_this_memory), strict=True):
        assert np.array_equal(array, other)


def test_errors_and_halves_are_where_the_caller_wants_them() -> None:
    vectors, places = clustered(1_200, 30), Places()
    codes = scalar_quantization.encode(vectors)
    assert codes is not None
    coded, in_this_memory = CodedVectors(vectors, codes, allocate=places), CodedVectors(vectors, codes)
    steps, halves = coded.errors.steps, coded.halves
    assert places.sizes() == [steps.nbytes, halves.nbytes]
    assert np.array_equal(steps, in_this_memory.errors.steps)
    assert np.array_equal(halves, in_this_memory.halves)


def test_codes_that_do_not_serve_are_dropped_before_others_are_made() -> None:
    vectors, places = near_duplicates(3_000, MIN_DIMS, 80, 0.1), Places()
    codes = walk_codes(vectors, Metric.L2, allocate=places)
    assert isinstance(codes, ScalarCodes)
    assert places.sizes() == [array.nbytes for array in arrays_of(codes)]
    assert len(places.refs) == len(places.sizes()) + 4, "no codes of four bits were tried"
    assert places.most < sum(places.sizes())
