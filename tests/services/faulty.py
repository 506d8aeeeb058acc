"""A proxy on loopback in front of an HTTP server, that loses requests or answers as told."""

import contextlib
import http.client
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Fault = Literal["lose answer", "lose request", "gateway timeout", "gateway timeout after", "hang"]


@dataclass
class FaultyLine:
    """What happens to the next requests of a method whose path ends in `/<name>`: one fault each, then none."""

    uri: str
    name: str = ""
    method: str = "POST"
    faults: deque[Fault] = field(default_factory=deque)
    released: threading.Event = field(default_factory=threading.Event)
    """Set when those that hang may go"""

    def next_fault(self, method: str, path: str) -> Fault | None:
        wanted = method == self.method and self.name and path.split("?", maxsplit=1)[0].endswith(f"/{self.name}")
        return self.faults.popleft() if wanted and self.faults else None


@contextlib.contextmanager
def faulty_line(upstream: str) -> Iterator[FaultyLine]:
    """Serve `upstream` at another address while the block lasts."""
    address = urlsplit(upstream)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = line.next_fault(self.command, self.path)
            if fault == "hang":
                line.released.wait(60)
            if fault in ("hang", "lose request"):
                self.close_connection = True
                return
            if fault == "gateway timeout":
                self.send_error(504)
                return
            connection = http.client.HTTPConnection(address.netloc, timeout=60)
            kept = {key: value for key, value in self.headers.items() if key.lower() not in ("connection", "expect")}
            connection.request(self.command, self.path, body, kept)  # Host as it was: S3's signatures cover it
            answer = connection.getresponse()
            data = answer.read()
            connection.close()
            if fault == "lose answer":
                self.close_connection = True
                return
            if fault == "gateway timeout after":
                self.send_error(504)
                return
            self.send_response(answer.status)
            for key, value in answer.getheaders():
                if key.lower() not in ("transfer-encoding", "content-length", "connection", "content-encoding"):
                    self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any  # noqa: N815  the names that http.server calls

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        line = FaultyLine(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield line
        finally:
            line.released.set()
            server.shutdown()
            thread.join()
