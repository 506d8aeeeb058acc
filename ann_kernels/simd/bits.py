"""Single bits of words."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from icepuffin.ann_kernels.arrays import U8
from icepuffin.ann_kernels.simd.byte_products import BLOCK
from icepuffin.ann_kernels.simd.codegen import (
    Builder,
    Code,
    Context,
    Signature,
    Typing,
    Value,
    address,
    broadcast,
    i8,
    i64,
    llvm_function,
    with_fallback,
)


def _plain_trailing_zeros(word: Any) -> int:
    bits = int(word)
    return (bits & -bits).bit_length() - 1


@with_fallback(_plain_trailing_zeros)
def trailing_zeros(typing_context: Typing, word: Typing) -> Code:
    """trailing_zeros(word u64) -> int64: the number of its lowest bit that is set. Of 0 it means nothing."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        count = llvm_function(builder, "llvm.cttz.i64", i64, i64, ir.IntType(1))
        return builder.call(count, [args[0], ir.Constant(ir.IntType(1), 1)])

    return types.int64(types.uint64), generate


def _plain_count_bits(word: Any) -> int:
    return int(word).bit_count()


@with_fallback(_plain_count_bits)
def count_bits(typing_context: Typing, word: Typing) -> Code:
    """count_bits(word u64) -> int64: how many of its bits are set."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        return builder.call(llvm_function(builder, "llvm.ctpop.i64", i64, i64), [args[0]])

    return types.int64(types.uint64), generate


def _plain_without_lowest_bit(word: Any) -> Any:
    bits = int(word)
    return np.uint64(bits & (bits - 1))


@with_fallback(_plain_without_lowest_bit)
def without_lowest_bit(typing_context: Typing, word: Typing) -> Code:
    """without_lowest_bit(word u64) -> u64: the word with its lowest bit that is set cleared; 0 of 0."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        return builder.and_(args[0], builder.sub(args[0], i64(1)))

    return types.uint64(types.uint64), generate


def _plain_bits_of(values: U8, first: Any, mask: Any) -> Any:
    word = 0
    for i in range(BLOCK):
        word |= int(values[first + i] & mask != 0) << i
    return np.uint64(word)


@with_fallback(_plain_bits_of)
def bits_of(typing_context: Typing, values: Typing, first: Typing, mask: Typing) -> Code:
    """bits_of(values u8[..], first, mask u8) -> u64: of 64 values from the first on, which have a bit of the mask."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        lanes = ir.VectorType(i8, BLOCK)
        loaded = builder.load(address(context, builder, signature.args[0], args[0], args[1], lanes), align=1)
        chosen = builder.and_(loaded, broadcast(builder, args[2], BLOCK))
        return builder.bitcast(builder.icmp_unsigned("!=", chosen, ir.Constant(lanes, [0] * BLOCK)), i64)

    return types.uint64(values, types.intp, types.uint8), generate
