"""Errors of the kernels room, all raised at its boundary: kernels themselves see only validated arrays."""


class KernelError(ValueError):
    """Base of every error about arrays that kernels are given."""


class DimensionError(KernelError):
    """Raised when arrays that belong together differ in dimensions, or have a shape that no kernel takes."""


class NonFiniteVectorError(KernelError):
    """Raised when a vector holds NaN or infinity."""

    def __init__(self, row: int) -> None:
        super().__init__(f"vector {row} holds NaN or infinity")
        self.row = row


class ZeroVectorError(KernelError):
    """Raised when a vector under the cosine metric has no direction."""

    def __init__(self, row: int) -> None:
        super().__init__(f"vector {row} is zero: it has no direction, and cosine distance needs one")
        self.row = row
