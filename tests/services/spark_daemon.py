"""Spark's daemon of Python workers, without the archives on its path: PySpark is installed, too.

Before each task Spark invalidates Python's import caches. Up to Python 3.12 the directories of PySpark's archive and of
spark-core's jar are then read again, which takes more CPU than most tasks of the tests.
Source: https://github.com/python/cpython/issues/103200.
"""

import sys

from pyspark.daemon import manager

if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if not path.endswith((".zip", ".jar"))]
    sys.path_importer_cache.clear()
    manager()
