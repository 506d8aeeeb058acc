"""Sums in float64 over vectors of float32 or float64, in an order that is written down.

Thirty-two sums are added up side by side, element i to sum i mod 32, with fused multiply-adds, and then to each other
in fixed pairs. LLVM may not change that, as it does with loops under fast-math: the same vectors give the same bits in
every kernel and on every machine (but with the JIT off, which is for tests).
Fast-math is switched off by name, as numba compiles a function with the flags of its caller otherwise.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic

from icepuffin.ann_kernels.simd import JIT, address

WIDE = 32
_LANES = 8
_I64 = ir.IntType(64)
_DOUBLES = ir.VectorType(ir.DoubleType(), _LANES)
cgutils: Any = untyped_cgutils


def _loaded(builder: Any, first: Any, at: Any, kind: Any) -> Any:
    """Eight elements as doubles."""
    element = ir.FloatType() if kind == types.float32 else ir.DoubleType()
    place = builder.bitcast(builder.gep(first, [at]), ir.VectorType(element, _LANES).as_pointer())
    values = builder.load(place, align=4 if kind == types.float32 else 8)
    return builder.fpext(values, _DOUBLES) if kind == types.float32 else values


def _spread(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(_DOUBLES, ir.Undefined)
    single = builder.insert_element(undefined, value, ir.IntType(32)(0))
    return builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(ir.IntType(32), _LANES), [0] * _LANES))


def _halves_added(builder: Any, lanes: Any) -> Any:
    """The sum of lanes: the upper half to the lower, until one is left."""
    count = _LANES
    while count > 1:
        count //= 2
        low, high = (
            builder.shuffle_vector(
                lanes, lanes, ir.Constant(ir.VectorType(ir.IntType(32), count), list(range(first, first + count)))
            )
            for first in (0, count)
        )
        lanes = builder.fadd(low, high)
    return builder.extract_element(lanes, ir.IntType(32)(0))


def _sum_of_blocks(context: Any, builder: Any, kinds: Any, args: Any, factors: Any) -> Any:
    """Sum of x * y for (x, y) = factors(left, right), over `args[4]` blocks of an array from one place on and of
    another from another.
    """
    elements = [ir.FloatType() if kinds[at].dtype == types.float32 else ir.DoubleType() for at in (0, 2)]
    left = address(context, builder, kinds[0], args[0], args[1], elements[0])
    right = address(context, builder, kinds[2], args[2], args[3], elements[1])
    fused = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_DOUBLES, [_DOUBLES] * 3), f"llvm.fma.v{_LANES}f64"
    )
    sums = [cgutils.alloca_once(builder, _DOUBLES) for _ in range(WIDE // _LANES)]
    for total in sums:
        builder.store(ir.Constant(_DOUBLES, [0.0] * _LANES), total)
    with cgutils.for_range(builder, args[4]) as loop:
        for number, total in enumerate(sums):
            at = builder.add(builder.mul(loop.index, _I64(WIDE)), _I64(number * _LANES))
            x = _loaded(builder, left, at, kinds[0].dtype)
            y = _loaded(builder, right, at, kinds[2].dtype)
            builder.store(builder.call(fused, [*factors(x, y), builder.load(total)]), total)
    a, b, c, d = (builder.load(total) for total in sums)
    return _halves_added(builder, builder.fadd(builder.fadd(a, b), builder.fadd(c, d)))


@intrinsic
def _block_gaps(typing_context, left, left_at, right, right_at, blocks):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        def gaps(x, y):  # type: ignore[no-untyped-def]
            gap = builder.fsub(x, y)
            return gap, gap

        return _sum_of_blocks(context, builder, signature.args, args, gaps)

    return types.float64(left, types.intp, right, types.intp, types.intp), generate


@intrinsic
def _block_scaled_gaps(typing_context, left, left_at, right, right_at, blocks, factor):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        scale = _spread(builder, args[5])

        def gaps(x, y):  # type: ignore[no-untyped-def]
            gap = builder.fsub(builder.fmul(x, scale), y)
            return gap, gap

        return _sum_of_blocks(context, builder, signature.args, args, gaps)

    return types.float64(left, types.intp, right, types.intp, types.intp, types.float64), generate


@intrinsic
def _block_products(typing_context, left, left_at, right, right_at, blocks):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return _sum_of_blocks(context, builder, signature.args, args, lambda x, y: (x, y))

    return types.float64(left, types.intp, right, types.intp, types.intp), generate


def _plain_gaps(left: Any, left_at: int, right: Any, right_at: int, blocks: int, factor: float = 1.0) -> Any:
    x, y = _stretches(left, left_at, right, right_at, blocks)
    return ((x * factor - y) ** 2).sum()


def _plain_products(left: Any, left_at: int, right: Any, right_at: int, blocks: int) -> Any:
    x, y = _stretches(left, left_at, right, right_at, blocks)
    return (x * y).sum()


def _stretches(left: Any, left_at: int, right: Any, right_at: int, blocks: int) -> Iterator[Any]:
    for array, at in ((left, left_at), (right, right_at)):
        yield array.reshape(-1)[at : at + blocks * WIDE].astype(np.float64)


block_gaps: Any = _block_gaps if JIT else _plain_gaps
block_scaled_gaps: Any = _block_scaled_gaps if JIT else _plain_gaps
block_products: Any = _block_products if JIT else _plain_products


@njit(nogil=True, cache=True, fastmath=False)
def squared_gap(vectors, node, query):  # type: ignore[no-untyped-def]
    """f64: squared L2 of vectors[node] from a query; arrays in C order, f32 or f64."""
    size = query.size
    blocks = size // WIDE
    total = block_gaps(vectors, np.intp(node) * size, query, np.intp(0), np.intp(blocks))
    for i in range(blocks * WIDE, size):
        gap = np.float64(vectors[node, i]) - query[i]
        total += gap * gap
    return total


@njit(nogil=True, cache=True, fastmath=False)
def scaled_squared_gap(vectors, node, factor, query):  # type: ignore[no-untyped-def]
    """The same of factor * vectors[node]."""
    size = query.size
    blocks = size // WIDE
    total = block_scaled_gaps(vectors, np.intp(node) * size, query, np.intp(0), np.intp(blocks), factor)
    for i in range(blocks * WIDE, size):
        gap = np.float64(vectors[node, i]) * factor - query[i]
        total += gap * gap
    return total


@njit(nogil=True, cache=True, fastmath=False)
def product(vectors, node, query):  # type: ignore[no-untyped-def]
    """f64: the dot product of vectors[node] and a query; arrays in C order, f32 or f64."""
    size = query.size
    blocks = size // WIDE
    total = block_products(vectors, np.intp(node) * size, query, np.intp(0), np.intp(blocks))
    for i in range(blocks * WIDE, size):
        total += np.float64(vectors[node, i]) * query[i]
    return total
