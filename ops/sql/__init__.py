"""SQL over tables with vector indexes: the nearest rows by an index, everything else by Spark."""

from icepuffin.ops.sql.errors import SqlError
from icepuffin.ops.sql.session import SqlResult, SqlSession

__all__ = ["SqlError", "SqlResult", "SqlSession"]
