"""Products of a tile of rows with a tile of columns, all codes of one byte, kept in registers until they are summed.

By VNNI a step of a tile takes 4 codes of each row and column, and by AVX2 2 codes, as 16-bit integers: unlike products
of bytes, those need no second instruction to be exact. Elsewhere BLAS multiplies the same integers as floats.
"""

from typing import Any

import numpy as np
from numba import types

from icepuffin.ann_kernels.compilation import inline_kernel
from icepuffin.ann_kernels.simd.byte_products import HAS_AVX2, HAS_VNNI, REGISTER, WIDTH, add_pairs, add_quads, filled
from icepuffin.ann_kernels.simd.codegen import (
    Builder,
    Code,
    Context,
    Signature,
    Typing,
    Value,
    address,
    broadcast,
    i32,
    i64,
    with_fallback,
)

HAS_TILES = HAS_VNNI or HAS_AVX2
"""Whether there is `tile_products`"""
TILE_ROWS = 6
_PANELS = 4 if HAS_VNNI else 2
"""Registers of columns in a tile. 6 rows x 4 are 24 sums in AVX-512's 32 registers, 6 x 2 are 12 in AVX2's 16"""
TILE_COLUMNS = _PANELS * WIDTH
STEPS_PER_QUAD = 1 if HAS_VNNI else 2
"""Steps that four codes take"""
_SIGN = np.int32(-2139062144)  # 0x80808080: makes four unsigned codes signed ones


@inline_kernel
def row_operand(quad: Any, part: Any) -> Any:
    """int32: the codes that step `part` of a quad of a row takes, made signed: less by 128."""
    if STEPS_PER_QUAD == 1:
        return np.int32(quad ^ _SIGN)
    shift = np.int32(16) * np.int32(part)
    first, second = (quad >> shift) & 255, (quad >> (shift + np.int32(8))) & 255
    return np.int32(((first - 128) & 65535) | ((second - 128) << 16))


@inline_kernel
def column_operand(quad: Any, part: Any) -> Any:
    """int32: the codes that step `part` of a quad of a column takes."""
    if STEPS_PER_QUAD == 1:
        return np.int32(quad)
    shift = np.int32(16) * np.int32(part)
    return np.int32(((quad >> shift) & 255) | (((quad >> (shift + np.int32(8))) & 255) << 16))


def _no_tile(*arguments: Any) -> None:
    raise NotImplementedError("this CPU has neither VNNI nor AVX2: BLAS multiplies the same integers")


@with_fallback(_no_tile, when=HAS_TILES)
def tile_products(
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
    """tile_products(rows, row_start, columns, column_start, steps, out, out_start, stride): products of a tile.

    out[r, c] = dot of signed row r and unsigned column c, for TILE_ROWS rows and TILE_COLUMNS columns. rows
    int32[steps, TILE_ROWS] and columns int32[steps, TILE_COLUMNS] are made by `row_operand` and `column_operand`, so
    that one step reads one stretch of each; rows of `out` int32 are `stride` elements apart. steps >= 1.
    """

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        row = address(context, builder, signature.args[0], args[0], args[1], i32)
        column = address(context, builder, signature.args[2], args[2], args[3], REGISTER)
        out = address(context, builder, signature.args[5], args[5], args[6], i32)
        sums = _tile_loop(builder, row, column, args[4])
        for r in range(TILE_ROWS):
            for c in range(_PANELS):
                index = builder.add(builder.mul(args[7], i64(r)), i64(c * WIDTH))
                target = builder.bitcast(builder.gep(out, [index]), REGISTER.as_pointer())
                builder.store(sums[r * _PANELS + c], target, align=4)
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
    sums = [builder.phi(REGISTER) for _ in range(TILE_ROWS * _PANELS)]
    panels = [
        builder.load(builder.gep(column, [builder.add(builder.mul(step, i64(_PANELS)), i64(c))]), align=4)
        for c in range(_PANELS)
    ]
    added = []
    for r in range(TILE_ROWS):
        codes = builder.load(builder.gep(row, [builder.add(builder.mul(step, i64(TILE_ROWS)), i64(r))]), align=4)
        repeated = broadcast(builder, codes, WIDTH)
        multiply = add_quads if HAS_VNNI else add_pairs
        added += [multiply(builder, sums[r * _PANELS + c], panels[c], repeated) for c in range(_PANELS)]
    for phi, value in zip(sums, added, strict=True):
        phi.add_incoming(filled(0), before)
        phi.add_incoming(value, body)
    following = builder.add(step, i64(1))
    step.add_incoming(following, body)
    builder.cbranch(builder.icmp_signed("<", following, steps), body, after)
    builder.position_at_end(after)
    return added
