"""Cache lines requested before they are read, so that a walk does not wait for memory at each step."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from icepuffin.ann_kernels.arrays import AnyArray
from icepuffin.ann_kernels.compilation import inline_kernel, kernel
from icepuffin.ann_kernels.simd.codegen import (
    Builder,
    Code,
    Context,
    Signature,
    Typing,
    Value,
    address,
    i8,
    i32,
    llvm_function,
    with_fallback,
)

LINE = 64
"""Bytes of a cache line"""


@inline_kernel
def _no_prefetch(array: AnyArray, index: int) -> None:
    return


@with_fallback(_no_prefetch)
def prefetch(typing_context: Typing, array: Typing, index: Typing) -> Code:
    """prefetch(array, index): request the cache line of an element of a C-contiguous array.

    The index counts as if the array were flat: a `reshape` in the kernel would keep LLVM from vectorising the code
    around it.
    """

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        place = address(context, builder, signature.args[0], args[0], args[1], i8)
        function = llvm_function(builder, "llvm.prefetch.p0", ir.VoidType(), i8.as_pointer(), i32, i32, i32)
        # A read of data into the second-level cache. The first level has few buffers for lines on their way, and
        # waiting for one of those took half of a search's time.
        builder.call(function, [place, i32(0), i32(2), i32(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@kernel
def prefetch_row(rows: AnyArray, row: Any) -> None:
    """Request all cache lines of a row of a C-contiguous array; rows need not begin where lines do."""
    width = rows.shape[1]
    first = np.intp(row) * width
    for column in range(0, width, LINE // rows.itemsize):
        prefetch(rows, first + column)
    prefetch(rows, first + width - 1)
