"""Errors of the theta room."""

from icepuffin.ops.errors import IcepuffinError


class ThetaError(IcepuffinError):
    """Base of what goes wrong in making or reading theta sketches."""


class UnsketchableColumnError(ThetaError):
    """Raised when a column that is asked for does not exist, or can have no sketch."""

    retryable = False
