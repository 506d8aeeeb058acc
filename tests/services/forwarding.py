"""A server on loopback that stands in front of another, and may answer in its stead."""

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_NOT_SENT = ("connection", "expect", "transfer-encoding", "content-length")
_HOP_BY_HOP = ("transfer-encoding", "content-length", "connection", "content-encoding")


@dataclass(frozen=True)
class Request:
    """One request as it came."""

    method: str
    path: str
    """With what follows `?`"""
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What is sent back."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def with_body(self, body: bytes) -> "Answer":
        return replace(self, body=body)


def forward(upstream: str, request: Request) -> Answer:
    """What the server at `upstream` answers."""
    connection = http.client.HTTPConnection(urlsplit(upstream).netloc, timeout=60)
    kept = {key: value for key, value in request.headers.items() if key.lower() not in _NOT_SENT}
    connection.request(request.method, request.path, request.body, kept)  # Host as it was: S3's signatures cover it
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return Answer(answer.status, tuple(answer.getheaders()), data)


@contextlib.contextmanager
def serving(answer: Callable[[Request], Answer | None], port: int = 0) -> Iterator[str]:
    """Serve while the block lasts, at a free port unless one is given. Returns the address. No answer: the connection
    is closed.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # a body is sent after its head: else it waits 40 ms until that is acknowledged

        def handle_any(self) -> None:
            body = self._chunks() if "chunked" in self.headers.get("Transfer-Encoding", "") else self._whole()
            result = answer(Request(self.command, self.path, dict(self.headers.items()), body))
            if result is None:
                self.close_connection = True
                return
            self.send_response(result.status)
            for key, value in result.headers:
                if key.lower() not in _HOP_BY_HOP:
                    self.send_header(key, value)
            # to a HEAD the length is that of what a GET would get
            lengths = (value for key, value in result.headers if key.lower() == "content-length")
            length = next(lengths, None) if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(result.body)))
            self.end_headers()
            if self.command != "HEAD":
                with contextlib.suppress(ConnectionError):  # a client may have seen enough
                    self.wfile.write(result.body)

        def _whole(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _chunks(self) -> bytes:
            data = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any  # noqa: N815  the names that http.server calls

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
