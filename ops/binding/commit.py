"""One commit to a catalog, and its outcome by the catalog's answer."""

import enum
import logging
import math
import random
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from traceback import walk_tb

from pydantic import ValidationError
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from pyiceberg.exceptions import ValidationError as InvalidMetadataError
from pyiceberg.table import Table
from pyiceberg.table.update import AddSnapshotUpdate, AssertTableUUID, TableRequirement, TableUpdate

from icepuffin.ops.binding.errors import BindingError
from icepuffin.ops.catalog.redaction import without_values
from icepuffin.ops.errors import CatalogUnavailableError
from icepuffin.ops.table.format_versions import unsupported_format
from icepuffin.ops.table.snapshots import TableUnavailableError, table_name

_log = logging.getLogger(__name__)
COMMIT_ATTEMPTS = 12
"""Commits that are sent, each against a newer state, before a run gives up; `commit.retry.num-retries` overrides it"""
_RETRIES = "commit.retry.num-retries"
_MIN_WAIT = "commit.retry.min-wait-ms"
_MAX_WAIT = "commit.retry.max-wait-ms"
_TIMEOUT = "commit.retry.total-timeout-ms"
_DEFAULTS = {_MIN_WAIT: 100, _MAX_WAIT: 60_000}
"""Iceberg's own defaults, in milliseconds, for tables that set one of the two"""
_LONGEST_WAIT = 600_000
"""Milliseconds between two commits, whatever a table's properties say"""
_PATIENCE_SECONDS = 60.0
_CLOCK_TOLERANCE = 60_000
"""Milliseconds by which a table's time may go back: Iceberg's Java library reads no table where it went back further"""
_OVERTAKEN = "sequence number", "irst-row-id", "Snapshot with snapshot id"
"""Words of errors of commits that somebody else's commit, between our look and ours, made wrong"""
_GLUE = "pyiceberg.catalog.glue"
"""PyIceberg's client of Glue, which imports what is not always installed"""
_SERVER_FAULT = 500
"""The first HTTP status of faults of the server"""


class CommitOutcome(enum.Enum):
    """Outcome of a commit, as far as the answer shows it."""

    DONE = "done"
    REFUSED = "refused"
    """Refused by the catalog, or before it was sent: try again on a newer state"""
    UNKNOWN = "unknown"
    """No answer: the commit may have happened, or may still. Its files must stay until the metadata shows which"""


@dataclass(frozen=True, slots=True)
class CommitAttempt:
    """One pass of a loop that commits: it reads the table, and then sends a commit where one may be sent still."""

    number: int
    """Commits that were sent before"""
    may_commit: bool
    """Permission to send one; absent from the last pass, since the answer to the last commit may have been lost"""


def commit_attempts(table: Table) -> Iterator[CommitAttempt]:
    """Yield a pass for each commit that the table's properties `commit.retry.*` allow, and a last one that only reads.
    Waits between commits.
    """
    properties = table.metadata.properties
    retries, milliseconds = _number(properties, _RETRIES), _number(properties, _TIMEOUT)
    until = math.inf if milliseconds is None else time.monotonic() + milliseconds / 1_000
    most = COMMIT_ATTEMPTS if retries is None else 1 + retries
    yield CommitAttempt(0, may_commit=True)
    sent = 1
    while sent < most and (remaining := until - time.monotonic()) > 0:
        time.sleep(min(_pause(properties, sent - 1), remaining))
        yield CommitAttempt(sent, may_commit=True)
        sent += 1
    yield CommitAttempt(sent, may_commit=False)


def _number(properties: Mapping[str, str], key: str) -> int | None:
    """A table property that is a number from 0; None where it is not set, or cannot be read."""
    text = properties.get(key)
    if text is None or re.fullmatch("[0-9]{1,18}", text.strip()):
        return None if text is None else int(text)
    _log.warning("table property %s is %r, no number from 0: it is left out of account", key, text)
    return None


def _pause(properties: Mapping[str, str], attempt: int) -> float:
    """Seconds to wait after an attempt."""
    doubled: int = 2 ** min(attempt, 30)
    least, most = (_number(properties, key) for key in (_MIN_WAIT, _MAX_WAIT))
    if least is None and most is None:
        return min(2.0, 0.02 * doubled) * (0.5 + random.random())  # noqa: S311  jitter, not a secret
    least, most = (_DEFAULTS[key] if value is None else value for key, value in ((_MIN_WAIT, least), (_MAX_WAIT, most)))
    return min(most, least * doubled, _LONGEST_WAIT) / 1_000 * (1 + 0.1 * random.random())  # noqa: S311


def attempt_commit(
    table: Table, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...], attempt: int = 0
) -> CommitOutcome:
    """Send one commit against the state that `table` shows.

    Errors that no repetition mends (no permission, a malformed request) come through as the client raises them, those
    of AWS as CatalogUnavailableError. Raises BindingError.
    """
    if not any(isinstance(update, AddSnapshotUpdate) for update in updates):  # a snapshot has a time of its own
        require_clock(table)
    same_uuid = AssertTableUUID(uuid=table.metadata.table_uuid)
    try:
        table.catalog.commit_table(table, (same_uuid, *requirements), updates)
    except (CommitFailedException, TooManyRequestsError) as error:
        outcome, reason = CommitOutcome.REFUSED, str(error)
    except _no_answer(ValidationError) as error:  # ValidationError: an answer that was cut off
        _require_of_client(error)
        # SQLite waits out its busy timeout, and then has rolled back; any other lost answer may hide a commit
        locked = "database is locked" in str(getattr(error, "orig", ""))
        outcome, reason = CommitOutcome.REFUSED if locked else CommitOutcome.UNKNOWN, type(error).__name__
    except _aws_answer() as error:
        if not _is_passing(error):
            raise _refused_by_aws(table, error) from None
        outcome, reason = CommitOutcome.UNKNOWN, _aws_code(error)
    except (ValueError, BadRequestError) as error:
        # a number that was taken, or a snapshot to remove that is gone; Iceberg's servers answer a bad request
        if not any(words in str(error) for words in _OVERTAKEN):
            raise
        outcome, reason = CommitOutcome.REFUSED, "somebody committed before"
    else:
        return CommitOutcome.DONE
    _log.info("%s: commit attempt %d: %s (%s)", table_name(table), attempt, outcome.value, reason)
    return outcome


def require_clock(table: Table) -> None:
    """Raises BindingError where this machine's time is far behind the table's. PyIceberg writes the metadata of the
    tables of a metastore, and stamps it with this machine's time.
    """
    behind = table.metadata.last_updated_ms - datetime.now(UTC).timestamp() * 1000
    if behind > _CLOCK_TOLERANCE and isinstance(table.catalog, MetastoreCatalog):
        raise BindingError(
            f"{table_name(table)}: the clock of this machine is {behind / 1000:,.0f} s behind the table's last change, "
            "and Spark could not read the table after a change with that time. Set the clock, or, where it was that of "
            "the last writer which was wrong, wait as long"
        )


def _no_answer(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Errors of a catalog's client after which a request may or may not have been carried out, and `others`.

    The clients are imported where something failed: both take 0.2 s, and a catalog uses one.
    """
    from requests.exceptions import RequestException  # noqa: PLC0415
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415

    # botocore's, where a catalog of AWS, or another client of it, has imported them
    aws = sys.modules.get("botocore.exceptions")
    aws_errors = (aws.HTTPClientError, aws.ConnectionError) if aws else ()
    # to boto3 an answer that ends after its head is an empty one, in which PyIceberg misses what it asked for
    glue_errors = (KeyError,) if _GLUE in sys.modules else ()
    thrift = sys.modules.get("thrift.transport.TTransport")  # the client of Hive's metastore
    thrift_errors = (thrift.TTransportException,) if thrift else ()
    answers = CommitStateUnknownException, ServerError, ServiceUnavailableError
    return RequestException, DBAPIError, *aws_errors, *glue_errors, *thrift_errors, *answers, *others


def _require_of_client(error: Exception) -> None:
    """Raises a KeyError again that is no cut-off answer of Glue's: those come from PyIceberg's client itself."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    if isinstance(error, KeyError) and frames[-1].f_globals.get("__name__") != _GLUE:
        raise error


def _aws_answer() -> tuple[type[Exception], ...]:
    """The error that a service of AWS answers with, where its client is loaded."""
    aws = sys.modules.get("botocore.exceptions")
    return (aws.ClientError,) if aws else ()


def _aws_code(error: Exception) -> str:
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", type(error).__name__))


def _is_passing(error: Exception) -> bool:
    """Whether a service of AWS was too busy, or failed itself: the same request may succeed later."""
    status = getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status >= _SERVER_FAULT or any(word in _aws_code(error) for word in ("Throttl", "TooManyRequests"))


def _refused_by_aws(table: Table, error: Exception) -> CatalogUnavailableError:
    reason = str(without_values(error, table.catalog.properties)).splitlines()[0]
    return CatalogUnavailableError(
        f"{table_name(table)}: catalog {table.catalog.name!r} refuses the request ({reason}); check the rights of its "
        "user and its settings"
    )


def reload_table(table: Table, *, patient: bool = False) -> None:
    """Bring `table` up to date; `patient` waits up to a minute for a catalog that does not answer.

    Raises CatalogUnavailableError, TableUnavailableError where the table is gone or another one has
    its name, UnsupportedFormatError where it was upgraded to a format version that is not read.
    """
    until = time.monotonic() + (_PATIENCE_SECONDS if patient else 0)
    pause = 0.1
    while True:
        try:
            table.refresh()
        except NoSuchTableError as error:
            raise TableUnavailableError(
                f"{table_name(table)} was dropped from catalog {table.catalog.name} meanwhile; nothing is left to do"
            ) from error
        except _no_answer() as error:
            _require_of_client(error)
            if time.monotonic() + pause >= until:
                raise CatalogUnavailableError(
                    f"{table_name(table)}: catalog {table.catalog.name!r} does not answer ({type(error).__name__}); "
                    "try again when it is up"
                ) from error
            time.sleep(pause)
            pause = min(5.0, 2 * pause)
        except _aws_answer() as error:
            if not _is_passing(error) or time.monotonic() + pause >= until:
                raise _refused_by_aws(table, error) from None
            time.sleep(pause)
            pause = min(5.0, 2 * pause)
        except (ValueError, InvalidMetadataError) as error:
            if (unsupported := unsupported_format(table_name(table), error)) is not None:
                raise unsupported from None
            if "UUID" not in str(error):
                raise
            raise TableUnavailableError(
                f"{table_name(table)} was dropped and another table has its name; load it and start again"
            ) from error
        else:
            return
