"""Catalogs for a crowd: how clients reach each, and what goes wrong there."""

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from icepuffin.ops.catalog import connection
from tests.services.glue import glue_catalog
from tests.services.hive import hive_metastore
from tests.services.postgres import postgres, uri
from tests.services.processes import RUNNING
from tests.services.rest import rest_catalog
from tests.services.wire import Fault, Wire, wire_to

CATALOGS = ("sqlite", "postgres", "rest", "hive", "glue")
_CHANCES: Mapping[Fault, float] = {"lost requests": 0.02, "lost answers": 0.02, "delays": 0.05}
_CHANCES_OF_HIVE: Mapping[Fault, float] = {"lost requests": 0.005, "lost answers": 0.005, "delays": 0.05}
"""Each of the others may leave a lock, for which all wait"""
_BUSY_TIMEOUT_MS = 1_000
"""SQLite's: shorter than a lock is held"""
_LOCK_SECONDS = 10
"""After which Hive takes the lock of a client that has died"""
_LOCKS_OF_HIVE = {"lock-check-max-wait-time": "0.3", "lock-check-retries": "40"}
"""Settings of PyIceberg, which else looks four times, and waits up to a minute in between"""
_HOLDER = """
import sqlite3, sys, time
holder = sqlite3.connect(sys.argv[1], timeout=60)
holder.execute("PRAGMA cache_size = 1")
holder.execute("BEGIN IMMEDIATE")
newest = "(SELECT max(rowid) FROM iceberg_tables)"
holder.execute(f"UPDATE iceberg_tables SET metadata_location = hex(randomblob(1000000)) WHERE rowid = {newest}")
print("holds", flush=True)
time.sleep(600)
"""
"""A client in a transaction that spoils the newest table, and reaches the disk before its end"""


@dataclass(frozen=True)
class Site:
    """One catalog."""

    address: str
    """Address for `open_lake`"""
    wire: Wire | None
    """What lies between the clients and a server"""
    trouble: str
    make_trouble: Callable[[float], None]
    """Function that takes some seconds longer than it is told"""
    chances: Mapping[Fault, float] = field(default_factory=lambda: _CHANCES)
    refreshers: int = 16
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of PyIceberg's catalog"""
    settings_of_users: Mapping[str, Any] = field(default_factory=dict)
    """Further ones of those who write by PyIceberg alone"""

    @contextmanager
    def on_a_bad_day(self, rng: random.Random, happened: Counter[str]) -> Iterator[None]:
        """Requests of the block meet faults, which are counted."""
        if self.wire is None:
            yield
            return
        self.wire.rng, self.wire.happened = random.Random(rng.random()), happened
        self.wire.chances = self.chances
        try:
            yield
        finally:
            self.wire.chances = {}


@contextmanager
def open_site(catalog: str, folder: Path) -> Iterator[Site]:
    if catalog == "sqlite":
        database = folder / "catalog.db"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection, "_BUSY_TIMEOUT_MS", _BUSY_TIMEOUT_MS)
            yield Site(f"sqlite:///{database}", None, "clients killed in a transaction", partial(_hold, database))
        return
    with _server(catalog, folder) as address:
        port = urlsplit(address).port or 0
        with wire_to(port) as wire:
            site = Site(address.replace(f":{port}", f":{wire.port}"), wire, "crashes of the server", _crash)
            if catalog == "hive":  # one commit at a time, of a second each
                site = replace(site, chances=_CHANCES_OF_HIVE, refreshers=3, settings=_LOCKS_OF_HIVE)
            if catalog == "glue":  # where boto3 repeats their writes, PyIceberg breaks tables: test_other_catalogs.py
                site = replace(site, settings_of_users={"glue.max-retries": 0})
            yield site


@contextmanager
def _server(catalog: str, folder: Path) -> Iterator[str]:
    if catalog == "postgres":
        with postgres() as port:
            yield uri(port)
        return
    (folder / "server").mkdir()
    serve = {
        "glue": glue_catalog,
        "hive": partial(hive_metastore, lock_seconds=_LOCK_SECONDS),
        "rest": partial(rest_catalog, s3={}),
    }[catalog]
    with serve(folder / "server") as address:
        yield address


def _crash(seconds: float) -> None:
    time.sleep(seconds)
    RUNNING[-1].restart()


def _hold(database: Path, seconds: float) -> None:
    """Keep others from writing, by a process that is killed before it commits."""
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(database)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holds\n"
        time.sleep(seconds)
        holder.kill()
