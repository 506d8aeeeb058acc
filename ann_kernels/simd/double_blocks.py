"""Sums in float64 over blocks of 32 elements of float32 or float64, in an order that is written down.

Thirty-two sums are added up side by side, element i to sum i mod 32, with fused multiply-adds, and then to each other
in fixed pairs. LLVM may not reorder that, as it may reorder loops under fast-math: the same vectors give the same bits
in every kernel and on every machine (except with the JIT off, which is for tests).
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from icepuffin.ann_kernels.arrays import F64, Floats
from icepuffin.ann_kernels.simd.codegen import (
    Builder,
    Code,
    Context,
    Signature,
    Typing,
    Value,
    address,
    broadcast,
    cgutils,
    f32,
    f64,
    i32,
    i64,
    llvm_function,
    with_fallback,
)

BLOCK_VALUES = 32
"""Elements of a block, each added to a sum of its own"""
_LANES = 8
_DOUBLES = ir.VectorType(f64, _LANES)


def _load_doubles(builder: Builder, first: Value, index: Value, dtype: Typing) -> Value:
    """Eight elements as doubles."""
    narrow = dtype == types.float32
    pointer = ir.VectorType(f32 if narrow else f64, _LANES).as_pointer()
    values = builder.load(builder.bitcast(builder.gep(first, [index]), pointer), align=4 if narrow else 8)
    return builder.fpext(values, _DOUBLES) if narrow else values


def _sum_of_lanes(builder: Builder, lanes: Value) -> Value:
    """The sum of all lanes: the upper half is added to the lower one until one lane is left."""
    count = _LANES
    while count > 1:
        count //= 2
        low, high = (
            builder.shuffle_vector(
                lanes, lanes, ir.Constant(ir.VectorType(i32, count), list(range(first, first + count)))
            )
            for first in (0, count)
        )
        lanes = builder.fadd(low, high)
    return builder.extract_element(lanes, i32(0))


def _sum_of_blocks(
    context: Context, builder: Builder, kinds: Any, args: Any, factors: Callable[[Value, Value], tuple[Value, Value]]
) -> Value:
    """Sum of a * b for (a, b) = factors(x, y), over `args[4]` blocks of x and y.

    x are elements of array `args[0]` from `args[1]` on, y of array `args[2]` from `args[3]` on.
    """
    left_element, right_element = (f32 if kinds[array].dtype == types.float32 else f64 for array in (0, 2))
    left = address(context, builder, kinds[0], args[0], args[1], left_element)
    right = address(context, builder, kinds[2], args[2], args[3], right_element)
    fused = llvm_function(builder, f"llvm.fma.v{_LANES}f64", _DOUBLES, _DOUBLES, _DOUBLES, _DOUBLES)
    sums = [cgutils.alloca_once(builder, _DOUBLES) for _ in range(BLOCK_VALUES // _LANES)]
    for total in sums:
        builder.store(ir.Constant(_DOUBLES, [0.0] * _LANES), total)
    with cgutils.for_range(builder, args[4]) as loop:
        for number, total in enumerate(sums):
            index = builder.add(builder.mul(loop.index, i64(BLOCK_VALUES)), i64(number * _LANES))
            x = _load_doubles(builder, left, index, kinds[0].dtype)
            y = _load_doubles(builder, right, index, kinds[2].dtype)
            builder.store(builder.call(fused, [*factors(x, y), builder.load(total)]), total)
    a, b, c, d = (builder.load(total) for total in sums)
    return _sum_of_lanes(builder, builder.fadd(builder.fadd(a, b), builder.fadd(c, d)))


def _blocks(left: Floats, left_start: int, right: Floats, right_start: int, blocks: int) -> Iterator[F64]:
    for array, start in ((left, left_start), (right, right_start)):
        yield array.reshape(-1)[start : start + blocks * BLOCK_VALUES].astype(np.float64)


def _plain_squared_gaps(
    left: Floats, left_start: int, right: Floats, right_start: int, blocks: int, factor: float
) -> Any:
    x, y = _blocks(left, left_start, right, right_start, blocks)
    return ((x * factor - y) ** 2).sum()


@with_fallback(_plain_squared_gaps)
def block_squared_gaps(
    typing_context: Typing,
    left: Typing,
    left_start: Typing,
    right: Typing,
    right_start: Typing,
    blocks: Typing,
    factor: Typing,
) -> Code:
    """block_squared_gaps(left, left_start, right, right_start, blocks, factor) -> f64: sum of (factor * x - y)^2."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        scale = broadcast(builder, args[5], _LANES)

        def factors(x: Value, y: Value) -> tuple[Value, Value]:
            gap = builder.fsub(builder.fmul(x, scale), y)
            return gap, gap

        return _sum_of_blocks(context, builder, signature.args, args, factors)

    return types.float64(left, types.intp, right, types.intp, types.intp, types.float64), generate


def _plain_products(left: Floats, left_start: int, right: Floats, right_start: int, blocks: int) -> Any:
    x, y = _blocks(left, left_start, right, right_start, blocks)
    return (x * y).sum()


@with_fallback(_plain_products)
def block_products(
    typing_context: Typing, left: Typing, left_start: Typing, right: Typing, right_start: Typing, blocks: Typing
) -> Code:
    """block_products(left, left_start, right, right_start, blocks) -> f64: sum of x * y."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        return _sum_of_blocks(context, builder, signature.args, args, lambda x, y: (x, y))

    return types.float64(left, types.intp, right, types.intp, types.intp), generate
