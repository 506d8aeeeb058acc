"""The pool of a beam search: the nearest nodes that it found, as an ascending array of sort keys.

A key is a node's distance, its id, and in the lowest bit whether its neighbours have been looked at. Ties go to the
smaller id, so that results do not depend on the order in which neighbours are stored.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from icepuffin.ann_kernels.simd import JIT, address, cgutils

_STEP = 8
"""Keys of one AVX-512 register, moved at once: a pool is padded to it"""
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_KEYS = ir.VectorType(_I64, _STEP)
NO_KEY = np.int64(2**63 - 1)
"""Where a pool is empty: after every key, and counted as expanded"""


@njit(nogil=True, cache=True)
def new_pool(width):  # type: ignore[no-untyped-def]
    """An empty pool int64[..] for `width` keys. What lies beyond them is room for what `insert` pushes out."""
    return np.full(width + -width % _STEP, NO_KEY)


@njit(nogil=True, cache=True, inline="always")
def key_node(key):  # type: ignore[no-untyped-def]
    """The node of a sort key, expanded or not."""
    return np.int32((key >> 1) & 0x7FFFFFFF)


@njit(nogil=True, cache=True)
def unexpanded(pool, size, start):  # type: ignore[no-untyped-def]
    """The first place from `start` on whose node has not been expanded; `size` where there is none."""
    while start < size and pool[start] & 1:
        start += 1
    return start


@intrinsic
def _insert(typing_context, pool, last, key):  # type: ignore[no-untyped-def]
    """From the last register down to the one that the key belongs into: each place takes what stood there if that is
    smaller than the key, else the larger of the key and its left neighbour. Nothing hangs on where in a register the
    key goes, which no branch predictor could foresee.
    """

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        base = address(context, builder, signature.args[0], args[0], _I64(0), _KEYS)
        undefined = ir.Constant(_KEYS, ir.Undefined)
        key = builder.insert_element(undefined, args[2], _I32(0))
        key = builder.shuffle_vector(key, undefined, ir.Constant(ir.VectorType(_I32, _STEP), [0] * _STEP))
        first = builder.sdiv(args[1], _I64(_STEP))
        highest = builder.load(builder.gep(base, [first]), align=8)
        before, body = builder.block, builder.append_basic_block("insert.body")
        after = builder.append_basic_block("insert.after")
        builder.branch(body)
        builder.position_at_end(body)
        at, here = builder.phi(_I64), builder.phi(_KEYS)
        smaller = builder.icmp_signed("<", here, key)
        done = builder.or_(builder.extract_element(smaller, _I32(0)), builder.icmp_signed("==", at, _I64(0)))
        below_at = builder.select(done, at, builder.sub(at, _I64(1)))
        below = builder.load(builder.gep(base, [below_at]), align=8)
        # the left neighbours; in the last register, what comes in from the left is the key itself
        from_left = ir.Constant(ir.VectorType(_I32, _STEP), list(range(_STEP - 1, 2 * _STEP - 1)))
        left = builder.shuffle_vector(builder.select(done, key, below), here, from_left)
        larger = builder.select(builder.icmp_signed(">", left, key), left, key)
        builder.store(builder.select(smaller, here, larger), builder.gep(base, [at]), align=8)
        for phi, outside, inside in ((at, first, below_at), (here, highest, below)):
            phi.add_incoming(outside, before)
            phi.add_incoming(inside, body)
        builder.cbranch(done, after, body)
        builder.position_at_end(after)
        kind = ir.FunctionType(_I64, [_KEYS])
        add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.add.v{_STEP}i64")
        return builder.add(builder.mul(at, _I64(_STEP)), builder.call(add, [builder.zext(smaller, _KEYS)]))

    return types.int64(pool, types.intp, types.int64), generate


def _plain_insert(pool: Any, last: int, key: Any) -> Any:
    place = int(np.searchsorted(pool[: last + 1], key))
    pool[place + 1 : last + 1] = pool[place:last].copy()
    pool[place] = key
    return place


@intrinsic
def _sort_key(typing_context, far, node):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        bits = builder.bitcast(args[0], _I32)
        flipped = builder.xor(bits, builder.lshr(builder.ashr(bits, _I32(31)), _I32(1)))
        low = builder.shl(builder.zext(args[1], _I64), _I64(1))
        return builder.or_(builder.shl(builder.sext(flipped, _I64), _I64(32)), low)

    return types.int64(types.float32, types.int32), generate


@intrinsic
def _key_distance(typing_context, key):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        flipped = builder.trunc(builder.ashr(args[0], _I64(32)), _I32)
        bits = builder.xor(flipped, builder.lshr(builder.ashr(flipped, _I32(31)), _I32(1)))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(types.int64), generate


def _plain_sort_key(far: Any, node: Any) -> Any:
    bits = int(np.float32(far).view(np.int32))
    return np.int64(((bits ^ (0x7FFFFFFF if bits < 0 else 0)) << 32) | (int(node) << 1))


def _plain_key_distance(key: Any) -> Any:
    flipped = int(key) >> 32
    return np.int32(flipped ^ (0x7FFFFFFF if flipped < 0 else 0)).view(np.float32)


insert: Any = _insert if JIT else _plain_insert
"""insert(pool int64[..] of `new_pool`, last, key) -> place. Put a key that is smaller than pool[last] into its place;
what stood from there to `last` moves one on, and pool[last] is lost."""
sort_key: Any = _sort_key if JIT else _plain_sort_key
"""sort_key(distance f32, node int32) -> int64 that sorts by distance, then by node; its lowest bit is free."""
key_distance: Any = _key_distance if JIT else _plain_key_distance
"""key_distance(key) -> the distance f32 of a sort key."""
