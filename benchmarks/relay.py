"""A relay in front of an S3 server that writes down every request, and can make each wait as a distant store would."""

import asyncio
import contextlib
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_REQUEST = re.compile(rb"(GET|HEAD|PUT|POST|DELETE) (\S+) HTTP/1\.1\r\n")
_PIECE = 1 << 20
_KINDS = (
    ("index", ".puffin"),
    ("catalog metadata", ".metadata.json"),
    ("manifests", ".avro"),
    ("data files", ".parquet"),
)


@dataclass(slots=True)
class Request:
    """One request, and what came back for it."""

    method: str
    path: str
    bytes: int = 0
    """Bytes of the answer, headers included"""

    @property
    def kind(self) -> str:
        return next((kind for kind, ending in _KINDS if ending in self.path), "other")


@dataclass
class Relay:
    """The address of a relay, and the requests that it passed on."""

    endpoint: str
    latency_ms: float = 0.0
    """Wait before each request is passed on"""
    requests: list[Request] = field(default_factory=list)

    def take(self) -> list[Request]:
        """The requests since the last time."""
        requests, self.requests = self.requests, []
        return requests


@contextlib.contextmanager
def relayed(host: str, port: int) -> Iterator[Relay]:
    """A relay to a server that talks HTTP/1.1 without TLS; it runs in a thread, on a free port of this machine."""
    loop = asyncio.new_event_loop()
    relay = Relay("")
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def serve() -> asyncio.Server:
        return await asyncio.start_server(
            lambda client, back: _connection(relay, host, port, client, back), "127.0.0.1", 0
        )

    server = asyncio.run_coroutine_threadsafe(serve(), loop).result()
    relay.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield relay
    finally:
        asyncio.run_coroutine_threadsafe(_hang_up(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _hang_up(server: asyncio.Server) -> None:
    server.close()
    calls = asyncio.all_tasks() - {asyncio.current_task()}
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def _connection(
    relay: Relay, host: str, port: int, client: asyncio.StreamReader, back: asyncio.StreamWriter
) -> None:
    server, on = await asyncio.open_connection(host, port)
    own: list[Request] = []
    with contextlib.suppress(ConnectionError):
        await asyncio.gather(_forward(relay, client, on, own), _answer(server, back, own))


async def _forward(relay: Relay, client: asyncio.StreamReader, on: asyncio.StreamWriter, own: list[Request]) -> None:
    """What a client sends; it waits for each answer before its next request, so a request starts a piece."""
    while piece := await client.read(_PIECE):
        if match := _REQUEST.match(piece):
            own.append(Request(match[1].decode(), match[2].decode()))
            relay.requests.append(own[-1])
            await asyncio.sleep(relay.latency_ms / 1000)
        on.write(piece)
        await on.drain()
    on.close()


async def _answer(server: asyncio.StreamReader, back: asyncio.StreamWriter, own: list[Request]) -> None:
    while piece := await server.read(_PIECE):
        if own:
            own[-1].bytes += len(piece)
        back.write(piece)
        await back.drain()
    back.close()


def by_kind(requests: Sequence[Request]) -> dict[str, dict[str, int]]:
    """{kind: {requests, bytes}} and the sum of all as `total`."""
    out: dict[str, dict[str, int]] = {}
    for request in requests:
        for kind in (request.kind, "total"):
            entry = out.setdefault(kind, {"requests": 0, "bytes": 0})
            entry["requests"] += 1
            entry["bytes"] += request.bytes
    return out
