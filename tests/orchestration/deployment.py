"""A real Dagster deployment on loopback: webserver, daemon and code server, as a user starts them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icepuffin.orchestration.instance import WORKSPACE, prepare_home
from tests.services.processes import free_port


@dataclass(frozen=True)
class Deployment:
    """One running deployment."""

    home: Path
    port: int
    log: Path
    process_group: int

    def kill(self) -> None:
        """Every process of it at once, as when the machine loses its power."""
        os.killpg(self.process_group, signal.SIGKILL)

    def graphql(self, query: str, **variables: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql",
            json.dumps({"query": query, "variables": variables}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        assert "errors" not in found, found["errors"]
        data: dict[str, Any] = found["data"]
        return data

    def wait_for(self, what: str, condition: Callable[[], Any], timeout: float = 240) -> Any:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if found := condition():
                return found
            time.sleep(0.25)
        raise AssertionError(f"{what} did not happen in {timeout:g} s; log:\n{self.log.read_text()[-6000:]}")


@contextmanager
def deployed(settings_file: Path, directory: Path) -> Iterator[Deployment]:
    """Start everything as `icepuffin ui --start` does; end the whole process group afterwards."""
    home = prepare_home(directory / "dagster_home")
    log = directory / "dagster.log"
    port = free_port()
    environment = {**os.environ, "DAGSTER_HOME": str(home), "ICEPUFFIN_SETTINGS": str(settings_file)}
    arguments = ["dev", "-w", str(home / WORKSPACE), "-h", "127.0.0.1", "-p", str(port)]
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("dagster")), *arguments],
            cwd=directory,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        deployment = Deployment(home, port, log, process.pid)
        try:
            deployment.wait_for("the webserver's start", lambda: _answers(port) or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            yield deployment
        finally:
            process.terminate()  # nothing where it was killed
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with contextlib.suppress(ProcessLookupError):  # `dagster dev` does not wait for all of its own
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
