"""AWS Glue on loopback and a free port: moto, from the environment that `make catalogs` makes."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.processes import answers, free_port, serving

PYTHON = "ICEPUFFIN_CATALOG_SERVERS"
"""Environment variable with the Python of that environment"""


@contextlib.contextmanager
def glue_catalog(folder: Path) -> Iterator[str]:
    """Run the server. Returns `glue+http://...`, as `open_lake` takes it. Skips the test where there is no moto."""
    python = os.environ.get(PYTHON)
    if python is None:
        pytest.skip(f"{PYTHON} is not set: `make catalogs` sets it")
    port = free_port()
    command = [python, str(Path(__file__).with_name("moto_glue.py")), str(port)]
    with serving(command, lambda: answers(port), folder / "glue.log"):
        yield f"glue+http://127.0.0.1:{port}"
