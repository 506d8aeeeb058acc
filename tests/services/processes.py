"""Servers that tests start: on loopback and a free port, ended with the test session."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.services.permission import need

_START_SECONDS = 90
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and server.poll() is None:
        if is_ready():
            return
        time.sleep(0.1)
    state = "did not answer in time" if server.poll() is None else f"ended with {server.returncode}"
    raise RuntimeError(f"{server.args!r} {state}: {log.read_text(errors='replace')[-3000:]}")
