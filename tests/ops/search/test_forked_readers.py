"""Servers open an index once and fork: a child can search, whatever other threads of its parent were doing then."""

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from icepuffin.ops.cache import shard_cache as shards
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.reader import IndexReader
from tests.conftest import ROWS, STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, index_head
from tests.patience import PATIENCE

ATTRIBUTES = replace(DEFINITION, filters=("section", "id"), include=("name",), cells="sq8", shards=1)


class Anything:
    """An object whose properties take until the test ends."""


@contextmanager
def in_every_property(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads that work out each property of a searching process, all for another object."""
    finish, waiting = threading.Event(), []

    def slowed(compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
        started = threading.Event()
        waiting.append(started)
        return lambda self: started.set() or finish.wait(PATIENCE) if isinstance(self, Anything) else compute(self)

    rooms = "cache", "filters", "process", "recall", "rows", "search", "shards"
    packages = ("icepuffin.ann_kernels", "icepuffin.puffin", *(f"icepuffin.ops.{room}" for room in rooms))
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(packages)]
    classes = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    own = [one for one in classes if one.__module__.startswith(packages)]
    properties = {value for one in own for value in vars(one).values() if isinstance(value, functools.cached_property)}
    assert len(properties) > 20
    with ThreadPoolExecutor(len(properties)) as pool:
        for one in properties:
            monkeypatch.setattr(one, "func", slowed(one.func))
            pool.submit(one.__get__, Anything())
        try:
            assert all(started.wait(PATIENCE) for started in waiting)
            yield
        finally:
            finish.set()


def searches_in_a_fork(reader: IndexReader, lock: ProcessLock, **options: Any) -> int | None:
    """The exit code of a child that searches and was forked while another thread held the lock; None: it hangs."""
    arguments = {"k": 3, "columns": ["name"], **options}
    with lock:
        child = get_context("fork").Process(target=reader.search, args=(queries(2),), kwargs=arguments)
        child.start()
        child.join(PATIENCE)
        hangs = child.is_alive()
        child.kill()
    child.join()
    return None if hangs else child.exitcode


LOCKS: dict[str, tuple[Callable[[Any], ProcessLock], dict[str, Any]]] = {
    "matches of conditions": (lambda reader: reader._pipeline.conditions.cache._lock, {"where": "id < 200"}),
    "columns of conditions": (lambda reader: reader._pipeline.conditions.attributes._lock, {"where": "id < 200"}),
    "lists of conjunctions": (
        lambda reader: reader._pipeline.conjunctions._lock,
        {"where": ["section = 'section 1'", "section = 'section 2'"]},
    ),
    "a shard that is fetched": (lambda reader: reader._choice.loaded.shards._locks[0], {"where": "id < 200"}),
    "directories of cells": (lambda reader: reader._choice.loaded.cold._opening, {}),
    "the process's cache": (lambda reader: shards._process.lock, {}),
    "rows of answers": (lambda reader: reader._pipeline._rows._lock, {"columns": ["embedding"]}),
    "included columns": (lambda reader: reader._rows._included._lock, {}),
}


@pytest.mark.parametrize("name", LOCKS)
def test_a_process_that_is_forked_while_a_thread_has_a_lock_can_search(
    table_factory: Callable[..., Table], name: str
) -> None:
    table = table_factory()
    table.append(make_rows(0, 400))
    index_head(table, ATTRIBUTES)
    lock_of, options = LOCKS[name]
    reader = open_index(table.refresh(), ATTRIBUTES, storage=STORAGE)
    assert searches_in_a_fork(reader, lock_of(reader), **options) == 0


def test_a_process_that_is_forked_while_threads_work_out_properties_can_search(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Python 3.11 those of the standard library have a lock that all objects of a class share: the child hung."""
    table = table_factory()
    table.append(make_rows(0, 400))
    index_head(table, ATTRIBUTES)
    reader = open_index(table.refresh(), ATTRIBUTES, storage=STORAGE)
    with in_every_property(monkeypatch):
        for where in ("id < 200", ["section = 'section 1'", "section = 'section 2'"]):
            assert searches_in_a_fork(reader, ProcessLock(), where=where) == 0


@pytest.mark.services
def test_a_process_that_is_forked_reads_files_of_an_object_store_that_its_parent_has_open(
    tmp_path: Path, s3: StorageConfig
) -> None:
    """With connections and threads of its own: it has none of its parent's."""
    location = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "s3://lake/forked"}
    catalog = open_catalog("forked", {"type": "sql", **location, **s3.properties})
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", ROWS, properties={"write.parquet.row-group-limit": "20"})
    for first in range(0, 160, 40):
        table.append(make_rows(first, first + 40))
    reader = open_exact(table, "embedding", "l2", storage=s3)
    reader.search(queries(4), 1, columns=["name"])
    assert searches_in_a_fork(reader, ProcessLock(), k=160) == 0
