"""Cache lines requested before they are read, so that a walk does not wait for memory at each step."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from icepuffin.ann_kernels.arrays import AnyArray
from icepuffin.ann_kernels.compilation import inline_kernel
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
    i64,
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
        _request(builder, address(context, builder, signature.args[0], args[0], args[1], i8))
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


def _request(builder: Builder, index: Value) -> None:
    function = llvm_function(builder, "llvm.prefetch.p0", ir.VoidType(), i8.as_pointer(), i32, i32, i32)
    # A read of data into the second-level cache. The first level has few buffers for lines on their way, and
    # waiting for one of those took half of a search's time.
    builder.call(function, [index, i32(0), i32(2), i32(1)])


@inline_kernel
def _no_prefetch_lines(array: AnyArray, first: int, count: int) -> None:
    return


@with_fallback(_no_prefetch_lines)
def prefetch_lines(typing_context: Typing, array: Typing, first: Typing, count: Typing) -> Code:
    """prefetch_lines(array, first, count): request some elements, one or more, as `prefetch` does: one each LINE bytes.

    The last line is left out where the first element does not begin one. LLVM would unroll the loop many times over,
    wherever it stands, and most rows are a few lines: it would take longer to compile than what it stands in.
    """

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        begin = address(context, builder, signature.args[0], args[0], args[1], i8)
        size = builder.mul(args[2], i64(signature.args[0].dtype.bitwidth // 8))
        before = builder.block
        body, after = (builder.append_basic_block(f"prefetch.{part}") for part in ("body", "after"))
        builder.branch(body)  # no test whether there is a line: LLVM would write the code around it twice
        builder.position_at_end(body)
        offset = builder.phi(i64)
        _request(builder, builder.gep(begin, [offset]))
        following = builder.add(offset, i64(LINE))
        offset.add_incoming(i64(0), before)
        offset.add_incoming(following, body)
        again = builder.cbranch(builder.icmp_signed("<", following, size), body, after)
        again.set_metadata("llvm.loop", _not_unrolled(builder.module))
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate


def _not_unrolled(module: Any) -> Any:
    """The name of a loop that is not to be unrolled: a node whose first operand is itself."""
    name = module.add_metadata([ir.MetaDataString(module, f"loop {len(module.metadata)}")])
    name.operands = (name, module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")]))
    return name


@inline_kernel
def prefetch_row(rows: AnyArray, row: Any) -> None:
    """Request all cache lines of a row of a C-contiguous array; rows need not begin where lines do."""
    width = rows.shape[1]
    first = np.intp(row) * width
    prefetch_lines(rows, first, width)
    prefetch(rows, first + width - 1)
