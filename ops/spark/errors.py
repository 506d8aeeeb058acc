"""Spark's errors as errors of ours."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.tasks.task_runner import RunnerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REMEDIES = {
    "maxResultSize": "raise spark.driver.maxResultSize, or search for fewer queries or rows at once",
    "Python worker exited unexpectedly": "executors may lack memory: see their logs",
    "ExecutorLostFailure": "executors may lack memory: see their logs",
}
_STOPPED = "the Spark session was stopped: make a SparkRunner of a live one, and open readers by it"
_STOPPING = ("SparkContext was shut down", "stopped SparkContext", "SESSION_CLOSED", "Channel closed")
"""What errors say while a session, or the context of a Connect server, is being stopped"""
_MAX_CHARACTERS = 300


def require_live(session: "SparkSession") -> None:
    """Raises RunnerError where a session was stopped, or its JVM ended: PySpark fails on attributes of None or on a
    refused connection then, and through Spark Connect by an error that says nothing of runners.
    """
    if _is_stopped(session):
        raise RunnerError(_STOPPED)


def _is_stopped(session: "SparkSession") -> bool:
    context = getattr(session, "_sc", None)
    if context is None:
        return bool(getattr(session, "is_stopped", False))
    from py4j.protocol import Py4JError  # noqa: PLC0415  only with a session

    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())  # noqa: SLF001  no public way
    except (Py4JError, ConnectionError):
        return True


@contextmanager
def reported(session: "SparkSession", label: str, *, typed: bool = True) -> Iterator[None]:
    """Raises RunnerError for an error of Py4J or a JVM that is gone, and, if `typed`, for PySpark's own; where the
    session was stopped, before or meanwhile, for each error that is none of ours.
    """
    require_live(session)
    try:
        yield
    except IcepuffinError:
        raise
    except Exception as error:
        if any(sign in str(error) for sign in _STOPPING) or _is_stopped(session):
            raise RunnerError(f"{label}: {_STOPPED}") from error
        from py4j.protocol import Py4JError  # noqa: PLC0415  only with a session
        from pyspark.errors import PySparkException  # noqa: PLC0415

        if not isinstance(error, (Py4JError, ConnectionError, *([PySparkException] if typed else []))):
            raise
        remedy = next((remedy for cause, remedy in _REMEDIES.items() if cause in str(error)), "see its log")
        raise RunnerError(f"{label}: Spark failed: {_reason(error)}; {remedy}") from error


def _reason(error: Exception) -> str:
    """What happened, without the trace: the cause of all, or the last line of what a Python worker said."""
    lines = [line.strip(" :\t") for line in str(error).splitlines() if line.strip(" :\t")] or [type(error).__name__]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    if any(line.startswith("Traceback") for line in lines):
        lines = [line for line in lines if not line.startswith(("at ", "JVM stacktrace", "Driver stacktrace"))][-1:]
    elif causes:
        lines = [causes[-1].removeprefix("Caused by: ")]
    elif lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        lines = lines[1:]
    return lines[0][:_MAX_CHARACTERS]
