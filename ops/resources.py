"""Dagster resources: the catalogs, and the engine of heavy work.

Both are plain objects, not `ConfigurableResource`s: Dagster stores configuration with each run and shows it in the UI,
and these hold secrets. The run process builds them again from the settings.
"""

import os
import re
import shutil
import sys
import threading
import time
import zlib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from icepuffin.ops.catalog.connection import failure, names_that_have, open_catalog, require_database
from icepuffin.ops.catalog.read_restrictions import require_unrestricted
from icepuffin.ops.catalog.redaction import other_reason, without_values
from icepuffin.ops.catalog.time_limits import answering_within
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.errors import CatalogUnavailableError, IcepuffinError, TableStateError, UnreachableError
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.blob_kind import SCRATCH_TABLES
from icepuffin.ops.table.format_versions import invalid_field, unsupported_format
from icepuffin.ops.table.snapshots import rows_in_files

if TYPE_CHECKING:
    from icepuffin.ops.tasks.task_runner import RunContext, TaskRunner


POLL_SECONDS = 4.0
"""Longest wait of a poll for a connection, and for each answer"""
AWAY_SECONDS = 20.0
"""Seconds without an answer after which a server counts as away"""

_STATUSES_OF_CATALOGS = frozenset({401, 407, 408, 419, 429, 502, 503, 504})
"""Statuses of HTTP by which a catalog, or what stands before it, refuses every table alike"""
_FAULTS_IN_METADATA = (
    ArithmeticError, AttributeError, EOFError, LookupError, RecursionError, TypeError, ValueError, zlib.error,
)  # fmt: skip
"""Errors of parsers, of which the cause is what they read"""
_LOCAL_MASTER = re.compile(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?")
_JVM_MEMORY = re.compile(r"(\d+)([kmgt])b?")
_MIB_OF = {"k": 2**-10, "m": 1, "g": 2**10, "t": 2**20}
_JVM_OVERHEAD_MB = 384
"""Least memory of a JVM beside its heap, as Spark has it on Kubernetes and YARN"""


class CatalogUnreachableError(CatalogUnavailableError):
    """The catalog was opened before and does not answer now."""


class LateAnswerError(CatalogUnreachableError):
    """The catalog was reached, and the answer about a table did not come in time."""


class UnreadableTableError(CatalogUnreachableError):
    """The catalog answers, and does not give this table, or gives one whose metadata cannot be read."""


class TableMissingError(TableStateError):
    """The catalog answers, and has no such table."""


class NoSparkError(UnreachableError):
    """Something was to run on Spark, and the settings have none, or it cannot be started here."""


class NoJavaError(NoSparkError):
    """This machine has no Java to start Spark with."""

    retryable = False


def _has_java() -> bool:
    """Whether Spark's scripts find a Java, unless they set a JAVA_HOME of their own."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java" if home is None else f"{home}/bin/java") is not None


def is_pattern(name: str) -> bool:
    """Whether the name of a table stands for all tables that match it."""
    return any(letter in name for letter in "*?[")


def is_named_by(table: str, entry: str) -> bool:
    """Whether an entry of the settings, a table's name or a pattern, stands for the table."""
    (namespace, _, name), (namespace_of_pattern, _, pattern) = table.rpartition("."), entry.rpartition(".")
    return table == entry or (namespace == namespace_of_pattern and _is_match(name, pattern))


def _is_match(name: str, pattern: str) -> bool:
    """Whether a name in a namespace is one of those of the pattern; our own scratch tables never are."""
    return not name.startswith(SCRATCH_TABLES) and fnmatchcase(name, pattern)


def _remedy(catalog: Catalog, identifier: str) -> str:
    """What to do about a table that a catalog has not."""
    if names := names_that_have(catalog, identifier):
        return (
            f"its database has it for catalog {' and '.join(names)}: an SQL catalog keeps tables by its own name, so "
            "name it as whoever made the table did"
        )
    return "check the name, or create the table and try again"


class Catalogs:
    """The Iceberg catalogs of the settings, opened when first used."""

    def __init__(self, properties: Mapping[str, Mapping[str, str]]) -> None:
        self._properties = {name: dict(items) for name, items in properties.items()}
        self._opened: dict[str, Catalog] = {}
        self._opening = threading.Lock()
        self._away: dict[str, tuple[float, CatalogUnavailableError]] = {}
        """Time of the last call that failed, and its error, by catalog, and by `catalog.namespace.table`"""
        self._late: dict[str, str] = {}
        """Table that a catalog was late for, and has given no other since, by catalog"""

    def __repr__(self) -> str:
        return f"Catalogs({', '.join(sorted(self._properties))})"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._properties)

    def catalog(self, name: str) -> Catalog:
        """Open `name`. Raises CatalogUnavailableError, which says what to check."""
        if name not in self._properties:
            raise IcepuffinError(
                f"no catalog '{name}' in the settings; there is: {', '.join(sorted(self._properties))}"
            )
        with self._opening:
            if name not in self._opened:
                require_database(name, self._properties[name])
                self._opened[name] = open_catalog(name, self._properties[name])
            return self._opened[name]

    def table(self, catalog: str, identifier: str) -> Table:
        """Load `namespace.table`, fresh from the catalog.

        Raises TableMissingError, UnsupportedFormatError or CatalogUnavailableError.
        """
        if "." not in identifier:
            raise TableMissingError(f"{catalog}: '{identifier}' names no table; write namespace.table")
        try:
            table = self.catalog(catalog).load_table(identifier)
            require_unrestricted(table)
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            reason = other_reason(error, self._properties[catalog])
            raise TableMissingError(
                f"{catalog}: there is no table {identifier}{reason}; {_remedy(self.catalog(catalog), identifier)}"
            ) from without_values(error, self._properties[catalog])
        except IcepuffinError:
            raise
        except Exception as error:
            if (unsupported := unsupported_format(f"{catalog}: {identifier}", error)) is not None:
                raise unsupported from None
            unreachable = self._unreachable(catalog, identifier, error)
            if not isinstance(unreachable, UnreadableTableError):
                self._opened.pop(catalog, None)
            raise unreachable from without_values(error, self._properties[catalog])
        return table

    def poll(self, catalog: str, identifier: str) -> Table:
        """Load a table as `table` does, for callers that load many tables again and again. Gives up within seconds, and
        calls a catalog that did not answer only every 20 s; in between it raises the same error without a call. A table
        that alone cannot be read, or that the catalog alone is late for, as for a long history, keeps no other from
        being loaded.
        """
        of_table = f"{catalog}.{identifier}"
        for key in (catalog, of_table):
            since, away = self._away.get(key, (float("-inf"), None))
            if away is not None and time.monotonic() - since < AWAY_SECONDS:
                raise type(away)(str(away))
        try:
            with answering_within(POLL_SECONDS):
                table = self.table(catalog, identifier)
        except CatalogUnavailableError as error:
            is_alone = isinstance(error, UnreadableTableError) or (
                isinstance(error, LateAnswerError) and self._late.setdefault(catalog, identifier) == identifier
            )
            self._away[of_table if is_alone else catalog] = (time.monotonic(), error)
            raise
        self._late.pop(catalog, None)
        for key in (catalog, of_table):
            self._away.pop(key, None)
        return table

    def matching(self, catalog: str, pattern: str) -> tuple[str, ...]:
        """Names of the tables that match `namespace.pattern`, sorted: `*`, `?` and `[...]` stand for letters, as in a
        shell. Raises TableMissingError or CatalogUnavailableError.
        """
        namespace, _, name = pattern.rpartition(".")
        if is_pattern(namespace):
            raise TableMissingError(f"{catalog}: '{pattern}' has a wildcard in the namespace; write namespace.*")
        try:
            with answering_within(POLL_SECONDS):
                listed = self.catalog(catalog).list_tables(namespace)
        except NoSuchNamespaceError as error:
            raise TableMissingError(f"{catalog}: there is no namespace {namespace}; check the name") from error
        except IcepuffinError:
            raise
        except Exception as error:
            self._opened.pop(catalog, None)
            raise self._unreachable(catalog, pattern, error) from without_values(error, self._properties[catalog])
        return tuple(sorted(".".join(path) for path in listed if _is_match(path[-1], name)))

    def _unreachable(self, name: str, identifier: str, error: Exception) -> CatalogUnreachableError:
        from requests.exceptions import RequestException  # noqa: PLC0415  only where something failed

        if isinstance(error, OSError) and not isinstance(error, RequestException | ConnectionError | TimeoutError):
            cause = str(without_values(Exception(str(error)), self._properties[name])).partition(": ")[2]
            return UnreadableTableError(
                f"catalog '{name}' has {identifier}, and its metadata file cannot be read: {cause.splitlines()[0]}. "
                "Check that the file is there, that its store is up, and that the catalog's settings have those of the "
                "store. Nothing was changed"
            )
        if field := invalid_field(error):
            return UnreadableTableError(
                f"catalog '{name}' has {identifier}, and its metadata is invalid: {field}. Have its last writer mend "
                "it; other tables are not affected. Nothing was changed"
            )
        cause = failure(name, self._properties[name], error, quoting=True)
        if _is_about_the_table(error):
            return UnreadableTableError(
                f"catalog '{name}' answers, and does not give {identifier}: {cause}; check the table, and the rights "
                "of the user in the catalog's settings. Nothing was changed"
            )
        kind = LateAnswerError if _is_late(error) else CatalogUnreachableError
        return kind(
            f"catalog '{name}' does not answer: {cause}; "
            "check that it runs and that its settings are right. Nothing was changed"
        )


def _is_late(error: Exception) -> bool:
    """Whether a catalog was reached and no answer came in time, or a gateway says so."""
    from requests.exceptions import HTTPError, ReadTimeout  # noqa: PLC0415  only where something failed

    cause = error.__cause__
    status = cause.response.status_code if isinstance(cause, HTTPError) and cause.response is not None else 0
    return isinstance(error, ReadTimeout) or status == HTTPStatus.GATEWAY_TIMEOUT


def _is_about_the_table(error: Exception) -> bool:
    """Whether a catalog has answered, and the answer is about one table: it is refused, or its metadata is invalid.

    A catalog that is away, refuses its user, or is called too often, fails for every table.
    """
    from pyiceberg.exceptions import ValidationError  # noqa: PLC0415  only where something failed
    from requests.exceptions import HTTPError, RequestException  # noqa: PLC0415

    cause = error.__cause__ if isinstance(error.__cause__, HTTPError) else error
    if isinstance(cause, HTTPError) and cause.response is not None:
        return cause.response.status_code not in _STATUSES_OF_CATALOGS
    return isinstance(error, (*_FAULTS_IN_METADATA, ValidationError)) and not isinstance(error, RequestException)


class Engine:
    """Where tasks run: threads of this process for small tables, Spark for the rest.

    `spark_conf` holds `spark.master` or `spark.remote` and everything else of the session; empty = never Spark.
    A table of fewer than `driver_only_rows` rows is built in this process: a Spark job would only add its start-up.
    `resource` is a project's own, of dagster_pyspark, whose session is used; `spark_conf` is its configuration then.
    """

    def __init__(
        self, *, spark_conf: Mapping[str, str], threads: int, driver_only_rows: int, resource: Any = None
    ) -> None:
        self._spark_conf = dict(spark_conf)
        self._resource = resource
        self.threads = threads
        self.driver_only_rows = driver_only_rows

    def __repr__(self) -> str:
        remote = urlsplit(self._remote)  # its path has parameters, a token among them
        where = f"sc://{remote.hostname}" if remote.hostname else self._spark_conf.get("spark.master", "no Spark")
        return f"Engine({where}, {self.threads} threads, driver only under {self.driver_only_rows} rows)"

    def uses_spark(self, rows: int) -> bool:
        return bool(self._spark_conf) and rows >= self.driver_only_rows

    @property
    def local_tasks(self) -> int:
        """Spark tasks that run at a time on the machine of the driver: n of `local[n]`; 0 where Spark is elsewhere."""
        master = "" if self._remote else self._spark_conf.get("spark.master", "")
        local = _LOCAL_MASTER.fullmatch(master)
        if local is None:
            return 0
        threads = local[1] or "1"
        return os.cpu_count() or 1 if threads == "*" else int(threads)

    @property
    def jvm_mb(self) -> int:
        """Memory in MiB of the driver's JVM, heap and overhead as Spark counts them; 0 where it runs elsewhere."""
        if self._remote or not self._spark_conf:
            return 0
        written = _JVM_MEMORY.fullmatch(self._spark_conf.get("spark.driver.memory", "1g").strip().lower())
        heap = int(written[1]) * _MIB_OF[written[2]] if written else _MIB_OF["g"]
        return round(heap + max(_JVM_OVERHEAD_MB, heap / 10))

    def runner(self, rows: int) -> "TaskRunner":
        """The runner for a table of `rows` rows. A Spark session starts with its first task, not before."""
        from icepuffin.ops.tasks.task_runner import LocalRunner  # noqa: PLC0415  pyspark only where it is used

        return self.spark_runner() if self.uses_spark(rows) else LocalRunner(self.threads)

    def run_on(self, table: Table, snapshot_id: SnapshotId | None, ref: str = "main") -> "RunContext":
        """A run for a snapshot of a table, whose tags follow `ref`, with the runner for so many rows."""
        from icepuffin.ops.tasks.task_runner import RunContext  # noqa: PLC0415  as above

        rows = 0 if snapshot_id is None else rows_in_files(table, snapshot_id)
        return RunContext(table, storage_of(table), self.runner(rows), ref=ref)

    def spark_runner(self) -> "TaskRunner":
        """The runner on Spark, whatever the table's size. Raises NoSparkError where none is set."""
        from icepuffin.ops.spark.spark_runner import SparkRunner  # noqa: PLC0415

        if not self._spark_conf:
            raise NoSparkError("no Spark is set: give master or remote in the settings of Spark, or leave --spark out")
        return SparkRunner(lambda: self.session)

    def _without_secrets(self, error: Exception) -> Exception:
        """The error without values of the configuration, and without the parts of Spark Connect's URL but the host."""
        shown = urlsplit(self._remote).netloc.rpartition("@")[2]
        secret = [part for part in re.split(r"[;=/@]", self._remote)[1:] if part != shown]
        parts = {f"spark.remote {number}": part for number, part in enumerate(secret)}
        return without_values(error, {**self._spark_conf, **parts})

    @property
    def _remote(self) -> str:
        return self._spark_conf.get("spark.remote", "")

    def _require_server(self) -> None:
        """Raises NoSparkError where no Spark Connect server answers: Spark's own client would try for ten minutes."""
        from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415  with an error if grpc is missing

        builder = DefaultChannelBuilder(self._remote)
        from grpc import FutureTimeoutError, channel_ready_future  # noqa: PLC0415

        with builder.toChannel() as channel:
            try:
                channel_ready_future(channel).result(AWAY_SECONDS)
            except FutureTimeoutError:
                raise NoSparkError(
                    f"Spark Connect at {builder.endpoint} did not answer in {AWAY_SECONDS:g} s: "
                    "check that it runs, and remote in the settings of Spark"
                ) from None

    @cached_property
    def session(self) -> Any:
        """The Spark session, started at the first use. Raises NoSparkError where it does not start."""
        from dagster_pyspark import LazyPySparkResource  # noqa: PLC0415  imports pyspark
        from pyspark.errors import PySparkException, PySparkRuntimeError  # noqa: PLC0415

        from icepuffin.ops.spark.secret_settings import default_pattern, redacted, start_jvm  # noqa: PLC0415

        if self._resource is None:
            # Executors take `python3` from PATH by default; speculation would write attempts in vain.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        conf = {"spark.app.name": "icepuffin", "spark.speculation": "false", **self._spark_conf}
        try:
            if self._remote:
                self._require_server()
            elif self._resource is None:
                # Tasks carry credentials, and lie on Spark's local disks until the session ends.
                conf = {"spark.io.encryption.enabled": "true", **conf}
                if conf.get("spark.master", "").startswith("local"):
                    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark warns of many hosts' names
                start_jvm(conf)
                conf = redacted(conf, default_pattern())
            return (self._resource or LazyPySparkResource(spark_config=conf)).spark_session
        except PySparkException as error:
            if not isinstance(error, PySparkRuntimeError) or error.getCondition() != "JAVA_GATEWAY_EXITED":
                cause = self._without_secrets(error)
                raise NoSparkError(f"Spark did not start, by the settings of Spark: {cause}") from cause
            raise (NoSparkError if _has_java() else NoJavaError)(
                "Spark did not start: it needs Java 17 or 21 (set JAVA_HOME, or put java on the PATH); its own message "
                'is above. In the settings of Spark, master = "" is to work without it'
            ) from error
