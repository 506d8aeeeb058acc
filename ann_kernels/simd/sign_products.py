"""Products of signs and a query of small integers, by counting bits: the query is stored as planes, one per bit."""

from typing import Any

from llvmlite import ir
from numba import types

from icepuffin.ann_kernels.arrays import U64
from icepuffin.ann_kernels.compilation import inline_kernel
from icepuffin.ann_kernels.simd.bits import count_bits
from icepuffin.ann_kernels.simd.codegen import (
    Builder,
    Code,
    Context,
    Signature,
    Typing,
    Value,
    address,
    cgutils,
    i64,
    llvm_function,
    with_fallback,
)

WORDS = 8
"""Words of one AVX-512 register; rows of bits are padded to it"""
PLANES = 5
"""Bits of the query's integers, which are -16 to 15; the highest counts -16"""
_WORDS = ir.VectorType(i64, WORDS)


@inline_kernel
def _plain_sum_of_chosen(words: U64, first: Any, planes: U64, blocks: Any) -> Any:
    total = 0
    for block in range(blocks):
        for plane in range(PLANES):
            weight = -(1 << plane) if plane == PLANES - 1 else 1 << plane
            for i in range(WORDS):
                both = words[first + block * WORDS + i] & planes[(block * PLANES + plane) * WORDS + i]
                total += weight * count_bits(both)
    return total


@with_fallback(_plain_sum_of_chosen)
def sum_of_chosen(typing_context: Typing, words: Typing, first: Typing, planes: Typing, blocks: Typing) -> Code:
    """sum_of_chosen(words u64[..], first, planes u64[blocks * PLANES * WORDS], blocks) -> int64: the sum of the query's
    integers whose bits are set in words[first : first + blocks * WORDS].

    LLVM counts by AVX-512 where the CPU can, and by tables of half-bytes elsewhere.
    """

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        bits = address(context, builder, signature.args[0], args[0], args[1], _WORDS)
        of_query = address(context, builder, signature.args[2], args[2], i64(0), _WORDS)
        counts = [cgutils.alloca_once(builder, _WORDS) for _ in range(PLANES)]
        for count in counts:
            builder.store(ir.Constant(_WORDS, [0] * WORDS), count)
        population = llvm_function(builder, f"llvm.ctpop.v{WORDS}i64", _WORDS, _WORDS)
        with cgutils.for_range(builder, args[3]) as loop:
            block = builder.load(builder.gep(bits, [loop.index]), align=8)
            offset = builder.mul(loop.index, i64(PLANES))
            for plane, count in enumerate(counts):
                of_plane = builder.load(builder.gep(of_query, [builder.add(offset, i64(plane))]), align=8)
                both = builder.call(population, [builder.and_(block, of_plane)])
                builder.store(builder.add(builder.load(count), both), count)
        total = builder.load(counts[0])
        for plane, count in enumerate(counts[1:], 1):
            weighted = builder.shl(builder.load(count), ir.Constant(_WORDS, [plane] * WORDS))
            total = builder.sub(total, weighted) if plane == PLANES - 1 else builder.add(total, weighted)
        add = llvm_function(builder, f"llvm.vector.reduce.add.v{WORDS}i64", i64, _WORDS)
        return builder.call(add, [total])

    return types.int64(words, types.intp, planes, types.intp), generate
