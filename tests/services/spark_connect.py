"""A real Spark Connect server on loopback and a free port, in the JVM of a session of the tests."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.services.processes import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def spark_connect(session: "SparkSession") -> Iterator["SparkSession"]:
    """Start the server, as Spark's plugin for it does; it ends with the session. Returns a client, for the block.

    A JVM of its own would take as much CPU again to start, to load its classes and to start Python workers.
    """
    from pyspark.sql.connect.session import SparkSession as Client  # noqa: PLC0415  needs grpc, most tests do not

    context, port = session.sparkContext, free_port()
    conf = context._jvm.org.apache.spark.SparkEnv.get().conf()
    conf.set("spark.connect.grpc.binding.address", "127.0.0.1")
    conf.set("spark.connect.grpc.binding.port", str(port))
    context._jvm.org.apache.spark.sql.connect.service.SparkConnectService.start(context._jsc.sc())
    client: SparkSession = Client.builder.remote(f"sc://127.0.0.1:{port}").create()
    try:
        yield client
    finally:
        client.stop()
