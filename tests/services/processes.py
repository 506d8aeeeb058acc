"""Servers that tests start: on loopback and a free port, ended with the test session."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE
from tests.services.permission import need

_STOP_SECONDS = 3
SMALL_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""JAVA_TOOL_OPTIONS of all tests, for which compiling takes longer than running."""


def java() -> str:
    """The Java that JAVA_HOME or PATH names."""
    home = os.environ.get("JAVA_HOME")
    result = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if result is None:
        raise RuntimeError("Java 17 is needed: no java on PATH, and JAVA_HOME is not set")
    return result


def free_port() -> int:
    """A port that nothing has, of those that the system gives to nobody who asks for any: on Linux from 32,768 on.

    Else a client or server of another test may get it before the server that it is for has started.
    """
    while True:
        port = 20_000 + int(secrets.token_hex(4), 16) % 12_000
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def refusing_port() -> Iterator[int]:
    """A port that refuses connections while the block lasts: it is taken, and nothing listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        yield port


@contextlib.contextmanager
def serving(
    command: Sequence[str],
    is_ready: Callable[[], bool],
    log: Path,
    *,
    stop: signal.Signals = signal.SIGTERM,
    marker: str = "services",
    **options: Any,
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a server while the block lasts, in a test with the marker. Raises RuntimeError with the end of its log where
    it does not start.
    """
    need(marker)
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, **options)
        try:
            _wait(server, is_ready, log)
            yield server
        finally:
            server.send_signal(stop)
            try:
                server.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def answers(port: int) -> bool:
    """Whether something listens there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _wait(server: "subprocess.Popen[bytes]", is_ready: Callable[[], bool], log: Path) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and server.poll() is None:
        if is_ready():
            return
        time.sleep(0.1)
    state = "did not answer in time" if server.poll() is None else f"ended with {server.returncode}"
    raise RuntimeError(f"{server.args!r} {state}: {log.read_text(errors='replace')[-3000:]}")
