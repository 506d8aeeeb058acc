"""The table that most tests of readers ask."""

from collections.abc import Callable

import pytest
from pyiceberg.table import Table

from tests.conftest import make_rows


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    """600 rows in two files."""
    made = table_factory()
    made.append(make_rows(0, 300))
    made.append(make_rows(300, 600))
    return made
