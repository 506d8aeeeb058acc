"""Dagster's webserver with a guard before it: what pages of other sites make a browser send is refused.

The webserver obeys a mutation, by GET too, whichever page it comes from. Run as a program, this is `dagster dev` whose
webserver has the guard; with `webserver` before other arguments it is `dagster-webserver` with the guard.
"""

import os
import re
import runpy
import subprocess
import sys
import warnings
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

MODULE = "icepuffin.orchestration.request_guard"
"""Name by which Python runs this program"""
NAME_VARIABLE = "ICEPUFFIN_UI_NAME"
"""Environment variable with the name that browsers have for a proxy of this machine"""
_WEBSERVER = "webserver"
"""Word that makes this program the webserver alone"""
_ORDERS = re.compile("/(graphql|report_)")
"""Paths of the webserver that are no pages"""
_OWN_NAMES = re.compile(r"(.+\.)?localhost|127(\.[0-9]{1,3}){3}|\[?::1\]?", re.IGNORECASE)
"""Names and addresses that are this machine's wherever they are used"""
_PORT = re.compile(":[0-9]*$")
"""The port in a Host"""


def is_foreign(method: str, path: str, headers: Mapping[str, str]) -> bool:
    """Whether a page of another site made a browser send the request. A link to a page of the UI passes, but not into a
    frame, in which clicks would be the other page's; and so does what names no page: it is of no browser.
    `headers`: by their names in lower case.
    """
    host, origin = headers.get("host", ""), headers.get("origin", "")
    if origin not in ("", f"http://{host}", f"https://{host}"):
        return True
    if headers.get("sec-fetch-site", "") in ("", "same-origin", "none"):
        return False
    is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest", "document") == "document"
    return not (is_link and method == "GET" and not _ORDERS.match(path))


def is_rebound(host: str, address: str) -> bool:
    """Whether a request to an address of this machine alone names another one, as that of a page whose site's name was
    made to resolve to this machine. The browser takes both for one site. `host`: the header, empty where there is none.
    """
    name = _PORT.sub("", host)
    is_named = bool(_OWN_NAMES.fullmatch(name)) or name == os.environ.get(NAME_VARIABLE)
    return bool(host) and bool(_OWN_NAMES.fullmatch(address)) and not is_named


class RequestGuard:
    """An ASGI application that answers foreign requests with 403, and gives all others to `app`."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope.get("headers", ())}
        if scope["type"] == "lifespan" or not self._is_refused(scope, headers):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            text = b"refused: a page of another site sent this request, or its Host is not localhost\n"
            start = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(text))]
            await send({"type": "http.response.start", "status": int(HTTPStatus.FORBIDDEN), "headers": start})
            await send({"type": "http.response.body", "body": text})

    @staticmethod
    def _is_refused(scope: Any, headers: Mapping[str, str]) -> bool:
        address, _ = scope.get("server") or ("", None)
        is_other = is_rebound(headers.get("host", ""), address)
        return is_other or is_foreign(scope.get("method", "GET"), scope["path"], headers)


def _serve() -> None:
    """Dagster's webserver, by its own command line, with the guard."""
    from dagster_webserver import cli, webserver  # noqa: PLC0415  in an extra of its own
    from starlette.middleware import Middleware  # noqa: PLC0415

    served: Any = webserver.DagsterWebserver
    build, main = served.build_middleware, cast("Any", cli).main
    served.build_middleware = lambda self: [Middleware(RequestGuard), *build(self)]
    main()


class _GuardedPopen(subprocess.Popen[Any]):
    """A process that `dagster dev` starts: where it is the webserver, this program in its place."""

    has_webserver = False

    def __init__(self, args: Any, **options: Any) -> None:
        module = args[2] if list(args[1:2]) == ["-m"] else ""
        if module == "dagster_webserver":
            _GuardedPopen.has_webserver = True
            args = [args[0], "-m", MODULE, _WEBSERVER, *args[3:]]
        elif module.endswith("daemon") and not self.has_webserver:
            raise RuntimeError("this release of Dagster starts its webserver in another way: no guard is before it")
        super().__init__(args, **options)


def _develop() -> None:
    """`dagster dev`, which starts this program where it would start its webserver."""
    program = str(Path(sys.executable).with_name("dagster"))
    sys.argv = [program, "dev", *sys.argv[1:]]
    warnings.filterwarnings("ignore", "Function `dev_command` is superseded")  # `dg dev` wants a project
    cast("Any", subprocess).Popen = _GuardedPopen
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1:2] == [_WEBSERVER]:
        del sys.argv[1]
        _serve()
    else:
        _develop()
