"""Sums of byte products: an unsigned code of one byte, or of half a byte, times a signed query, in 32 bits.

VNNI is used where numba compiles for a CPU that has AVX-512 VNNI, else AVX2 (NUMBA_CPU_NAME and NUMBA_CPU_FEATURES
count, and are part of the key of numba's cache). Elsewhere, and with the JIT off, the same integers come from plain
code.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target

from icepuffin.ann_kernels.arrays import I8, U8
from icepuffin.ann_kernels.compilation import JIT, inline_kernel
from icepuffin.ann_kernels.simd.codegen import (
    Builder,
    Code,
    Context,
    Signature,
    Typing,
    Value,
    address,
    cgutils,
    i8,
    i16,
    i32,
    i64,
    llvm_function,
    with_fallback,
)

BLOCK = 64
"""Bytes that rows of codes are padded to: those of one AVX-512 register"""


def _compiles_for(feature: str) -> bool:
    if not JIT:
        return False
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()[:3]
    return str(triple).startswith("x86_64") and f"+{feature}" in str(features).split(",")


HAS_VNNI = _compiles_for("avx512vnni")
HAS_AVX2 = _compiles_for("avx2")
WIDTH = 16 if HAS_VNNI else 8
"""32-bit lanes of the registers that bytes are multiplied in"""
REGISTER = ir.VectorType(i32, WIDTH)
_PER_BLOCK = BLOCK // (4 * WIDTH)
_I8S, _I16S = ir.VectorType(i8, 4 * WIDTH), ir.VectorType(i16, 2 * WIDTH)


def filled(value: int) -> ir.Constant:
    """A register whose lanes all hold a value."""
    return ir.Constant(REGISTER, [value] * WIDTH)


_ONES = filled(0x00010001)


def add_pairs(builder: Builder, total: Value, left: Value, right: Value) -> Value:
    """vpmaddwd of AVX2: to each 32-bit lane, add the products of 2 signed 16-bit integers with 2 others."""
    multiply = llvm_function(builder, "llvm.x86.avx2.pmadd.wd", REGISTER, _I16S, _I16S)
    products = builder.call(multiply, [builder.bitcast(left, _I16S), builder.bitcast(right, _I16S)])
    return builder.add(total, products)


def add_quads(builder: Builder, total: Value, codes: Value, query: Value) -> Value:
    """vpdpbusd of VNNI: to each 32-bit lane, add the products of 4 unsigned bytes with 4 signed ones."""
    add = llvm_function(builder, "llvm.x86.avx512.vpdpbusd.512", REGISTER, REGISTER, REGISTER, REGISTER)
    return builder.call(add, [total, codes, query])


def _pair_sums(builder: Builder, codes: Value, query: Value) -> Value:
    """vpmaddubsw of AVX2: sums of 2 products of unsigned bytes with signed ones, which must fit 16 bits."""
    multiply = llvm_function(builder, "llvm.x86.avx2.pmadd.ub.sw", _I16S, _I8S, _I8S)
    return builder.call(multiply, [builder.bitcast(codes, _I8S), builder.bitcast(query, _I8S)])


def _add_bytes(builder: Builder, total: Value, codes: Value, query: Value) -> Value:
    """To each lane, add the products of 4 codes of one byte."""
    if HAS_VNNI:
        return add_quads(builder, total, codes, query)
    # vpmaddubsw would be shorter, but two products of 255 and 127 do not fit its 16 bits
    wide = ir.VectorType(i16, 4 * WIDTH)
    operands = (
        builder.zext(builder.bitcast(codes, _I8S), wide),
        builder.sext(builder.bitcast(query, _I8S), wide),
    )
    for part in range(2):
        indices = ir.Constant(ir.VectorType(i32, 2 * WIDTH), list(range(2 * WIDTH * part, 2 * WIDTH * (part + 1))))
        halves = (builder.shuffle_vector(operand, operand, indices) for operand in operands)
        total = add_pairs(builder, total, *halves)
    return total


def _add_halves(builder: Builder, totals: list[Value], codes: Value, queries: list[Value]) -> list[Value]:
    """To lanes of either total, add the products of 8 codes of half a byte: the low halves with the first query."""
    low = filled(0x0F0F0F0F)
    halves = builder.and_(codes, low), builder.and_(builder.lshr(codes, filled(4)), low)
    operands = list(zip(halves, queries, strict=True))
    if HAS_VNNI:
        return [add_quads(builder, total, *pair) for total, pair in zip(totals, operands, strict=True)]
    both = builder.add(*(_pair_sums(builder, *pair) for pair in operands))  # four products of 15 and 128 fit 16 bits
    return [add_pairs(builder, totals[0], both, _ONES), totals[1]]


def _load(builder: Builder, registers: Value, index: Value) -> Value:
    return builder.load(builder.gep(registers, [index]), align=1)


def _sum_of_lanes(builder: Builder, register: Value) -> Value:
    return builder.call(llvm_function(builder, f"llvm.vector.reduce.add.v{WIDTH}i32", i32, REGISTER), [register])


@inline_kernel
def _plain_dot(codes: U8, codes_start: Any, query: I8, query_start: Any, blocks: Any) -> Any:
    size = BLOCK * blocks
    codes, query = codes[codes_start : codes_start + size], query[query_start : query_start + size]
    total = np.int32(0)
    for i in range(size):  # without the casts numba would widen to 64 bits
        total = np.int32(total + np.int32(codes[i]) * np.int32(query[i]))
    return total


@with_fallback(_plain_dot, when=HAS_VNNI or HAS_AVX2)
def dot(
    typing_context: Typing, codes: Typing, codes_start: Typing, query: Typing, query_start: Typing, blocks: Typing
) -> Code:
    """dot(codes u8[..], codes_start, query i8[..], query_start, blocks) -> int32: dot product of 64 * blocks bytes."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        left = address(context, builder, signature.args[0], args[0], args[1], REGISTER)
        right = address(context, builder, signature.args[2], args[2], args[3], REGISTER)
        total = cgutils.alloca_once(builder, REGISTER)
        builder.store(filled(0), total)
        with cgutils.for_range(builder, args[4]) as loop:
            first = builder.mul(loop.index, i64(_PER_BLOCK))
            for part in range(_PER_BLOCK):
                offset = builder.add(first, i64(part))
                operands = _load(builder, left, offset), _load(builder, right, offset)
                builder.store(_add_bytes(builder, builder.load(total), *operands), total)
        return _sum_of_lanes(builder, builder.load(total))

    return types.int32(codes, types.intp, query, types.intp, types.intp), generate


@inline_kernel
def _plain_four_bit_dot(codes: U8, codes_start: Any, query: I8, query_start: Any, blocks: Any) -> Any:
    size = BLOCK * blocks
    codes, query = codes[codes_start : codes_start + size], query[query_start : query_start + 2 * size]
    total = np.int32(0)
    for i in range(size):
        at = i + i // BLOCK * BLOCK
        total = np.int32(total + np.int32(codes[i] & np.uint8(15)) * np.int32(query[at]))
        total = np.int32(total + np.int32(codes[i] >> np.uint8(4)) * np.int32(query[at + BLOCK]))
    return total


@with_fallback(_plain_four_bit_dot, when=HAS_VNNI or HAS_AVX2)
def four_bit_dot(
    typing_context: Typing, codes: Typing, codes_start: Typing, query: Typing, query_start: Typing, blocks: Typing
) -> Code:
    """four_bit_dot(codes u8[..], codes_start, query i8[..], query_start, blocks) -> int32: 128 * blocks products.

    64 bytes of codes hold those of 128 dimensions: the low halves the first 64, the high halves the others.
    """

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        left = address(context, builder, signature.args[0], args[0], args[1], REGISTER)
        right = address(context, builder, signature.args[2], args[2], args[3], REGISTER)
        totals = [cgutils.alloca_once(builder, REGISTER) for _ in range(2)]
        for total in totals:
            builder.store(filled(0), total)
        with cgutils.for_range(builder, args[4]) as loop:
            first = builder.mul(loop.index, i64(_PER_BLOCK))
            for part in range(_PER_BLOCK):
                codes = _load(builder, left, builder.add(first, i64(part)))
                offset = builder.add(builder.mul(first, i64(2)), i64(part))
                queries = [_load(builder, right, builder.add(offset, i64(half * _PER_BLOCK))) for half in range(2)]
                added = _add_halves(builder, [builder.load(total) for total in totals], codes, queries)
                for total, value in zip(totals, added, strict=True):
                    builder.store(value, total)
        return _sum_of_lanes(builder, builder.add(*(builder.load(total) for total in totals)))

    return types.int32(codes, types.intp, query, types.intp, types.intp), generate
