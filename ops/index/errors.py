"""Errors of `icepuffin.ops.index`."""

from icepuffin.ops.errors import FileDamageError, LimitError


class GateFailedError(LimitError):
    """Raised when a version's recall is under its target: nothing was published, and a previous version stays."""

    retryable = False
    recall = 0.0
    """recall@10 that was measured"""
    advice = ""
    """What to change, as the message ends with it"""


class CoverageError(FileDamageError):
    """Raised when a version would not hold exactly the live rows of its snapshot; nothing was published."""


class ShardTooLargeError(LimitError):
    """Raised when a shard would have more rows than a blob of 2^31 - 1 bytes holds; nothing was published."""

    retryable = False
    reason = "a shard of the nearest version has no room for the new rows"
    """Reason of the build that follows where a refresh ends with this error"""


class TooFewShardsError(ShardTooLargeError):
    """Raised when an index would have too many rows for the number of its shards; nothing was published."""

    reason = "the nearest version has too few shards for so many rows"


class LayoutMisfitError(LimitError):
    """Raised within a refresh whose rows the layout of the base version no longer fits: a build follows."""

    retryable = False


class NotAnIndexError(FileDamageError):
    """Raised when a bound file is no index version of ours, or is gone."""


class EarlierLayoutError(NotAnIndexError):
    """Raised when a bound file is a version of ours whose layout was given up: the next refresh builds it anew."""


class LaterReleaseError(NotAnIndexError):
    """Raised when a bound file is a version of ours that a later release wrote, and that this one leaves alone."""

    retryable = False
