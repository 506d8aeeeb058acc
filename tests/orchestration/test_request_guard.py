"""What stands before Dagster's webserver."""

import asyncio
import subprocess
from typing import Any

import pytest

from icepuffin.orchestration.request_guard import (
    MODULE,
    NAME_VARIABLE,
    RequestGuard,
    _GuardedPopen,
    is_foreign,
    is_rebound,
)

FOREIGN = {"host": "127.0.0.1:3000", "sec-fetch-site": "cross-site"}


def answer(scope_type: str, **headers: str) -> list[dict[str, Any]]:
    """What an application behind the guard, or the guard itself, sends."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "passed"})

    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    server = ("127.0.0.1", 3000)
    scope = {"type": scope_type, "method": "GET", "path": "/graphql", "headers": encoded, "server": server}
    asyncio.run(RequestGuard(app)(scope, None, send))
    return sent


@pytest.mark.parametrize(
    ("request_line", "site", "mode_and_destination", "origin", "refused"),
    [
        ("POST /graphql", "same-origin", "cors", "https://lake:8443", False),
        ("GET /runs", "none", "navigate", "", False),
        ("GET /graphql", "", "", "", False),
        ("GET /graphql", "none", "navigate", "", False),
        ("GET /runs", "cross-site", "navigate", "", False),
        ("GET /runs", "cross-site", "navigate document", "", False),
        ("GET /runs", "cross-site", "navigate iframe", "", True),
        ("GET /runs", "same-site", "navigate embed", "", True),
        ("GET /runs", "same-origin", "navigate iframe", "", False),
        ("GET /graphql", "cross-site", "navigate", "", True),
        ("POST /report_asset_materialization/a", "cross-site", "navigate", "https://evil.example", True),
        ("GET /graphql", "cross-site", "no-cors", "", True),
        ("GET /runs", "cross-site", "no-cors", "", True),
        ("POST /graphql", "same-site", "cors", "https://other.lake", True),
        ("GET /graphql", "", "websocket", "https://evil.example", True),
        ("POST /graphql", "", "", "https://lake:8443.evil.example", True),
        ("POST /graphql", "same-origin", "cors", "null", True),
        ("POST /runs", "cross-site", "navigate document", "", True),
    ],
)
def test_what_pages_of_other_sites_send_is_foreign(
    request_line: str, site: str, mode_and_destination: str, origin: str, refused: bool
) -> None:
    (method, uri), (mode, _, destination) = request_line.split(), mode_and_destination.partition(" ")
    sent = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": destination, "origin": origin}
    headers = {name: value for name, value in {**sent, "host": "lake:8443"}.items() if value}
    assert is_foreign(method, uri, headers) is refused


def test_a_foreign_request_gets_403_and_reaches_nothing() -> None:
    start, body = answer("http", **FOREIGN)
    assert (start["type"], start["status"]) == ("http.response.start", 403)
    assert int(dict(start["headers"])[b"content-length"]) == len(body["body"])


def test_a_foreign_websocket_is_closed_before_it_opens() -> None:
    assert answer("websocket", **FOREIGN) == [{"type": "websocket.close", "code": 1008}]


def test_a_page_whose_name_was_made_to_resolve_to_this_machine_is_refused() -> None:
    """To its browser the UI is the page's own site, and over plain HTTP it sends no `Sec-Fetch-Site` there."""
    rebound = {"host": "evil.example:3000", "origin": "http://evil.example:3000"}
    assert answer("http", **rebound)[0]["status"] == answer("http", host="evil.example:3000")[0]["status"] == 403
    assert answer("websocket", **rebound) == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize(
    ("host", "address", "refused"),
    [
        ("localhost:8080", "127.0.0.1", False),
        ("LOCALHOST", "127.0.0.1", False),
        ("127.0.0.2:3000", "127.0.0.1", False),
        ("lake.localhost:3000", "127.0.0.1", False),
        ("[::1]:3000", "::1", False),
        ("", "127.0.0.1", False),
        ("lake:3000", "10.0.0.7", False),
        ("127.0.0.1.evil.example:3000", "127.0.0.1", True),
        ("evil-localhost:3000", "::1", True),
        ("lake:3000", "127.0.0.1", True),
    ],
)
def test_a_server_of_this_machine_alone_goes_by_names_of_this_machine(host: str, address: str, refused: bool) -> None:
    assert is_rebound(host, address) is refused


def test_a_server_without_an_address_has_no_names_of_its_own() -> None:
    scope = {"type": "http", "path": "/runs", "headers": [], "server": None}
    assert not RequestGuard._is_refused(scope, {"host": "lake:3000"})


def test_a_proxy_of_this_machine_has_the_name_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME_VARIABLE, "lake.example")
    assert not is_rebound("lake.example:8443", "127.0.0.1")
    assert is_rebound("evil.example:8443", "127.0.0.1")


@pytest.mark.parametrize("scope_type", ["http", "websocket"])
@pytest.mark.parametrize("origin", ["http://127.0.0.1:3000", "https://127.0.0.1:3000", ""])
def test_what_the_ui_itself_sends_passes(scope_type: str, origin: str) -> None:
    headers = {**FOREIGN, "sec-fetch-site": "same-origin", "origin": origin}
    assert answer(scope_type, **headers) == answer(scope_type) == answer("lifespan") == [{"type": "passed"}]


def test_dagster_dev_starts_the_guarded_webserver_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess.Popen, "__init__", lambda _, args, **__: started.append(args))
    monkeypatch.setattr(_GuardedPopen, "has_webserver", False)
    code_server, daemon = (["python", "-m", module, "start"] for module in ("dagster", "dagster.daemon"))
    _GuardedPopen(code_server)
    with pytest.raises(RuntimeError, match="no guard is before it"):
        _GuardedPopen(daemon)
    _GuardedPopen(["python", "-m", "dagster_webserver", "--port", "3000"])
    _GuardedPopen(daemon)
    assert started == [code_server, ["python", "-m", MODULE, "webserver", "--port", "3000"], daemon]
