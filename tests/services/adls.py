"""ADLS on loopback and a free port: Azurite, which signs and checks as Azure does."""

import base64
import contextlib
import hashlib
import hmac
import http.client
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from icepuffin.ops.model import StorageConfig
from tests.services.forwarding import Answer, Request, forward
from tests.services.forwarding import serving as answering
from tests.services.processes import answers, free_port, serving

SERVER = "ICEPUFFIN_ADLS_SERVER"
"""Environment variable with the path of Azurite's `azurite-blob`"""
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own, the same everywhere"""
CONTAINER = "lake"
_VERSION = "2021-08-06"


@dataclass
class Adls:
    """The server, and what happens to requests from now on."""

    uri: str = ""
    upstream: str = ""
    tokens: dict[str, float] | None = None
    """Tokens that are good, with the time at which they expire; None: those that the server itself takes"""
    refused: int = 0
    """Number of requests whose token was refused"""

    def behave(self, *, tokens: dict[str, float] | None = None) -> None:
        """From now on only `tokens` are good, until they expire."""
        self.tokens = tokens

    @property
    def endpoint(self) -> str:
        return f"{self.uri}/{ACCOUNT}"

    @property
    def storage(self) -> StorageConfig:
        text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={self.endpoint};"
        return StorageConfig({"adls.connection-string": text})

    @property
    def root(self) -> str:
        return f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net"


@contextlib.contextmanager
def adls_server(folder: Path) -> Iterator[Adls]:
    """Run the server with one container, `lake`. Skips the test where there is none; without Node.js it fails."""
    program = os.environ.get(SERVER)
    if program is None:
        pytest.skip(f"{SERVER} is not set: `make stores` sets it")
    node = shutil.which("node")
    if node is None:
        raise RuntimeError(f"{SERVER} is set, and node, which runs it, was not found")
    port, adls = free_port(), Adls()
    adls.upstream = f"http://127.0.0.1:{port}"
    data = folder / "azurite"
    # obstore and Arrow speak versions of the protocol that are newer than the server
    command = [node, program, "--blobPort", str(port), "--location", str(data), "--skipApiVersionCheck", "--silent"]
    with serving(command, lambda: answers(port), folder / "azurite.log"):
        _make_container(port)
        with answering(lambda request: _answer(adls, request)) as adls.uri:
            yield adls


def _answer(adls: Adls, request: Request) -> Answer:
    if adls.tokens is not None and _expiry(adls.tokens, request) <= time.time():
        adls.refused += 1
        text = "<?xml version='1.0'?><Error><Code>AuthenticationFailed</Code><Message>refused</Message></Error>"
        headers = (("Content-Type", "application/xml"), ("x-ms-error-code", "AuthenticationFailed"))
        return Answer(403, headers, text.encode())
    return forward(adls.upstream, request)


def _expiry(tokens: Mapping[str, float], request: Request) -> float:
    signature = parse_qs(urlsplit(request.path).query).get("sig", [""])[0]
    if not signature:
        return math.inf  # the account's key
    return next((expires for token, expires in tokens.items() if parse_qs(token)["sig"][0] == signature), 0.0)


def shared_access_signature(expires: float, container: str = CONTAINER) -> str:
    """A token that opens a container until `expires`, seconds since the epoch.

    https://learn.microsoft.com/en-us/rest/api/storageservices/create-service-sas.
    """
    until = datetime.fromtimestamp(expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    resource = f"/blob/{ACCOUNT}/{container}"
    signed = ["racwdl", "", until, resource, "", "", "", _VERSION, "c", "", "", "", "", "", "", ""]
    return urlencode({"sp": "racwdl", "se": until, "sv": _VERSION, "sr": "c", "sig": _signature("\n".join(signed))})


def _make_container(port: int) -> None:
    headers = {"x-ms-date": format_datetime(datetime.now(UTC), usegmt=True), "x-ms-version": _VERSION}
    listed = "".join(f"{key}:{value}\n" for key, value in headers.items())
    text = "PUT" + 12 * "\n" + listed + f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers |= {"Authorization": f"SharedKey {ACCOUNT}:{_signature(text)}", "Content-Length": "0"}
    connection.request("PUT", f"/{ACCOUNT}/{CONTAINER}?restype=container", headers=headers)
    status = connection.getresponse().status
    connection.close()
    assert status == 201, status


def _signature(text: str) -> str:
    return base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
