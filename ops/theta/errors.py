"""Errors of `icepuffin.ops.theta`."""

from icepuffin.ops.errors import ArgumentError, FileDamageError


class ThetaError(ArgumentError):
    """Base of the errors in making or reading theta sketches."""


class UnsketchableColumnError(ThetaError):
    """Raised when a column that is to get a sketch does not exist, or has a type without sketches."""


class LostStatisticsError(FileDamageError):
    """Raised when the statistics file that a table's entry names is not there."""
