"""The nearest centroids of 16 points at once, one point per lane."""

from typing import Any

from llvmlite import ir
from numba import types

from icepuffin.ann_kernels.arrays import F32, I32
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
    f32,
    i32,
    i64,
    length,
    llvm_function,
    with_fallback,
)

_F32_LANES = ir.VectorType(f32, LANES)


def _plain_nearest(points: F32, centroids: F32, norms: F32, labels: I32) -> None:
    labels[:] = (norms[:, None] + centroids @ points).argmin(axis=0)


@with_fallback(_plain_nearest)
def nearest_of_lanes(typing_context: Typing, points: Typing, centroids: Typing, norms: Typing, labels: Typing) -> Code:
    """nearest_of_lanes(points f32[D, 16], centroids f32[k, D], norms f32[k], labels int32[16]): fill the labels.

    A point's label is the first c with the smallest norms[c] + centroids[c] . point.
    """

    def generate(context: Context, builder: Builder, signature: Signature, args: Any) -> Value:
        kinds = signature.args
        zero = i64(0)
        point = address(context, builder, kinds[0], args[0], zero, _F32_LANES)
        centroid = address(context, builder, kinds[1], args[1], zero, f32)
        norm = address(context, builder, kinds[2], args[2], zero, f32)
        label = address(context, builder, kinds[3], args[3], zero, I32_LANES)
        dims = length(context, builder, kinds[0], args[0])
        count = length(context, builder, kinds[2], args[2])
        score, best = cgutils.alloca_once(builder, _F32_LANES), cgutils.alloca_once(builder, _F32_LANES)
        builder.store(ir.Constant(_F32_LANES, [float("inf")] * LANES), best)
        builder.store(ir.Constant(I32_LANES, [0] * LANES), label, align=4)
        add = llvm_function(builder, f"llvm.fmuladd.v{LANES}f32", _F32_LANES, _F32_LANES, _F32_LANES, _F32_LANES)
        with cgutils.for_range(builder, count) as outer:
            builder.store(broadcast(builder, builder.load(builder.gep(norm, [outer.index]))), score)
            first = builder.mul(outer.index, dims)
            with cgutils.for_range(builder, dims) as inner:
                weight = builder.load(builder.gep(centroid, [builder.add(first, inner.index)]))
                values = builder.load(builder.gep(point, [inner.index]), align=4)
                builder.store(builder.call(add, [values, broadcast(builder, weight), builder.load(score)]), score)
            nearer = builder.fcmp_ordered("<", builder.load(score), builder.load(best))
            builder.store(builder.select(nearer, builder.load(score), builder.load(best)), best)
            number = broadcast(builder, builder.trunc(outer.index, i32))
            builder.store(builder.select(nearer, number, builder.load(label, align=4)), label, align=4)
        return context.get_dummy_value()

    return types.void(points, centroids, norms, labels), generate
