"""Parts of every LLVM function here: types, pointers into arrays, calls of LLVM's intrinsics, plain fallbacks."""

from collections.abc import Callable
from typing import Any, TypeAlias

from llvmlite import ir
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic

from icepuffin.ann_kernels.compilation import JIT

Typing: TypeAlias = Any
"""numba's typing context, and the numba types of arguments"""
Context: TypeAlias = Any
"""numba's target context"""
Builder: TypeAlias = Any
"""llvmlite's IRBuilder"""
Value: TypeAlias = Any
"""An LLVM value"""
Signature: TypeAlias = Any
"""numba's signature of a call"""
Code: TypeAlias = tuple[Signature, Callable[[Context, Builder, Signature, Any], Value]]
"""What numba takes as an intrinsic: the signature, and the function that writes the LLVM code"""

LANES = 16
"""32-bit lanes of one AVX-512 register"""
i8, i16, i32, i64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
f32, f64 = ir.FloatType(), ir.DoubleType()
I32_LANES = ir.VectorType(i32, LANES)
cgutils: Any = untyped_cgutils


def with_fallback(plain: Callable[..., Any], *, when: bool = JIT) -> Callable[[Callable[..., Code]], Any]:
    """Decorate the definition of an intrinsic that is used `when` true; elsewhere `plain` takes its place."""

    def choose(definition: Callable[..., Code]) -> Any:
        return intrinsic(definition) if when else plain

    return choose


def address(context: Context, builder: Builder, array_type: Typing, array: Value, index: Value, element: Any) -> Value:
    """Pointer to element `index` of a C-contiguous array, as a pointer to the LLVM type `element`."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), element.as_pointer())


def length(context: Context, builder: Builder, array_type: Typing, array: Value) -> Value:
    """Size of an array's first dimension."""
    return builder.extract_value(context.make_array(array_type)(context, builder, array).shape, 0)


def broadcast(builder: Builder, value: Value, lanes: int = LANES) -> Value:
    """A vector whose lanes all hold a value."""
    undefined = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    first = builder.insert_element(undefined, value, i32(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(i32, lanes), [0] * lanes))


def llvm_function(builder: Builder, name: str, result: Any, *arguments: Any) -> Value:
    """One of LLVM's own intrinsics, by its name."""
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)
