"""A wire on loopback between clients and a server, which loses requests and answers, and is late.

It knows no protocol but that clients and server take turns on each connection, as those of databases, HTTP and Thrift
do: a request is what a client sends after an answer.
"""

import contextlib
import random
import select
import socket
import socketserver
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Fault = Literal["lost requests", "lost answers", "delays"]
_DELAY_SECONDS = 0.1
_BYTES = 1 << 16


@dataclass
class Wire:
    """A port for clients, and what happens to their requests from now on."""

    upstream: int
    """Port of the server"""
    port: int = 0
    chances: Mapping[Fault, float] = field(default_factory=dict)
    """How likely each fault is, for each request"""
    faults: deque[Fault] = field(default_factory=deque)
    """What happens to the next requests, one each"""
    rng: random.Random = field(default_factory=random.Random)
    happened: Counter[str] = field(default_factory=Counter)

    def next_fault(self) -> Fault | None:
        if self.faults:
            return self.faults.popleft()
        drawn = self.rng.random()
        for fault, chance in self.chances.items():
            drawn -= chance
            if drawn < 0:
                return fault
        return None


@contextlib.contextmanager
def wire_to(upstream: int) -> Iterator[Wire]:
    """Stand in front of the server at a port while the block lasts."""
    wire = Wire(upstream)

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", upstream)) as server:
                _relay(wire, self.request, server)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as listening:
        listening.daemon_threads = True
        wire.port = listening.server_address[1]
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield wire
        finally:
            listening.shutdown()
            thread.join()


def _relay(wire: Wire, client: socket.socket, server: socket.socket) -> None:
    """Until one of them ends, or a message is lost: both connections are closed then."""
    fault, is_asked = None, False
    for end in (client, server):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while True:
        for end in select.select((client, server), (), ())[0]:
            data = end.recv(_BYTES)
            if not data:
                return
            if end is client and not is_asked and (fault := wire.next_fault()):
                wire.happened[fault] += 1
                if fault == "delays":
                    time.sleep(_DELAY_SECONDS * wire.rng.random())
            is_asked = end is client
            if fault == ("lost requests" if is_asked else "lost answers"):
                return
            (server if is_asked else client).sendall(data)
