"""A node and its distance in one integer that sorts by distance, and the insertion of such keys into a sorted array.

The lowest bit of a key is free: a beam search keeps in it whether the node was expanded.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from icepuffin.ann_kernels.arrays import I64
from icepuffin.ann_kernels.compilation import inline_kernel
from icepuffin.ann_kernels.simd.codegen import (
    Builder,
    Code,
    Context,
    Signature,
    Typing,
    Value,
    address,
    broadcast,
    f32,
    i32,
    i64,
    llvm_function,
    with_fallback,
)

KEY_LANES = 8
"""Keys of one AVX-512 register, moved at once: arrays of keys are padded to it"""
NO_KEY = np.int64(2**63 - 1)
"""The key of an empty slot: after every other key, and counted as expanded"""
_KEYS = ir.VectorType(i64, KEY_LANES)


def _plain_sort_key(distance: Any, node: Any) -> Any:
    bits = int(np.float32(distance).view(np.int32))
    return np.int64(((bits ^ (0x7FFFFFFF if bits < 0 else 0)) << 32) | (int(node) << 1))


@with_fallback(_plain_sort_key)
def sort_key(typing_context: Typing, distance: Typing, node: Typing) -> Code:
    """sort_key(distance f32, node int32) -> int64 that sorts by distance, then by node; its lowest bit is clear."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        bits = builder.bitcast(args[0], i32)
        flipped = builder.xor(bits, builder.lshr(builder.ashr(bits, i32(31)), i32(1)))
        low = builder.shl(builder.zext(args[1], i64), i64(1))
        return builder.or_(builder.shl(builder.sext(flipped, i64), i64(32)), low)

    return types.int64(types.float32, types.int32), generate


def _plain_key_distance(key: Any) -> Any:
    flipped = int(key) >> 32
    return np.int32(flipped ^ (0x7FFFFFFF if flipped < 0 else 0)).view(np.float32)


@with_fallback(_plain_key_distance)
def key_distance(typing_context: Typing, key: Typing) -> Code:
    """key_distance(key int64) -> f32: the distance of a key."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        flipped = builder.trunc(builder.ashr(args[0], i64(32)), i32)
        bits = builder.xor(flipped, builder.lshr(builder.ashr(flipped, i32(31)), i32(1)))
        return builder.bitcast(bits, f32)

    return types.float32(types.int64), generate


@inline_kernel
def key_node(key: Any) -> np.int32:
    """The node of a key int64, whether it was expanded or not."""
    return np.int32((key >> 1) & 0x7FFFFFFF)


def _plain_insert(keys: I64, last: int, key: Any) -> Any:
    index = int(np.searchsorted(keys[: last + 1], key))
    keys[index + 1 : last + 1] = keys[index:last].copy()
    keys[index] = key
    return index


@with_fallback(_plain_insert)
def insert_key(typing_context: Typing, keys: Typing, last: Typing, key: Typing) -> Code:
    """insert_key(keys int64[..], last, key) -> index: put a key smaller than keys[last] where it belongs.

    keys[: last + 1] is ascending, and the array is padded to whole registers. Keys from that index on move one up, and
    keys[last] is lost.

    Registers are rewritten from the last one down to the one that the key belongs into: each slot keeps its key if
    that is smaller than the new one, else takes the larger of the new key and its left neighbour. No branch depends on
    where in a register the key goes: it would be unpredictable.
    """

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        base = address(context, builder, signature.args[0], args[0], i64(0), _KEYS)
        key = broadcast(builder, args[2], KEY_LANES)
        first = builder.sdiv(args[1], i64(KEY_LANES))
        highest = builder.load(builder.gep(base, [first]), align=8)
        before, body = builder.block, builder.append_basic_block("insert.body")
        after = builder.append_basic_block("insert.after")
        builder.branch(body)
        builder.position_at_end(body)
        index, register = builder.phi(i64), builder.phi(_KEYS)
        smaller = builder.icmp_signed("<", register, key)
        done = builder.or_(builder.extract_element(smaller, i32(0)), builder.icmp_signed("==", index, i64(0)))
        index_below = builder.select(done, index, builder.sub(index, i64(1)))
        below = builder.load(builder.gep(base, [index_below]), align=8)
        # The left neighbours. What comes into the last register from the left is the key itself.
        from_left = ir.Constant(ir.VectorType(i32, KEY_LANES), list(range(KEY_LANES - 1, 2 * KEY_LANES - 1)))
        left = builder.shuffle_vector(builder.select(done, key, below), register, from_left)
        larger = builder.select(builder.icmp_signed(">", left, key), left, key)
        builder.store(builder.select(smaller, register, larger), builder.gep(base, [index]), align=8)
        for phi, outside, inside in ((index, first, index_below), (register, highest, below)):
            phi.add_incoming(outside, before)
            phi.add_incoming(inside, body)
        builder.cbranch(done, after, body)
        builder.position_at_end(after)
        add = llvm_function(builder, f"llvm.vector.reduce.add.v{KEY_LANES}i64", i64, _KEYS)
        rank = builder.call(add, [builder.zext(smaller, _KEYS)])
        return builder.add(builder.mul(index, i64(KEY_LANES)), rank)

    return types.int64(keys, types.intp, types.int64), generate
