"""The two ways of talking to Spark: a session of this process, and a real Connect server."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.services.spark_connect import spark_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def connect_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A client of a real Spark Connect server."""
    from pyspark.sql.connect.session import SparkSession as Client  # noqa: PLC0415  needs grpc, most tests do not

    with spark_connect(tmp_path_factory.mktemp("connect")) as address:
        client = Client.builder.remote(address).create()
        yield client
        client.stop()


@pytest.fixture(params=["classic", "connect"])
def session(request: pytest.FixtureRequest) -> "SparkSession":
    found: SparkSession = request.getfixturevalue("spark" if request.param == "classic" else "connect_spark")
    return found
