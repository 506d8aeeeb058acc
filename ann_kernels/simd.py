"""CPU instructions that numba does not choose by itself: prefetch, and VNNI's sums of byte products.

VNNI is used when numba compiles for a CPU that has AVX-512 VNNI (NUMBA_CPU_NAME and NUMBA_CPU_FEATURES count, and are
part of the key of numba's cache). Elsewhere, and with the JIT off, the same integers come from plain code.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils as untyped_cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

LANES = 16
"""32-bit lanes of one AVX-512 register"""
BLOCK = 64
"""Bytes that one VNNI instruction takes; rows of codes are padded to it"""
LINE = 64
"""Bytes of a cache line"""
TILE_ROWS = 6
TILE_PANELS = 4
"""A tile is 6 rows x 4 panels of 16 columns: 24 accumulators of AVX-512's 32 registers"""

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_VECTOR = ir.VectorType(_I32, LANES)
_MOST = 2**31 - 1
cgutils: Any = untyped_cgutils
JIT = not getattr(config, "DISABLE_JIT", 0)


def _compiles_for_vnni() -> bool:
    if not JIT:
        return False
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()[:3]
    return str(triple).startswith("x86_64") and "+avx512vnni" in str(features).split(",")


HAS_VNNI = _compiles_for_vnni()


def address(context: Any, builder: Any, array_type: Any, array: Any, index: Any, element: Any) -> Any:
    """Pointer to element `index` of a C-contiguous array, as a pointer to `element`."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), element.as_pointer())


@intrinsic
def _prefetch(typing_context, array, index):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        place = address(context, builder, signature.args[0], args[0], args[1], _I8)
        kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # read, into the second-level cache, data: the first has few buffers for lines on their way, and waiting for one
        # of those took half of a search's time
        builder.call(function, [place, _I32(0), _I32(2), _I32(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic
def _vnni_dot(typing_context, codes, codes_at, query, query_at, blocks):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        left = address(context, builder, signature.args[0], args[0], args[1], _VECTOR)
        right = address(context, builder, signature.args[2], args[2], args[3], _VECTOR)
        total = cgutils.alloca_once(builder, _VECTOR)
        builder.store(ir.Constant(_VECTOR, [0] * LANES), total)
        with cgutils.for_range(builder, args[4]) as loop:
            a = builder.load(builder.gep(left, [loop.index]), align=1)
            b = builder.load(builder.gep(right, [loop.index]), align=1)
            builder.store(builder.call(_dot_add(builder), [builder.load(total), a, b]), total)
        kind = ir.FunctionType(_I32, [_VECTOR])
        add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.add.v{LANES}i32")
        return builder.call(add, [builder.load(total)])

    return types.int32(codes, types.intp, query, types.intp, types.intp), generate


def _dot_add(builder: Any) -> Any:
    """vpdpbusd: to each 32-bit lane, add the products of 4 unsigned bytes with 4 signed ones."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    return cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.vpdpbusd.512")


@intrinsic
def _vnni_tile(typing_context, rows, row_at, columns, column_at, steps, out, out_at, stride):  # type: ignore[no-untyped-def]
    """out[r, c] = dot of signed row r and unsigned column c: TILE_ROWS rows, TILE_PANELS x 16 columns.

    rows int32[steps, TILE_ROWS] and columns int32[steps, TILE_PANELS, 16] hold 4 codes an element, packed so that one
    step reads one stretch of each; out int32, its rows `stride` apart.
    """

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        row = address(context, builder, signature.args[0], args[0], args[1], _I32)
        column = address(context, builder, signature.args[2], args[2], args[3], _VECTOR)
        steps = args[4]
        out = address(context, builder, signature.args[5], args[5], args[6], _I32)
        sums = _tile_loop(builder, row, column, steps)
        for r in range(TILE_ROWS):
            for c in range(TILE_PANELS):
                place = builder.add(builder.mul(args[7], _I64(r)), _I64(c * LANES))
                target = builder.bitcast(builder.gep(out, [place]), _VECTOR.as_pointer())
                builder.store(sums[r * TILE_PANELS + c], target, align=4)
        return context.get_dummy_value()

    size = types.intp
    return types.void(rows, size, columns, size, size, out, size, size), generate


def _tile_loop(builder: Any, row: Any, column: Any, steps: Any) -> list[Any]:
    """The sums of a tile, kept in registers over the loop."""
    before = builder.block
    body = builder.append_basic_block("tile.body")
    after = builder.append_basic_block("tile.after")
    builder.branch(body)
    builder.position_at_end(body)
    step = builder.phi(_I64)
    step.add_incoming(_I64(0), before)
    sums = [builder.phi(_VECTOR) for _ in range(TILE_ROWS * TILE_PANELS)]
    panels = [
        builder.load(builder.gep(column, [builder.add(builder.mul(step, _I64(TILE_PANELS)), _I64(c))]), align=4)
        for c in range(TILE_PANELS)
    ]
    none = ir.Constant(_VECTOR, [0] * LANES)
    added = []
    for r in range(TILE_ROWS):
        four = builder.load(builder.gep(row, [builder.add(builder.mul(step, _I64(TILE_ROWS)), _I64(r))]), align=4)
        spread = _spread(builder, four)
        added += [
            builder.call(_dot_add(builder), [sums[r * TILE_PANELS + c], panels[c], spread]) for c in range(TILE_PANELS)
        ]
    for phi, value in zip(sums, added, strict=True):
        phi.add_incoming(none, before)
        phi.add_incoming(value, body)
    following = builder.add(step, _I64(1))
    step.add_incoming(following, body)
    builder.cbranch(builder.icmp_signed("<", following, steps), body, after)
    builder.position_at_end(after)
    return added


# ------------------------------------------------------------------------------------------------------- smallest


@intrinsic
def _bound_of_smallest(typing_context, values, start, count, k):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        first = address(context, builder, signature.args[0], args[0], args[1], _VECTOR)
        least = cgutils.alloca_once(builder, _VECTOR)
        builder.store(ir.Constant(_VECTOR, [_MOST] * LANES), least)
        with cgutils.for_range(builder, builder.sdiv(args[2], _I64(LANES))) as loop:
            lanes = builder.load(builder.gep(first, [loop.index]), align=4)
            before = builder.load(least)
            builder.store(builder.select(builder.icmp_signed("<", lanes, before), lanes, before), least)
        lanes = builder.load(least)
        bound: Any = _I32(_MOST)
        kind = ir.FunctionType(_I16, [_I16])
        population = cgutils.get_or_insert_function(builder.module, kind, "llvm.ctpop.i16")
        for lane in range(LANES):
            value = builder.extract_element(lanes, _I32(lane))
            below = builder.icmp_signed("<=", lanes, _spread(builder, value))
            enough = builder.icmp_unsigned(
                ">=", builder.zext(builder.call(population, [builder.bitcast(below, _I16)]), _I64), args[3]
            )
            smaller = builder.icmp_signed("<", value, bound)
            bound = builder.select(builder.and_(enough, smaller), value, bound)
        return bound

    return types.int32(values, types.intp, types.intp, types.intp), generate


@intrinsic
def _at_most(typing_context, values, start, bound):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        place = address(context, builder, signature.args[0], args[0], args[1], _VECTOR)
        below = builder.icmp_signed("<=", builder.load(place, align=4), _spread(builder, args[2]))
        return builder.zext(builder.bitcast(below, _I16), _I32)

    return types.uint32(values, types.intp, types.int32), generate


@intrinsic
def _lowest_bit(typing_context, mask):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        kind = ir.FunctionType(_I32, [_I32, ir.IntType(1)])
        count = cgutils.get_or_insert_function(builder.module, kind, "llvm.cttz.i32")
        return builder.zext(builder.call(count, [args[0], ir.Constant(ir.IntType(1), 0)]), _I64)

    return types.intp(types.uint32), generate


def _spread(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    return builder.shuffle_vector(
        builder.insert_element(undefined, value, _I32(0)), undefined, ir.Constant(_VECTOR, [0] * LANES)
    )


def _plain_bound(values: Any, start: int, count: int, k: int) -> Any:
    least = values[start : start + count].reshape(-1, LANES).min(axis=0)
    return np.sort(least)[k - 1]


def _plain_at_most(values: Any, start: int, bound: Any) -> int:
    return sum(1 << lane for lane in range(LANES) if values[start + lane] <= bound)


def _plain_lowest_bit(mask: Any) -> int:
    bits = int(mask)
    return (bits & -bits).bit_length() - 1


# ------------------------------------------------------------------------------------------------------- nearest


@intrinsic
def _nearest_of_lanes(typing_context, points, centroids, norms, labels):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        kinds = signature.args
        zero = _I64(0)
        floats = ir.FloatType()
        lanes = ir.VectorType(floats, LANES)
        point = address(context, builder, kinds[0], args[0], zero, lanes)
        centroid = address(context, builder, kinds[1], args[1], zero, floats)
        norm = address(context, builder, kinds[2], args[2], zero, floats)
        label = address(context, builder, kinds[3], args[3], zero, _VECTOR)
        dims = builder.extract_value(context.make_array(kinds[0])(context, builder, args[0]).shape, 0)
        count = builder.extract_value(context.make_array(kinds[2])(context, builder, args[2]).shape, 0)
        score, best = cgutils.alloca_once(builder, lanes), cgutils.alloca_once(builder, lanes)
        builder.store(ir.Constant(lanes, [float("inf")] * LANES), best)
        builder.store(ir.Constant(_VECTOR, [0] * LANES), label, align=4)
        add = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(lanes, [lanes] * 3), f"llvm.fmuladd.v{LANES}f32"
        )
        with cgutils.for_range(builder, count) as outer:
            builder.store(_spread(builder, builder.load(builder.gep(norm, [outer.index]))), score)
            first = builder.mul(outer.index, dims)
            with cgutils.for_range(builder, dims) as inner:
                weight = _spread(builder, builder.load(builder.gep(centroid, [builder.add(first, inner.index)])))
                values = builder.load(builder.gep(point, [inner.index]), align=4)
                builder.store(builder.call(add, [values, weight, builder.load(score)]), score)
            nearer = builder.fcmp_ordered("<", builder.load(score), builder.load(best))
            builder.store(builder.select(nearer, builder.load(score), builder.load(best)), best)
            number = _spread(builder, builder.trunc(outer.index, _I32))
            builder.store(builder.select(nearer, number, builder.load(label, align=4)), label, align=4)
        return context.get_dummy_value()

    return types.void(points, centroids, norms, labels), generate


def _plain_nearest_of_lanes(points: Any, centroids: Any, norms: Any, labels: Any) -> None:
    labels[:] = (norms[:, None] + centroids @ points).argmin(axis=0)


# -------------------------------------------------------------------------------------------------- without VNNI


@njit(nogil=True, cache=True, inline="always")
def _plain_dot(codes, codes_at, query, query_at, blocks):  # type: ignore[no-untyped-def]
    size = BLOCK * blocks
    codes, query = codes[codes_at : codes_at + size], query[query_at : query_at + size]
    total = np.int32(0)
    for i in range(size):  # numba widens to 64 bits where it is not told
        total = np.int32(total + np.int32(codes[i]) * np.int32(query[i]))
    return total


@njit(nogil=True, cache=True, inline="always")
def _no_prefetch(array, index):  # type: ignore[no-untyped-def]
    return


dot: Any = _vnni_dot if HAS_VNNI else _plain_dot
"""dot(codes u8[..], at, query i8[..], at, blocks) -> int32: the dot product of 64 x blocks bytes."""
vnni_tile: Any = _vnni_tile
prefetch: Any = _prefetch if JIT else _no_prefetch
"""prefetch(array, index): fetch the cache line of an element of a C-contiguous array, counted as if it were flat
(a `reshape` here would keep LLVM from vectorising what stands around it)."""
bound_of_smallest: Any = _bound_of_smallest if JIT else _plain_bound
"""bound_of_smallest(values int32[..], start, count, k) -> int32: a value that at least k, and few others, of
values[start : start + count] do not exceed. count is a multiple of 16, k at most 16: k-th of 16 columns' minima."""
at_most: Any = _at_most if JIT else _plain_at_most
"""at_most(values int32[..], start, bound) -> bit i set where values[start + i] <= bound, of 16."""
lowest_bit: Any = _lowest_bit if JIT else _plain_lowest_bit
"""lowest_bit(mask) -> place of the lowest bit set."""
nearest_of_lanes: Any = _nearest_of_lanes if JIT else _plain_nearest_of_lanes
"""nearest_of_lanes(points f32[D, 16], centroids f32[k, D], norms f32[k], labels int32[16]): for each of 16 points, the
first c with the smallest norms[c] + centroids[c] . point."""


@njit(nogil=True, cache=True)
def prefetch_row(rows, row):  # type: ignore[no-untyped-def]
    """Fetch all cache lines of a row of a C-contiguous array; rows need not begin where lines do."""
    width = rows.shape[1]
    first = np.intp(row) * width
    for column in range(0, width, LINE // rows.itemsize):
        prefetch(rows, first + column)
    prefetch(rows, first + width - 1)
