"""Writers that load their table before a commit of icepuffin's, and write after it, with their commits counted."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.types import StringType

from icepuffin.ops.binding.derived_snapshots import last_number
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import index_head

Write = Callable[[Table, int], Any]
WRITES: Mapping[str, Write] = {
    "append": lambda table, place: table.append(make_rows(1_000 * place, 1_000 * place + 4)),
    "delete": lambda table, place: table.delete(f"id = {place}"),
    "overwrite": lambda table, place: table.overwrite(make_rows(1_000 * place, 1_000 * place + 3), f"id = {place}"),
    "upsert": lambda table, place: table.upsert(make_rows(place, place + 2, seed=place), join_cols=["id"]),
    "properties": lambda table, place: table.transaction().set_properties(place=str(place)).commit_transaction(),
    "schema": lambda table, place: table.update_schema().add_column(f"more_{place}", StringType()).commit(),
}
"""`place`: number of the write, for other rows in each"""


def refresh(table: Table) -> None:
    """Index and sketches of the head."""
    index_head(table)
    head = table.refresh().metadata.current_snapshot_id
    assert head is not None
    count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), head).publish()


def assert_numbers(table: Table) -> None:
    """Java reads no table that has a snapshot above the last sequence number."""
    metadata = table.metadata
    assert getattr(metadata, "last_sequence_number", 0) == last_number(metadata)


@contextmanager
def counted_commits(catalog: Catalog, patch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The list has the last sequence number before each commit that is sent by this client while the block lasts."""
    commits: list[int] = []
    through = catalog.commit_table

    def commit_table(table: Table, *arguments: Any) -> Any:
        commits.append(last_number(table.metadata))
        return through(table, *arguments)

    with patch.context() as inner:
        inner.setattr(catalog, "commit_table", commit_table)
        yield commits


def commits_of_writers(
    ours: Table,
    writers_catalog: Catalog,
    patch: pytest.MonkeyPatch,
    between: Callable[[Table], Any],
    writes: Mapping[str, Write],
) -> dict[str, int]:
    """Commits that each write took, by a handle that was loaded before `between`. Raises what a write raises."""
    commits: dict[str, int] = {}
    for place, (name, write) in enumerate(writes.items(), 1):
        handle = writers_catalog.load_table(ours.name())
        between(ours)
        assert_numbers(ours.refresh())
        with counted_commits(writers_catalog, patch) as sent:
            write(handle, place)
        assert_numbers(ours.refresh())
        commits[name] = len(sent)
    return commits
