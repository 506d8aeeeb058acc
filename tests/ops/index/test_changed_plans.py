"""A refresh that is killed, and whose retry finds the table's metadata changed: it decides otherwise, and is right."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from pyiceberg.table import Table

from icepuffin.ops.catalog.live_files import live_files
from icepuffin.ops.index import plan as plan_module
from icepuffin.ops.index import refresh
from icepuffin.ops.index.changes import Changes, find_changes
from icepuffin.ops.index.plan import plan_version
from icepuffin.ops.search import open_index
from icepuffin.ops.tasks.runner import LocalRunner
from icepuffin.orchestration.demo.rowdeletes import append_position_deletes
from tests.conftest import STORAGE, make_rows, vectors_of
from tests.ops.index.comparison import DEFINITION, index_head
from tests.ops.index.test_refresh_retries import DriverLostError, DyingRunner, refreshed

TableFactory = Callable[..., Table]
NEW = 5


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh, "SMALL_WORK", 0)


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    """Of three files one has other deletes now than the version knows; some are new."""
    made = table_factory()
    for start in (0, 200, 400):
        made.append(make_rows(start, start + 200))
    before = made.refresh().metadata.current_snapshot_id or 0
    file = live_files(made, before).files[0].path
    append_position_deletes(made, {file: np.arange(0, 20)})
    index_head(made)
    made.refresh().manage_snapshots().rollback_to_snapshot(before).commit()
    append_position_deletes(made.refresh(), {file: np.arange(0, 40)})
    for start in range(600, 600 + NEW * 20, 20):  # so many that one of them lies behind the file by name
        made.refresh().append(make_rows(start, start + 20))
    return made.refresh()


def expire_the_indexed_snapshot(table: Table) -> None:
    kept = {ref.snapshot_id for ref in table.refresh().metadata.refs.values()}
    lone = [item.snapshot_id for item in table.metadata.snapshots if item.snapshot_id not in kept]
    table.maintenance.expire_snapshots().by_ids(lone).commit()
    table.refresh()


def wrong_answers(table: Table) -> int:
    """Of all rows, each asked for by its own vector."""
    ids = np.sort(np.asarray(table.scan(selected_fields=("id",)).to_arrow()["id"]))
    found = open_index(table, DEFINITION, storage=STORAGE).search(vectors_of(ids), 1, columns=["id"])
    return int((np.asarray(found.rows["id"]) != ids).sum())


def head(table: Table) -> int:
    return table.refresh().metadata.current_snapshot_id or 0


def test_what_is_to_be_read_does_not_depend_on_snapshots_that_may_expire(table: Table) -> None:
    before = plan_version(table, DEFINITION, head(table), storage=STORAGE)
    expire_the_indexed_snapshot(table)
    after = plan_version(table, DEFINITION, head(table), storage=STORAGE)
    assert before.base is not None
    assert table.snapshot_by_id(before.base.version.base_snapshot_id) is None
    assert (len(after.added), after.build_id) == (NEW, before.build_id)


@pytest.mark.parametrize("one_folder", [False, True])
@pytest.mark.parametrize("stage", ["scatter", "make_shard"])
def test_a_retry_that_decides_otherwise_takes_nothing_of_the_first_attempt(
    table: Table, stage: str, one_folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where both are staged in one folder: each task's record is named for what the task is about."""
    if one_folder:
        monkeypatch.setattr(plan_module, "_build_id", lambda _: "ab" * 32)
    with pytest.raises(DriverLostError):
        refreshed(table, DyingRunner(stage, after_all=True))
    first = plan_version(table, DEFINITION, head(table), storage=STORAGE)

    def read_again(*arguments: object) -> Changes:
        """As if rows might have come back in every file of which the deletes have changed."""
        result = find_changes(*arguments)  # type: ignore[arg-type]
        live = {file.path: file for file in live_files(table, head(table)).files}
        base = first.base
        assert base is not None
        again = [path for path, file in live.items() if file.deletes]
        slots = [slot for slot, file in enumerate(base.routing.files) if any(p.endswith(file.path) for p in again)]
        added = tuple(sorted((*result.added, *(live[path] for path in again)), key=lambda file: file.path))
        return replace(result, added=added, emptied_slots=tuple(slots), deleted={})

    monkeypatch.setattr(plan_module, "find_changes", read_again)
    second = plan_version(table, DEFINITION, head(table), storage=STORAGE)
    assert len(second.added) == NEW + 1
    refreshed(table, LocalRunner(1))
    assert wrong_answers(table) == 0
    assert one_folder or second.build_id != first.build_id
