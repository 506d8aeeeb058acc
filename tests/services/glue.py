"""AWS Glue on loopback and a free port: moto, from the environment that `make catalogs` makes."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.processes import answers, free_port, serving

PYTHON = "ICEPUFFIN_CATALOG_SERVERS"
"""Environment variable with the Python of that environment"""


def catalog_servers() -> Path:
    """The Python of the environment. Skips the test where there is none."""
    python = os.environ.get(PYTHON)
    if python is None:
        pytest.skip(f"{PYTHON} is not set: `make catalogs` sets it")
    return Path(python)


@contextlib.contextmanager
def glue_catalog(folder: Path) -> Iterator[str]:
    """Run the server. Returns `glue+http://...`, as `open_lake` takes it. Skips the test where there is no moto."""
    port = free_port()
    program = Path(__file__).with_name("moto_glue.py")
    command = [str(catalog_servers()), str(program), str(port), str(folder / "tables")]
    with serving(command, lambda: answers(port), folder / "glue.log", crash=signal.SIGTERM):  # it keeps them as it ends
        yield f"glue+http://127.0.0.1:{port}"
