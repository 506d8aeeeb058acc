"""What a JVM writes to stderr, without the lines that it writes at each start whatever is set."""

import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkConf

_NOISE = (
    b"WARNING: Using incubator modules",
    b"Using Spark's default log4j profile",
    b"Setting default log level to",
    b"Setting Spark log level to",
    b"To adjust logging level use",
    b"WARN NativeCodeLoader",
)
_LAST_WORDS_SECONDS = 5.0


def launch_without_noise(conf: "SparkConf") -> Any:
    """PySpark's gateway to a JVM that it starts. Lines other than `_NOISE` come as they are, for as long as it runs."""
    from pyspark import java_gateway  # noqa: PLC0415  only with a session

    launch: Any = java_gateway.launch_gateway  # it has no types
    source, sink = os.pipe()
    relay = threading.Thread(target=_relay, args=(source,), name="icepuffin-jvm-stderr", daemon=True)
    relay.start()
    is_running = False
    try:
        gateway = launch(conf, {"stderr": sink})
        is_running = True
    finally:
        os.close(sink)
        if not is_running:
            relay.join(_LAST_WORDS_SECONDS)  # the reason comes before the error
    return gateway


def _relay(source: int) -> None:
    with open(source, "rb") as lines:
        for line in lines:
            if not any(noise in line for noise in _NOISE):
                os.write(2, line)
