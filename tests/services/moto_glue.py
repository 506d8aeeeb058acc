"""AWS Glue's data catalog as moto serves it, with the version check of the real one: `python moto_glue.py PORT FILE`.

moto takes every UpdateTable; Glue refuses one whose VersionId is not the table's. moto forgets everything; here its
tables are in a file when it ends, and there again when it starts. Runs in an environment of its own,
and imports nothing of icepuffin.
"""

import atexit
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID  # type: ignore[import-not-found]
from moto.glue.exceptions import GlueClientError  # type: ignore[import-not-found]
from moto.glue.models import glue_backends  # type: ignore[import-not-found]
from moto.glue.responses import GlueResponse  # type: ignore[import-not-found]
from moto.server import main  # type: ignore[import-not-found]

_lock = threading.Lock()
_update_table = GlueResponse.update_table


def update_table(response: Any) -> Any:
    """https://docs.aws.amazon.com/glue/latest/webapi/API_UpdateTable.html, VersionId."""
    expected = response.parameters.get("VersionId")
    with _lock:
        name = response.parameters["TableInput"]["Name"]
        table = response.glue_backend.get_table(response.parameters["DatabaseName"], name)
        if expected is not None and expected != table.as_dict()["VersionId"]:
            raise GlueClientError("ConcurrentModificationException", f"{name} is not at version {expected}")
        return _update_table(response)


def keep(databases: dict[str, Any], file: Path) -> None:
    """No table changes afterwards."""
    _lock.acquire()
    file.write_bytes(pickle.dumps(databases))


if __name__ == "__main__":
    GlueResponse.update_table = update_table
    tables, kept = glue_backends[DEFAULT_ACCOUNT_ID]["us-east-1"].databases, Path(sys.argv[2])
    if kept.exists():
        tables.update(pickle.loads(kept.read_bytes()))  # noqa: S301  written by this program
    atexit.register(keep, tables, kept)
    main(["-H", "127.0.0.1", "-p", sys.argv[1]])
