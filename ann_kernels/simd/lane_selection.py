"""The smallest of many 32-bit integers, 16 at a time: a bound on them, then the few that it lets through."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from icepuffin.ann_kernels.arrays import I32
from icepuffin.ann_kernels.simd.codegen import (
    I32_LANES,
    LANES,
    Builder,
    Code,
    Context,
    Signature,
    Typing,
    Value,
    address,
    broadcast,
    cgutils,
    i16,
    i32,
    i64,
    llvm_function,
    with_fallback,
)

_LARGEST = 2**31 - 1
_I1 = ir.IntType(1)


def _plain_bound(values: I32, start: int, count: int, k: int) -> Any:
    column_minima = values[start : start + count].reshape(-1, LANES).min(axis=0)
    return np.sort(column_minima)[k - 1]


@with_fallback(_plain_bound)
def bound_of_smallest(typing_context: Typing, values: Typing, start: Typing, count: Typing, k: Typing) -> Code:
    """bound_of_smallest(values int32[..], start, count, k) -> int32: a bound on the k smallest.

    At least k of values[start : start + count] do not exceed it, and few others: it is the k-th of 16 columns' minima.
    `count` is a multiple of 16, `k` at most 16.
    """

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        first = address(context, builder, signature.args[0], args[0], args[1], I32_LANES)
        least = cgutils.alloca_once(builder, I32_LANES)
        builder.store(ir.Constant(I32_LANES, [_LARGEST] * LANES), least)
        with cgutils.for_range(builder, builder.sdiv(args[2], i64(LANES))) as loop:
            lanes = builder.load(builder.gep(first, [loop.index]), align=4)
            before = builder.load(least)
            builder.store(builder.select(builder.icmp_signed("<", lanes, before), lanes, before), least)
        lanes = builder.load(least)
        bound: Value = i32(_LARGEST)
        population = llvm_function(builder, "llvm.ctpop.i16", i16, i16)
        for lane in range(LANES):
            value = builder.extract_element(lanes, i32(lane))
            below = builder.icmp_signed("<=", lanes, broadcast(builder, value))
            rank = builder.zext(builder.call(population, [builder.bitcast(below, i16)]), i64)
            enough = builder.icmp_unsigned(">=", rank, args[3])
            smaller = builder.icmp_signed("<", value, bound)
            bound = builder.select(builder.and_(enough, smaller), value, bound)
        return bound

    return types.int32(values, types.intp, types.intp, types.intp), generate


def _plain_at_most(values: I32, start: int, bound: Any) -> int:
    return sum(1 << lane for lane in range(LANES) if values[start + lane] <= bound)


@with_fallback(_plain_at_most)
def at_most(typing_context: Typing, values: Typing, start: Typing, bound: Typing) -> Code:
    """at_most(values int32[..], start, bound) -> uint32: bit i is set where values[start + i] <= bound, i below 16."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        index = address(context, builder, signature.args[0], args[0], args[1], I32_LANES)
        below = builder.icmp_signed("<=", builder.load(index, align=4), broadcast(builder, args[2]))
        return builder.zext(builder.bitcast(below, i16), i32)

    return types.uint32(values, types.intp, types.int32), generate
