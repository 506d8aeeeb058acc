"""The two ways of talking to Spark: a session of this process, and a real Connect server."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.services.spark_connect import spark_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def connect_spark(spark: "SparkSession") -> Iterator["SparkSession"]:
    """A client of a real Spark Connect server."""
    with spark_connect(spark) as client:
        yield client


@pytest.fixture(params=["classic", "connect"])
def session(request: pytest.FixtureRequest) -> "SparkSession":
    found: SparkSession = request.getfixturevalue("spark" if request.param == "classic" else "connect_spark")
    return found
