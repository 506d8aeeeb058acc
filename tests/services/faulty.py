"""A proxy on loopback in front of an HTTP server, that loses requests or answers as a test says."""

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote, urlsplit

from tests.services.forwarding import Answer, Request, forward, serving

Fault = Literal["lose answer", "lose request", "gateway timeout", "gateway timeout after", "hang", "forbidden"]


@dataclass
class FaultyLine:
    """What happens to the next requests of a method whose path ends in `/<name>`: one fault each, then none."""

    uri: str = ""
    name: str = ""
    method: str = "POST"
    faults: deque[Fault] = field(default_factory=deque)
    released: threading.Event = field(default_factory=threading.Event)
    """Set when those that hang may go"""

    def next_fault(self, method: str, path: str) -> Fault | None:
        wanted = method == self.method and self.name and unquote(urlsplit(path).path).endswith(f"/{self.name}")
        return self.faults.popleft() if wanted and self.faults else None


@contextlib.contextmanager
def faulty_line(upstream: str) -> Iterator[FaultyLine]:
    """Serve `upstream` at another address while the block lasts."""
    line = FaultyLine()

    def answer(request: Request) -> Answer | None:
        fault = line.next_fault(request.method, request.path)
        if fault == "hang":
            line.released.wait(60)
        if fault in ("hang", "lose request"):
            return None
        if fault in ("gateway timeout", "forbidden"):
            return Answer(403 if fault == "forbidden" else 504)
        result = forward(upstream, request)
        if fault == "lose answer":
            return None
        return Answer(504) if fault == "gateway timeout after" else result

    with serving(answer) as line.uri:
        try:
            yield line
        finally:
            line.released.set()
