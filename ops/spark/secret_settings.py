"""Spark sessions that show no secret of their configuration: not on the process list, in event logs, or in Spark's UI.

Spark redacts what `spark.redaction.regex` finds in a key or in a value; its own pattern knows few names of secrets.
PySpark puts the whole configuration on the command line of the JVM, where every user of the machine can read it.
"""

import logging
import re
from collections.abc import Mapping

from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.spark.jvm_messages import launch_without_noise

_log = logging.getLogger(__name__)
REDACTION = "spark.redaction.regex"
_MARKS = (
    r"(?i)secret|token|credential(?!s?\.?provider)|pass(word|wd|phrase)|(access|account|private|api|encryption)[._-]?key"
    r"|header\.authorization|bearer |://[^/@\s]*:[^/@\s]*@|\bsig(nature)?="
)
"""Pattern of secrets: Spark's own, further names, and URLs with a password or signed ones; in Java's syntax and
Python's."""

_OF_THE_START = ("spark.jars", "spark.driver.", "spark.kerberos.", "spark.submit.")
"""Beginnings of settings that act when a JVM starts, and not afterwards"""


def redacted(conf: Mapping[str, str], default: str | None = None) -> dict[str, str]:
    """The configuration with a pattern that finds what `_MARKS` and the user's own find: the one in the configuration,
    and `default`, the one in spark-defaults.conf.
    """
    patterns = [*_patterns(conf), *filter(None, [default])]
    return {**conf, REDACTION: "|".join(f"(?:{pattern})" for pattern in patterns)}


def default_pattern() -> str | None:
    """The user's pattern in spark-defaults.conf, which the JVM of this process has read when it started."""
    from pyspark import SparkConf  # noqa: PLC0415  only with a session

    return SparkConf().get(REDACTION)


def start_jvm(conf: Mapping[str, str]) -> None:
    """Start the JVM of this process, if it has none, with a command line that has no secret. Settings that act when it
    starts must be on it: a warning names each that may be a secret. The session that is made next gives it the whole
    configuration. Raises IcepuffinError for a pattern of the user's that Python cannot read.
    """
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415  only with a session

    try:
        patterns = [re.compile(pattern) for pattern in _patterns(conf)]
    except re.error as error:
        raise IcepuffinError(f"{REDACTION} in the settings is no regular expression for Python: {error}") from error
    secret = {key for key, value in conf.items() if any(p.search(key) or p.search(value) for p in patterns)}
    shown = sorted(key for key in secret if key.startswith(_OF_THE_START))
    if shown:
        _log.warning(
            "%s: Spark takes these from the JVM's command line alone, where every user of this machine can read them",
            ", ".join(shown),
        )
    hidden = {REDACTION, *secret} - {*shown}
    public = [(key, value) for key, value in conf.items() if key not in hidden]
    with SparkContext._lock:  # noqa: SLF001
        if SparkContext._gateway is None:  # noqa: SLF001
            launched = launch_without_noise(SparkConf(loadDefaults=False).setAll(public))
            SparkContext._ensure_initialized(gateway=launched)  # noqa: SLF001


def _patterns(conf: Mapping[str, str]) -> list[str]:
    return [_MARKS, *filter(None, [conf.get(REDACTION)])]
