"""An index that is dropped while a version of it is made, or by a process that dies half-way."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.table import Table

from icepuffin.ops import steps
from icepuffin.ops.index.definitions.ddl import create_index, drop_index
from icepuffin.ops.index.definitions.index_definition import DefinitionError
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy
from icepuffin.ops.runs.maintenance import collect_table_garbage
from icepuffin.ops.steps import RunStep
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, index_head

TableFactory = Callable[..., Table]


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    defined = table_factory()
    defined.append(make_rows(0, 300))
    create_index(defined, DEFINITION)
    return defined.refresh()


def our_files(table: Table) -> list[str]:
    folder = Path(f"{table.location()}/metadata".removeprefix("file://"))
    return sorted(path.name for pattern in ("ann-*", "icepuffin-snap-*") for path in folder.glob(pattern))


def sweep(table: Table, *, dry_run: bool = False) -> int:
    """Number of versions that expire."""
    report = collect_table_garbage(
        table.refresh(), storage=STORAGE, retentions={}, default=RetentionPolicy(), grace_hours=0, dry_run=dry_run
    )
    return len(report.retired)


def assert_nothing_is_left(table: Table, *, commits: int = 1) -> None:
    table.refresh()
    assert set(table.metadata.refs) == {"main"}
    assert len(table.metadata.snapshots) == commits
    assert our_files(table) == []


@pytest.mark.parametrize("refreshed", [False, True], ids=["first", "refreshed"])
@pytest.mark.parametrize("step", [RunStep.ASSEMBLED, RunStep.COMMITTED])
def test_a_version_that_is_made_while_the_index_is_dropped_does_not_stay(
    table: Table, step: RunStep, refreshed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if refreshed:
        index_head(table)
        table.append(make_rows(300, 320))
    other = table.catalog.load_table(table.name())

    def drop(reached: RunStep) -> None:
        if reached is step:
            drop_index(other, "e")

    monkeypatch.setattr(steps, "observer", drop)
    with pytest.raises(DefinitionError, match="'e' was dropped while a version of it was made, which is gone too"):
        index_head(table)
    assert set(table.refresh().metadata.refs) == {"main"}
    sweep(table)
    assert_nothing_is_left(table, commits=1 + refreshed)


def test_garbage_collection_ends_a_drop_that_was_cut_in_two(table: Table) -> None:
    index_head(table)
    with table.refresh().transaction() as change:
        change.remove_properties(*(key for key in table.properties if key.startswith("ann.")))
    assert sweep(table, dry_run=True) == 1
    assert "ann_e" in table.refresh().metadata.refs
    assert sweep(table) == 1
    assert_nothing_is_left(table)


def test_an_index_that_is_there_keeps_its_newest_version(table: Table) -> None:
    index_head(table)
    assert sweep(table) == 0
    assert "ann_e" in table.refresh().metadata.refs
