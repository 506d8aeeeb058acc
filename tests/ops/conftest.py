"""The table that most tests of readers search."""

from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icepuffin.ops.cache import use_settings
from icepuffin.ops.cache.cache_settings import CacheSettings
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.search.exact import pruning
from tests.conftest import make_rows


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """For tables that the tests of a module share."""
    folder = tmp_path_factory.mktemp("catalog")
    made = open_catalog("test", {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"})
    made.create_namespace("db")
    return made


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    """600 rows in two files."""
    new_table = table_factory()
    new_table.append(make_rows(0, 300))
    new_table.append(make_rows(300, 600))
    return new_table


@pytest.fixture
def uncached() -> Iterator[None]:
    """What a reader needs is read from the index file itself."""
    use_settings(CacheSettings.off())
    yield
    use_settings(None)


@pytest.fixture
def no_disk_cache() -> Iterator[None]:
    """Shards are kept in memory alone, and rows of tails within the default budget."""
    use_settings(CacheSettings(disk_bytes=0))
    yield
    use_settings(None)


@pytest.fixture(scope="module")
def coded_balls() -> Iterator[None]:
    """Centres have codes however few they are, as they have in tables of many files."""
    with patch.object(pruning, "_MIN_CODED", 1):
        yield
