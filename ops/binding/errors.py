"""Errors of commits."""

from icepuffin.ops.errors import IcepuffinError


class BindingError(IcepuffinError):
    """Raised when a change of a table's metadata cannot be committed; nothing was published."""


class LostRaceError(BindingError):
    """Raised when somebody else moved the tag first: look at what they published, then decide again.

    No snapshot names the file that was to be bound, now or later: it may be deleted.
    """


class UnknownOutcomeError(BindingError):
    """Raised when the catalog's answer to a commit was lost and its metadata does not show the commit (yet).

    It may still happen: delete nothing. A later run finds the commit, or repeats the work.
    """


class UnsupportedCatalogError(BindingError):
    """Raised when a catalog does not keep what binds a version: before any work where a scratch table shows it, else
    after the commit.
    """

    retryable = False
    change = ""
    """What the catalog did, in words that follow its name"""
