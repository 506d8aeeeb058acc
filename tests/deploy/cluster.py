"""A real Spark standalone cluster on loopback: a master and workers, from pyspark's own spark-class."""

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.services.processes import free_port, serving


@dataclass(frozen=True)
class Cluster:
    """Its address, and where each worker keeps its executors' folders."""

    master: str
    work: tuple[Path, ...]


@contextmanager
def standalone_cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """Start master and workers, one core each; end them, and the executors with them."""
    spark = _folder_of("pyspark")
    environment = {
        **os.environ,
        "SPARK_HOME": str(spark),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    port, page = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    work = tuple(folder / f"worker-{number}" for number in range(1, workers + 1))

    def daemon(name: str, *arguments: str) -> list[str]:
        return [f"{spark}/bin/spark-class", f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *arguments]

    with ExitStack() as stack:
        command = daemon("master.Master", "--port", str(port), "--webui-port", str(page))
        stack.enter_context(
            serving(command, lambda: _workers(page) == 0, folder / "master.log", marker="jvm", env=environment)
        )
        for number, place in enumerate(work, start=1):
            sizes = ("--cores", "1", "--memory", "512m", "--webui-port", "0", "--work-dir", str(place))
            command = daemon("worker.Worker", *sizes, master)

            def registered(number: int = number) -> bool:
                return _workers(page) == number

            log = place.with_suffix(".log")
            stack.enter_context(serving(command, registered, log, marker="jvm", env=environment))
        yield Cluster(master, work)


def _workers(page: int) -> int | None:
    """How many the master knows; None while it does not answer."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
        found: int = json.load(answer)["aliveworkers"]
        return found
    return None


def _folder_of(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def environment_without_the_project(folder: Path) -> Path:
    """Path of an interpreter that has every package but this project.

    A `.pth` file adds the packages' folder, and does not read that folder's own `.pth` files, one of which would lead
    to the checkout.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "packages.pth").write_text(f"{_folder_of('pyarrow').parent}\n", encoding="utf-8")
    return folder / "bin" / "python"
