"""Array types of the kernels.

A type names the dtype. Docstrings add the shape: `f32[N, D]` is an `F32` of N rows and D columns.
"""

from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Bool: TypeAlias = npt.NDArray[np.bool_]
I8: TypeAlias = npt.NDArray[np.int8]
I16: TypeAlias = npt.NDArray[np.int16]
I32: TypeAlias = npt.NDArray[np.int32]
I64: TypeAlias = npt.NDArray[np.int64]
U8: TypeAlias = npt.NDArray[np.uint8]
U16: TypeAlias = npt.NDArray[np.uint16]
U32: TypeAlias = npt.NDArray[np.uint32]
U64: TypeAlias = npt.NDArray[np.uint64]
F32: TypeAlias = npt.NDArray[np.float32]
F64: TypeAlias = npt.NDArray[np.float64]
Floats: TypeAlias = npt.NDArray[Any]
"""f32 or f64"""
AnyArray: TypeAlias = npt.NDArray[Any]

ScalarT = TypeVar("ScalarT", bound=np.generic)


def read_only(array: npt.NDArray[ScalarT]) -> npt.NDArray[ScalarT]:
    """A read-only view of an array.

    Numba compiles a kernel separately for writable and for read-only arrays. Callers pass either, so inputs always go
    to kernels as read-only views.
    """
    view = array.view()
    view.flags.writeable = False
    return view
