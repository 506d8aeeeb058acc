from collections.abc import Iterator
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from icepuffin.ops.catalog.connection import open_catalog


def _spark_sees(spark: Any, properties: dict[str, str]) -> None:
    for key, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".cache-enabled": "false", **properties}.items():
        spark.conf.set(f"spark.sql.catalog.changes{key}", value)


@pytest.fixture
def changes_catalog(spark: Any, rest_uri: str) -> Iterator[Catalog]:
    catalog = open_catalog("changes", {"type": "rest", "uri": rest_uri})
    catalog.create_namespace_if_not_exists("db")
    _spark_sees(spark, {".type": "rest", ".uri": rest_uri})
    yield catalog
    catalog.close()
