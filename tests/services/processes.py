"""Servers that tests start: on loopback and a free port, ended with the test session."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass
class Server:
    """A server that runs, as a process that is another one after a crash."""

    command: Sequence[str]
    is_ready: Callable[[], bool]
    log: Path
    crash: signal.Signals
    options: Mapping[str, Any]
    process: "subprocess.Popen[bytes]" = field(init=False)

    def __post_init__(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(self.command, stdout=output, stderr=output, **self.options)

    def restart(self) -> None:
        """As after a crash. Raises RuntimeError with the end of its log where it does not start."""
        self.process.send_signal(self.crash)
        self.process.wait()
        self.__post_init__()
        self.wait()

    def wait(self) -> None:
        """Until it is ready. Raises RuntimeError with the end of its log where it does not start."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self.process.poll() is None:
            if self.is_ready():
                return
            time.sleep(0.1)
        state = "did not answer in time" if self.process.poll() is None else f"ended with {self.process.returncode}"
        raise RuntimeError(f"{self.command!r} {state}: {self.log.read_text(errors='replace')[-3000:]}")

    def stop(self, stop: signal.Signals) -> None:
        self.process.send_signal(stop)
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


RUNNING: list[Server] = []
"""Servers that run, the last started last"""


@contextlib.contextmanager
def serving(
    command: Sequence[str],
    is_ready: Callable[[], bool],
    log: Path,
    *,
    stop: signal.Signals = signal.SIGTERM,
    crash: signal.Signals = signal.SIGKILL,
    marker: str = "services",
    **options: Any,
) -> Iterator[None]:
    """Run a server while the block lasts, in a test with the marker. Raises RuntimeError with the end of its log where
    it does not start.
    """
    need(marker)
    server = Server(command, is_ready, log, crash, options)
    RUNNING.append(server)
    try:
        server.wait()
        yield
    finally:
        RUNNING.remove(server)
        server.stop(stop)


def answers(port: int) -> bool:
    """Whether something listens there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
