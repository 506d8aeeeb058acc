"""A JVM's stderr: the lines of every start are left out, and no other one."""

import subprocess
from typing import Any

import pytest

from icepuffin.ops.spark.jvm_messages import launch_without_noise

java_gateway = pytest.importorskip("pyspark.java_gateway")
LINES = (
    "WARNING: Using incubator modules: jdk.incubator.vector",
    "Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties",
    "WARNING: something else",
    'Setting default log level to "WARN".',
    "To adjust logging level use sc.setLogLevel(newLevel).",
    "Error: Could not find or load main class",
)


def test_the_lines_of_every_start_are_left_out_and_the_others_come_before_the_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def launch(conf: Any, options: dict[str, Any]) -> None:
        subprocess.run(["sh", "-c", 'printf "%s\\n" "$@" >&2', "sh", *LINES], check=True, **options)
        raise RuntimeError(f"no JVM with {conf}")

    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    with pytest.raises(RuntimeError, match="no JVM with conf"):
        launch_without_noise("conf")  # type: ignore[arg-type]
    assert capfd.readouterr().err == "WARNING: something else\nError: Could not find or load main class\n"
