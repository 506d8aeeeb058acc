"""Sums of byte products: an unsigned code of one byte, or of half a byte, times a signed query, in 32 bits.

VNNI is used where numba compiles for a CPU that has AVX-512 VNNI (NUMBA_CPU_NAME and NUMBA_CPU_FEATURES count, and are
part of the key of numba's cache). Elsewhere, and with the JIT off, the same integers come from plain code.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target

from icepuffin.ann_kernels.arrays import I8, U8
from icepuffin.ann_kernels.compilation import JIT, inline_kernel
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
    i32,
    i64,
    llvm_function,
    with_fallback,
)

BLOCK = 64
"""Bytes that one VNNI instruction takes; rows of codes are padded to it"""
TILE_ROWS = 6
TILE_PANELS = 4
"""Panels of 16 columns in a tile: 6 rows x 4 panels are 24 accumulators of AVX-512's 32 registers"""


def _compiles_for_vnni() -> bool:
    if not JIT:
        return False
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()[:3]
    return str(triple).startswith("x86_64") and "+avx512vnni" in str(features).split(",")


HAS_VNNI = _compiles_for_vnni()


def _dot_add(builder: Builder) -> Value:
    """vpdpbusd: to each 32-bit lane, add the products of 4 unsigned bytes with 4 signed ones."""
    return llvm_function(builder, "llvm.x86.avx512.vpdpbusd.512", I32_LANES, I32_LANES, I32_LANES, I32_LANES)


@inline_kernel
def _plain_dot(codes: U8, codes_start: Any, query: I8, query_start: Any, blocks: Any) -> Any:
    size = BLOCK * blocks
    codes, query = codes[codes_start : codes_start + size], query[query_start : query_start + size]
    total = np.int32(0)
    for i in range(size):  # without the casts numba would widen to 64 bits
        total = np.int32(total + np.int32(codes[i]) * np.int32(query[i]))
    return total


@with_fallback(_plain_dot, when=HAS_VNNI)
def dot(
    typing_context: Typing, codes: Typing, codes_start: Typing, query: Typing, query_start: Typing, blocks: Typing
) -> Code:
    """dot(codes u8[..], codes_start, query i8[..], query_start, blocks) -> int32: dot product of 64 * blocks bytes."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        left = address(context, builder, signature.args[0], args[0], args[1], I32_LANES)
        right = address(context, builder, signature.args[2], args[2], args[3], I32_LANES)
        total = cgutils.alloca_once(builder, I32_LANES)
        builder.store(ir.Constant(I32_LANES, [0] * LANES), total)
        with cgutils.for_range(builder, args[4]) as loop:
            a = builder.load(builder.gep(left, [loop.index]), align=1)
            b = builder.load(builder.gep(right, [loop.index]), align=1)
            builder.store(builder.call(_dot_add(builder), [builder.load(total), a, b]), total)
        add = llvm_function(builder, f"llvm.vector.reduce.add.v{LANES}i32", i32, I32_LANES)
        return builder.call(add, [builder.load(total)])

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


@with_fallback(_plain_four_bit_dot, when=HAS_VNNI)
def four_bit_dot(
    typing_context: Typing, codes: Typing, codes_start: Typing, query: Typing, query_start: Typing, blocks: Typing
) -> Code:
    """four_bit_dot(codes u8[..], codes_start, query i8[..], query_start, blocks) -> int32: 128 * blocks products.

    64 bytes of codes hold those of 128 dimensions: the low halves the first 64, the high halves the others.
    """

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        left = address(context, builder, signature.args[0], args[0], args[1], I32_LANES)
        right = address(context, builder, signature.args[2], args[2], args[3], I32_LANES)
        zeros = ir.Constant(I32_LANES, [0] * LANES)
        low = ir.Constant(I32_LANES, [0x0F0F0F0F] * LANES)
        four = ir.Constant(I32_LANES, [4] * LANES)
        totals = [cgutils.alloca_once(builder, I32_LANES) for _ in range(2)]
        for total in totals:
            builder.store(zeros, total)
        with cgutils.for_range(builder, args[4]) as loop:
            both = builder.load(builder.gep(left, [loop.index]), align=1)
            place = builder.mul(loop.index, i64(2))
            halves = (builder.and_(both, low), builder.and_(builder.lshr(both, four), low))
            for part, (total, half) in enumerate(zip(totals, halves, strict=True)):
                of_query = builder.load(builder.gep(right, [builder.add(place, i64(part))]), align=1)
                builder.store(builder.call(_dot_add(builder), [builder.load(total), half, of_query]), total)
        add = llvm_function(builder, f"llvm.vector.reduce.add.v{LANES}i32", i32, I32_LANES)
        return builder.call(add, [builder.add(*(builder.load(total) for total in totals))])

    return types.int32(codes, types.intp, query, types.intp, types.intp), generate


def _no_tile(*arguments: Any) -> None:
    raise NotImplementedError("tiles are multiplied by VNNI only; elsewhere BLAS multiplies the same integers")


@with_fallback(_no_tile, when=HAS_VNNI)
def vnni_tile(
    typing_context: Typing,
    rows: Typing,
    row_start: Typing,
    columns: Typing,
    column_start: Typing,
    steps: Typing,
    out: Typing,
    out_start: Typing,
    stride: Typing,
) -> Code:
    """vnni_tile(rows, row_start, columns, column_start, steps, out, out_start, stride): products of a tile.

    out[r, c] = dot of signed row r and unsigned column c, for TILE_ROWS rows and TILE_PANELS x 16 columns. rows
    int32[steps, TILE_ROWS] and columns int32[steps, TILE_PANELS, 16] hold 4 codes per element, packed so that one step
    reads one stretch of each; rows of `out` int32 are `stride` elements apart.
    """

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        row = address(context, builder, signature.args[0], args[0], args[1], i32)
        column = address(context, builder, signature.args[2], args[2], args[3], I32_LANES)
        out = address(context, builder, signature.args[5], args[5], args[6], i32)
        sums = _tile_loop(builder, row, column, args[4])
        for r in range(TILE_ROWS):
            for c in range(TILE_PANELS):
                place = builder.add(builder.mul(args[7], i64(r)), i64(c * LANES))
                target = builder.bitcast(builder.gep(out, [place]), I32_LANES.as_pointer())
                builder.store(sums[r * TILE_PANELS + c], target, align=4)
        return context.get_dummy_value()

    size = types.intp
    return types.void(rows, size, columns, size, size, out, size, size), generate


def _tile_loop(builder: Builder, row: Value, column: Value, steps: Value) -> list[Value]:
    """The sums of a tile, kept in registers over the loop."""
    before = builder.block
    body = builder.append_basic_block("tile.body")
    after = builder.append_basic_block("tile.after")
    builder.branch(body)
    builder.position_at_end(body)
    step = builder.phi(i64)
    step.add_incoming(i64(0), before)
    sums = [builder.phi(I32_LANES) for _ in range(TILE_ROWS * TILE_PANELS)]
    panels = [
        builder.load(builder.gep(column, [builder.add(builder.mul(step, i64(TILE_PANELS)), i64(c))]), align=4)
        for c in range(TILE_PANELS)
    ]
    zeros = ir.Constant(I32_LANES, [0] * LANES)
    added = []
    for r in range(TILE_ROWS):
        codes = builder.load(builder.gep(row, [builder.add(builder.mul(step, i64(TILE_ROWS)), i64(r))]), align=4)
        repeated = broadcast(builder, codes)
        added += [
            builder.call(_dot_add(builder), [sums[r * TILE_PANELS + c], panels[c], repeated])
            for c in range(TILE_PANELS)
        ]
    for phi, value in zip(sums, added, strict=True):
        phi.add_incoming(zeros, before)
        phi.add_incoming(value, body)
    following = builder.add(step, i64(1))
    step.add_incoming(following, body)
    builder.cbranch(builder.icmp_signed("<", following, steps), body, after)
    builder.position_at_end(after)
    return added
