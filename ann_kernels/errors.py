"""Errors of `icepuffin.ann_kernels`, all raised at its boundary: kernels themselves see only validated arrays."""

from typing import ClassVar, Self


class KernelError(ValueError):
    """Base of every error about arrays that kernels are given."""


class DimensionError(KernelError):
    """Raised when arrays that belong together differ in dimensions, or have a shape that no kernel takes."""


class _VectorError(KernelError):
    """One vector is to blame."""

    fault: ClassVar[str]

    def __init__(self, row: int) -> None:
        super().__init__(f"vector {row} {self.fault}")
        self.row = row

    def __reduce__(self) -> tuple[type[Self], tuple[int]]:
        return type(self), (self.row,)


class NonFiniteVectorError(_VectorError):
    """Raised when a vector holds NaN or infinity."""

    fault = "holds NaN or infinity"


class ZeroVectorError(_VectorError):
    """Raised when a vector under the cosine metric has no direction."""

    fault = "is zero (shorter than 1e-150): it has no direction, and cosine distance needs one"
