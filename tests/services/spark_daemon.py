"""Spark's daemon of Python workers, whose workers have all modules of tasks when they start.

A worker would take four seconds of CPU to import them, and each test file needs some new ones: Spark ends those that
had no task for a minute. After each task a worker collects garbage, in which the modules need not be looked at.

The archives leave the path, as PySpark is installed, too. Before each task Spark invalidates Python's import caches. Up
to Python 3.12 the directories of PySpark's archive and of spark-core's jar are then read again, which takes more CPU
than most tasks of the tests. Source: https://github.com/python/cpython/issues/103200.
"""

import gc
import importlib
import pkgutil
import sys

from pyspark.daemon import manager


def load() -> None:
    """Import what runs on executors, and what PySpark imports with the first task."""
    from icepuffin.ops import tasks  # noqa: PLC0415  after the path is the one of workers

    modules = [f"{tasks.__name__}.{module.name}" for module in pkgutil.iter_modules(tasks.__path__)]
    modules += [
        "icepuffin.ops.search.indexed.worker",
        "icepuffin.ops.search.exact.file_scans",
        "pandas",
        "pyarrow.parquet",
    ]
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if not path.endswith((".zip", ".jar"))]
    sys.path_importer_cache.clear()
    load()
    manager()
