"""One commit of several parts, such as a version and the statistics of its snapshot. Each has an outcome of its own:
one that somebody else has overtaken, or that cannot be committed any more, does not hold up the others.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Generic, TypeVar

from pyiceberg.table import Table
from pyiceberg.table.update import TableRequirement, TableUpdate

from icepuffin.ops.binding.commit import CommitOutcome, attempt_commit, commit_attempts, reload_table
from icepuffin.ops.errors import CatalogUnavailableError, IcepuffinError
from icepuffin.ops.steps import RunStep, reached

Result_co = TypeVar("Result_co", covariant=True)
Change = tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]


class CommitPart(ABC, Generic[Result_co]):
    """Something to be committed, alone or with others, and what became of it."""

    def __init__(self) -> None:
        self.is_unanswered = False
        """Whether an answer was lost: the commit may land yet, as long as nobody has written to the table since"""
        self._result: Result_co | None = None
        self._error: Exception | None = None

    @property
    def is_settled(self) -> bool:
        """Whether it has an outcome."""
        return self._result is not None or self._error is not None

    def outcome(self) -> Result_co:
        """The result. Raises the error by which it ended."""
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise ValueError("this part was never committed")
        return self._result

    @abstractmethod
    def find(self, table: Table) -> Result_co | None:
        """The result by the state that the table shows; None where it is to be committed. Raises IcepuffinError where
        it cannot be.
        """

    @abstractmethod
    def change(self, table: Table) -> Change:
        """Updates and requirements for the state that the table shows. Raises IcepuffinError where it cannot be."""

    @abstractmethod
    def verify(self, table: Table) -> Result_co:
        """The result of a commit that was done, by what the catalog kept. Raises IcepuffinError."""

    @abstractmethod
    def failure(self, table: Table, attempts: int) -> IcepuffinError:
        """The error after so many commits without success."""

    def prepare(self, table: Table, *, may_commit: bool) -> Change:
        """The change to commit; none where it is settled, by this look or before, or where nothing may be sent."""
        with self._outcome_kept():
            self._result = self.find(table)
            if self._result is None and may_commit:
                return self.change(table)
        return (), ()

    def settle(self, table: Table) -> None:
        """Take the outcome from the state after a commit."""
        with self._outcome_kept():
            self._result = self.verify(table)

    def give_up(self, table: Table, attempts: int, cause: Exception | None = None) -> None:
        """Take the error after so many commits for the outcome."""
        self._error = self.failure(table, attempts)
        self._error.__cause__ = cause

    def fail(self, error: Exception) -> None:
        """Take what the catalog raised for the outcome."""
        self._error = error

    @contextmanager
    def _outcome_kept(self) -> Iterator[None]:
        try:
            yield
        except IcepuffinError as error:
            self._error = error


def commit_together(table: Table, parts: Sequence[CommitPart[object]]) -> None:
    """Commit those of the parts that have no outcome yet, in one commit, on the table's newest state. Then each has.

    Where the catalog refuses them together for good, each is sent alone, as what it refuses may be one of them.

    Raises what `reload_table` raises, and for one part what the catalog does; parts may be without an outcome then.
    """
    cause: CatalogUnavailableError | None = None
    for attempt in commit_attempts(table):
        pending = _unsettled(parts)
        if not pending:
            return
        is_unanswered = any(part.is_unanswered for part in pending)
        try:
            reload_table(table, patient=is_unanswered)
        except CatalogUnavailableError as error:
            if not is_unanswered:
                raise
            cause = error
            break
        changes = [part.prepare(table, may_commit=attempt.may_commit) for part in pending]
        pending = _unsettled(pending)
        if not pending:
            return
        if not attempt.may_commit:
            break
        outcome = _send(table, pending, changes, attempt.number)
        for part in pending:
            part.is_unanswered |= outcome is CommitOutcome.UNKNOWN
        if outcome is CommitOutcome.DONE:
            reached(RunStep.COMMITTED)
            reload_table(table, patient=True)
            for part in pending:
                part.settle(table)
            return
    for part in _unsettled(parts):
        part.give_up(table, attempt.number, cause)


def _send(table: Table, parts: Sequence[CommitPart[object]], changes: Sequence[Change], attempt: int) -> CommitOutcome:
    updates = tuple(chain.from_iterable(updates for updates, _ in changes))
    requirements = tuple(dict.fromkeys(chain.from_iterable(requirements for _, requirements in changes)))
    try:
        return attempt_commit(table, updates, requirements, attempt)
    except Exception:
        if len(parts) == 1:
            raise
        _commit_apart(table, parts)
        return CommitOutcome.REFUSED


def _commit_apart(table: Table, parts: Sequence[CommitPart[object]]) -> None:
    for part in parts:
        try:
            commit_together(table, (part,))
        except Exception as error:
            part.fail(error)


def _unsettled(parts: Sequence[CommitPart[object]]) -> list[CommitPart[object]]:
    return [part for part in parts if not part.is_settled]
