"""GCS on loopback and a free port: fake-gcs-server, behind `gcs_xml.py`."""

import contextlib
import http.client
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from icepuffin.ops.model import StorageConfig
from tests.services.processes import answers, free_port, serving

SERVER = "ICEPUFFIN_GCS_SERVER"
"""Environment variable with the path of fake-gcs-server"""
BUCKET = "lake"


@dataclass(frozen=True)
class Gcs:
    """The server."""

    uri: str
    upstream: str
    state: Path
    """File that says what happens to requests"""

    @property
    def storage(self) -> StorageConfig:
        return StorageConfig({"gcs.service.host": self.uri, "gcs.oauth2.token": "anything"})

    @property
    def root(self) -> str:
        return f"gs://{BUCKET}"

    @property
    def refused(self) -> int:
        """Number of requests whose token was refused."""
        log = self.state.with_suffix(".refused")
        return len(log.read_text().splitlines()) if log.exists() else 0

    def behave(self, *, page: int = 1000, tokens: dict[str, float] | None = None) -> None:
        """From now on a listing has `page` objects per answer, and only `tokens` are good, until they expire."""
        written = self.state.with_suffix(".new")
        written.write_text(json.dumps({"uri": self.uri, "upstream": self.upstream, "page": page, "tokens": tokens}))
        written.replace(self.state)


@contextlib.contextmanager
def gcs_server(folder: Path) -> Iterator[Gcs]:
    """Run the server with one bucket, `lake`. Skips the test where there is none."""
    program = os.environ.get(SERVER)
    if program is None:
        pytest.skip(f"{SERVER} is not set: `make stores` sets it")
    inner, outer = free_port(), free_port()
    gcs = Gcs(f"http://127.0.0.1:{outer}", f"http://127.0.0.1:{inner}", folder / "gcs.json")
    gcs.behave()
    server = [program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(inner), "-backend", "memory"]
    server += ["-external-url", gcs.uri, "-public-host", urlsplit(gcs.uri).netloc, "-log-level", "error"]
    front = [sys.executable, "-m", "tests.services.gcs_xml", str(outer), str(gcs.state)]
    with (
        serving(server, lambda: answers(inner), folder / "gcs.log"),
        serving(front, lambda: answers(outer), folder / "gcs_xml.log"),
    ):
        _make_bucket(inner)
        yield gcs


def _make_bucket(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/storage/v1/b?project=tests", json.dumps({"name": BUCKET}))
    status = connection.getresponse().status
    connection.close()
    assert status == 200, status
