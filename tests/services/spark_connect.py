"""A real Spark Connect server on loopback and a free port: the one that comes with PySpark."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark

from tests.services.processes import answers, free_port, serving

_REPOSITORY = Path(__file__).resolve().parents[2]
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextlib.contextmanager
def spark_connect(folder: Path) -> Iterator[str]:
    """Run the server. Returns its address for clients. Tasks run in Python workers of this environment."""
    port = free_port()
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.pyspark.python": sys.executable,
        "spark.sql.codegen.wholeStage": "false",  # as in the sessions of this process
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
    }
    command = [str(Path(pyspark.__path__[0]) / "bin" / "spark-submit"), "--master", "local[2,4]"]
    command += ["--driver-memory", "1g", "--class", _SERVER]
    for key, value in conf.items():
        command += ["--conf", f"{key}={value}"]
    path = os.pathsep.join(
        filter(None, (str(_REPOSITORY), os.environ.get("PYTHONPATH")))
    )  # tasks of tests are in tests
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": path}
    options = {"cwd": folder, "env": environment, "start_new_session": True}
    with serving([*command, "spark-internal"], lambda: answers(port), folder / "log", **options):
        yield f"sc://127.0.0.1:{port}"
