"""SQL over tables with vector indexes: the nearest rows by an index, everything else by Spark."""

from typing import TYPE_CHECKING

from icepuffin.ops.imports import lazy_exports

if TYPE_CHECKING:
    from icepuffin.ops.sql.errors import SqlError
    from icepuffin.ops.sql.sql_session import SqlResult, SqlSession
else:
    __getattr__ = lazy_exports(__name__, {"errors": "SqlError", "sql_session": "SqlResult SqlSession"})

__all__ = ["SqlError", "SqlResult", "SqlSession"]
