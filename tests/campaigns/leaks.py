"""Commands and runs with a canary in place of each secret, some of them failing or killed, here and on Spark.

No canary may show in what they print, in Dagster's home, in the table's files, in caches, in what Spark writes to its
local disk, or on a command line. A refresh without a fault must succeed: what fails at once shows nothing.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog import Catalog

from icepuffin.ops.cache.cache_settings import DIRECTORY
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.orchestration.instance import prepare_home
from tests.campaigns.budget import BrokenPromiseError, Budget
from tests.conftest import ROWS, make_rows, queries
from tests.repository import REPOSITORY
from tests.services.processes import free_port
from tests.services.rest import rest_catalog
from tests.services.s3proxy import s3proxy

_TABLE = "db.t"
_QUERY = tuple(queries(1)[0].tolist())
_COMMANDS = (
    ("refresh", _TABLE),
    ("evaluation of the sensor",),
    ("search", _TABLE, "--vector", str(list(_QUERY)), "-k", "3"),
    ("sql", f"SELECT id FROM {_TABLE} ORDER BY l2_distance(embedding, array{_QUERY}) LIMIT 3"),
    ("stats", _TABLE),
    ("snapshots", _TABLE),
    ("plan", _TABLE),
    ("index", "show", _TABLE, "e"),
    ("index", "verify", _TABLE, "e"),
    ("gc", _TABLE),
)
_EVALUATION = """
from examples.demo.local_sensor import tick
from icepuffin.orchestration.instance import home_of, open_instance
from icepuffin.orchestration.settings import find, load
settings = load()
with open_instance(home_of(settings, find())) as instance:
    print([run.message for run in tick(settings, instance)])
"""
_FAULTS = (
    "no fault", "no fault", "no fault", "wrong key", "store away", "catalog away", "database away", "no such catalog",
    "Spark Connect away", "killed",
)  # fmt: skip
_LOOK_SECONDS = 0.05
_LONGEST_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Lake:
    """The servers of a campaign, and one table."""

    catalog: Catalog
    properties: Mapping[str, str]
    """The catalog's, without secrets"""
    secret_key: str
    """The one key that the store takes"""
    servers: tuple[Path, ...]
    """Folders of the store's objects, and of the catalog"""

    def append(self, number: int) -> None:
        """Give the table rows that only this trial has, so that there is work for it."""
        first = 300 + 20 * number
        self.catalog.load_table(_TABLE).append(make_rows(first, first + 20))


def run(budget: Budget, spark: bool | None = None) -> None:
    """Raises BrokenPromiseError. `spark`: whether runs go to Spark; by default they do in half of the trials."""
    with tempfile.TemporaryDirectory() as folder, _lake(Path(folder), f"canary0store{budget.seed}") as lake:
        for number, rng in budget.trials():
            fault = rng.choice(_FAULTS)
            lake.append(number)
            uses_spark = rng.random() < 0.5 if spark is None else spark
            trial = Trial(lake, Path(folder) / str(number), rng, fault, uses_spark)
            if leaks := trial.run():
                raise BrokenPromiseError(f"trial {number}, {' '.join(trial.command)}, {fault}: {'; '.join(leaks)}")
            if fault == "no fault" and trial.command[0] == "refresh" and trial.exit_code:
                raise BrokenPromiseError(f"trial {number}, refresh: it ended with {trial.exit_code}, without a fault")
            budget.counts[fault] += 1


@contextmanager
def _lake(folder: Path, secret_key: str) -> Iterator[Lake]:
    for name in ("s3", "rest"):
        (folder / name).mkdir()
    with s3proxy(folder / "s3", secret_key) as s3, rest_catalog(folder / "rest", s3.properties) as uri:
        public = {key: value for key, value in s3.properties.items() if key != "s3.secret-access-key"}
        properties = {"type": "rest", "uri": uri, **public}
        catalog = open_catalog("lake", {**properties, "s3.secret-access-key": secret_key})
        catalog.create_namespace("db")
        table = catalog.create_table(_TABLE, ROWS, location="s3://lake/t", properties={"format-version": "2"})
        table.append(make_rows(0, 300))
        yield Lake(catalog, properties, secret_key, (folder / "s3" / "data", folder / "rest"))


class Trial:
    """One command with secrets of its own."""

    def __init__(self, lake: Lake, folder: Path, rng: random.Random, fault: str, spark: bool) -> None:
        self._lake, self._folder, self._fault = lake, folder, fault
        self._killed_after = rng.uniform(0.5, 12.0) if fault == "killed" else _LONGEST_SECONDS
        self.command = (*rng.choice(_COMMANDS), *rng.choice(((), ("--debug",))))
        names = ("token", "header", "hadoop key", "pin", "password", "connect token")
        self._canaries = {name: f"canary0{name.replace(' ', '')}{rng.randrange(10**12)}" for name in names}
        self._canaries["secret key"] = lake.secret_key
        if fault == "wrong key":
            self._canaries["secret key"] = f"canary0wrong{rng.randrange(10**12)}"
        (folder / "spark").mkdir(parents=True)
        (folder / "settings").mkdir()
        (folder / "settings" / "icepuffin.toml").write_text(self._settings(spark), encoding="utf-8")
        self.home = prepare_home(folder / "home")
        self.exit_code = 0

    def _settings(self, spark: bool) -> str:
        properties = {**self._lake.properties, "token": "${TOKEN}", "header.X-Api-Secret": "${HEADER}"}
        properties["s3.secret-access-key"] = "${SECRET_KEY}"
        conf = {
            "spark.hadoop.fs.s3a.secret.key": "${HADOOP_KEY}",
            "spark.lake.password": "${PIN}",
            "spark.local.dir": str(self._folder / "spark"),
        }
        place = 'master = "local[2]"' if spark else 'master = ""'
        away = f"127.0.0.1:{free_port()}"
        if self._fault == "store away":
            properties["s3.endpoint"] = f"http://{away}"
        elif self._fault == "catalog away":
            properties["uri"] = f"http://user:${{PASSWORD}}@{away}"
        elif self._fault == "database away":
            uri = f"postgresql+psycopg2://user:${{PASSWORD}}@{away}/lake"
            properties = {**properties, "type": "sql", "uri": uri}
        elif self._fault == "no such catalog":
            properties["uri"] = f"htp://user:${{PASSWORD}}@{away}"
        elif self._fault == "Spark Connect away":
            place = f'remote = "sc://{away}/;token=${{CONNECT_TOKEN}}"'
        lines = ["[catalogs.lake]", *(f'{key} = "{value}"' for key, value in properties.items())]
        lines += ["[spark]", place, "driver_only_rows = 0", "[spark.conf]"]
        lines += [f'"{key}" = "{value}"' for key, value in conf.items()]
        lines += ["[tables.t]", 'catalog = "lake"', f'name = "{_TABLE}"', "retries = 0", "[tables.t.indexes.e]"]
        return "\n".join([*lines, 'column = "embedding"', 'metric = "l2"', "max_degree = 16", "search_list = 32", ""])

    def run(self) -> list[str]:
        """Run the command. Returns where a canary showed."""
        environment = {
            **os.environ,
            **{name.upper().replace(" ", "_"): value for name, value in self._canaries.items()},
            "DAGSTER_HOME": str(self.home),
            "ICEPUFFIN_SETTINGS": str(self._folder / "settings" / "icepuffin.toml"),
            "PYTHONPATH": str(REPOSITORY),
            "SPARK_LOCAL_IP": "127.0.0.1",
            DIRECTORY: str(self._folder / "cache"),
        }
        program = str(Path(sys.executable).with_name("icepuffin"))
        is_evaluation = self.command[0] == "evaluation of the sensor"
        command = [sys.executable, "-c", _EVALUATION] if is_evaluation else [program, *self.command]
        leaks: dict[str, None] = {}
        with (self._folder / "printed").open("wb") as printed:
            process = subprocess.Popen(
                command, env=environment, stdout=printed, stderr=printed, cwd=self._folder, start_new_session=True
            )
            done = threading.Event()
            watcher = threading.Thread(target=self._watch, args=(process.pid, leaks, done))
            watcher.start()
            try:
                self.exit_code = process.wait(self._killed_after)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if self._fault != "killed":
                    leaks["it did not end"] = None
            finally:
                done.set()
                watcher.join()
        for folder in (self._folder, *self._lake.servers):
            leaks |= dict.fromkeys(self._shown_in_files(folder))
        return list(leaks)

    def _watch(self, session: int, leaks: dict[str, None], done: threading.Event) -> None:
        """Look at command lines and at Spark's files while the command runs: they are gone afterwards."""
        while not done.wait(_LOOK_SECONDS):
            for line in _command_lines(session):
                leaks |= dict.fromkeys(f"{name} on a command line" for name in self._shown(line))
            leaks |= dict.fromkeys(self._shown_in_files(self._folder / "spark"))

    def _shown(self, text: bytes) -> list[str]:
        return [name for name, canary in self._canaries.items() if canary.encode() in text]

    def _shown_in_files(self, folder: Path) -> list[str]:
        shown = []
        for path in folder.rglob("*"):
            try:
                names = self._shown(path.read_bytes()) if path.is_file() else []
            except FileNotFoundError:  # Spark deletes while we look
                continue
            shown += [f"{name} in {path.relative_to(folder)}" for name in names]
        return shown


def _command_lines(session: int) -> Iterator[bytes]:
    """Command lines of a session's processes."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) == session:
                yield (folder / "cmdline").read_bytes()
        except (ProcessLookupError, FileNotFoundError):
            continue
