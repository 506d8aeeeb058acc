"""A real Spark standalone cluster on loopback: a master and workers, from pyspark's own spark-class."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_START_SECONDS = 60


@dataclass(frozen=True)
class Cluster:
    """Its address, and where each worker keeps its executors' folders."""

    master: str
    work: tuple[Path, ...]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def standalone_cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """Start master and workers, one core each; end them, and the executors with them."""
    port, page = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    work = tuple(folder / f"worker-{number}" for number in range(1, workers + 1))
    with ExitStack() as stack:
        stack.enter_context(
            _daemon(folder / "master.log", "master.Master", "--port", str(port), "--webui-port", str(page))
        )
        _wait(folder / "master.log", lambda: _state(page) is not None)
        for place in work:
            arguments = ["--cores", "1", "--memory", "512m", "--webui-port", "0", "--work-dir", str(place), master]
            stack.enter_context(_daemon(place.with_suffix(".log"), "worker.Worker", *arguments))
        _wait(folder / "master.log", lambda: (_state(page) or {}).get("aliveworkers") == workers)
        yield Cluster(master, work)


@contextmanager
def _daemon(log: Path, name: str, *arguments: str) -> Iterator[None]:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations
    home = spec.submodule_search_locations[0]
    environment = {
        **os.environ,
        "SPARK_HOME": home,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    command = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, cwd=log.parent, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _state(page: int) -> dict[str, int] | None:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
        state: dict[str, int] = json.load(answer)
        return state
    return None


def _wait(log: Path, condition: object) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        if condition():  # type: ignore[operator]
            return
        time.sleep(0.2)
    raise RuntimeError(f"the Spark cluster did not start: {log.read_text()[-2000:]}")


def environment_without_the_project(folder: Path) -> Path:
    """An interpreter that has every package but this project; -> its path.

    A `.pth` file adds the packages' folder, and does not read that folder's own `.pth` files, one of which would lead
    to the checkout.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    spec = find_spec("pyarrow")
    assert spec is not None
    assert spec.origin is not None
    packages = Path(spec.origin).parents[1]
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "packages.pth").write_text(f"{packages}\n", encoding="utf-8")
    return folder / "bin" / "python"
