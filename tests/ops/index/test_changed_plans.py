"""A refresh that is killed, and whose retry finds the table's metadata changed: it decides otherwise, and is right."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.index import refresh
from icepuffin.ops.index.planning import version_plan as plan_module
from icepuffin.ops.index.planning.changes import Changes, find_changes
from icepuffin.ops.index.planning.version_plan import plan_version
from icepuffin.ops.index.versions.version_format import FORMAT_VERSION
from icepuffin.ops.model import Action
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
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
    new_table = table_factory()
    for start in (0, 200, 400):
        new_table.append(make_rows(start, start + 200))
    before = new_table.refresh().metadata.current_snapshot_id or 0
    file = live_files(new_table, before).files[0].path
    append_position_deletes(new_table, {file: np.arange(0, 20)})
    index_head(new_table)
    new_table.refresh().manage_snapshots().rollback_to_snapshot(before).commit()
    append_position_deletes(new_table.refresh(), {file: np.arange(0, 40)})
    for start in range(600, 600 + NEW * 20, 20):  # so many that one of them lies behind the file by name
        new_table.refresh().append(make_rows(start, start + 20))
    return new_table.refresh()


def expire_the_indexed_snapshot(table: Table) -> None:
    kept = {ref.snapshot_id for ref in table.refresh().metadata.refs.values()}
    lone = [item.snapshot_id for item in table.metadata.snapshots if item.snapshot_id not in kept]
    table.maintenance.expire_snapshots().by_ids(lone).commit()
    table.refresh()


def wrong_answers(table: Table) -> int:
    """Of all rows, each searched for by its own vector."""
    ids = np.sort(np.asarray(table.scan(selected_fields=("id",)).to_arrow()["id"]))
    found = open_index(table, DEFINITION, storage=STORAGE).search(vectors_of(ids), 1, columns=["id"])
    return int((np.asarray(found.rows["id"]) != ids).sum())


def head(table: Table) -> int:
    return table.refresh().metadata.current_snapshot_id or 0


def test_what_is_to_be_read_does_not_depend_on_snapshots_that_may_expire(table: Table) -> None:
    before = plan_version(RunContext(table, STORAGE), DEFINITION, head(table))
    expire_the_indexed_snapshot(table)
    after = plan_version(RunContext(table, STORAGE), DEFINITION, head(table))
    assert before.base is not None
    assert table.snapshot_by_id(before.base.bound.base_snapshot_id) is None
    assert (len(after.added), after.build_id) == (NEW, before.build_id)


@pytest.mark.parametrize("one_folder", [False, True])
@pytest.mark.parametrize("stage", ["scatter", "make_shard"])
def test_a_retry_that_decides_otherwise_takes_nothing_of_the_first_attempt(
    table: Table, stage: str, one_folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where both are staged in one folder: each task's record is named for what the task is about."""
    if one_folder:
        monkeypatch.setattr(plan_module, "_build_id", lambda _: f"{FORMAT_VERSION}-{'ab' * 16}")
    with pytest.raises(DriverLostError):
        refreshed(table, DyingRunner(stage, after_all=True))
    first = plan_version(RunContext(table, STORAGE), DEFINITION, head(table))

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
    second = plan_version(RunContext(table, STORAGE), DEFINITION, head(table))
    assert len(second.added) == NEW + 1
    refreshed(table, LocalRunner(1))
    assert wrong_answers(table) == 0
    assert one_folder or second.build_id != first.build_id


def test_no_two_plans_that_decide_otherwise_have_one_build_id(table: Table) -> None:
    plan = plan_version(RunContext(table, STORAGE), DEFINITION, head(table))
    base, live, changes = plan.base, plan.live, plan.changes
    assert base is not None
    (slot, rows), *_ = changes.deleted.items()
    shards = base.routing.shards
    other_shard = replace(base.routing, shards=(replace(shards[0], sha256=bytes(32)), *shards[1:]))
    mappings = [f'[{{"field-id": 4, "names": ["{name}"]}}]' for name in ("embedding", "vector")]
    mapped = [tuple(replace(file, name_mapping=mapping) for file in live.files) for mapping in mappings]
    plans = [
        plan,
        replace(plan, action=Action.BUILT),
        replace(plan, live=replace(live, table_uuid="another")),
        replace(plan, live=replace(live, snapshot_id=7)),
        replace(plan, live=replace(live, files=live.files[1:])),
        replace(plan, live=replace(live, files=tuple(replace(file, deletes=()) for file in live.files))),
        *(
            replace(plan, live=replace(live, files=files), definition=replace(plan.definition, blob_names=names))
            for files in mapped
            for names in ("flockdb", "community")
        ),
        *(
            replace(plan, definition=replace(plan.definition, **{name: value}))
            for name, value in {"max_degree": 7, "rebuild_ratio": 0.7, "max_deltas": 7, "delta_share": 0.7}.items()
        ),
        *(
            replace(plan, definition=replace(plan.definition, **{names: ("name",), ids: (2,)}))
            for names, ids in (("filters", "filter_ids"), ("include", "include_ids"))
        ),
        replace(plan, base=replace(base, bound=replace(base.bound, build_id="another"))),
        replace(plan, base=replace(base, routing=replace(base.routing, base_snapshot_id=7))),
        replace(plan, base=replace(base, routing=other_shard)),
        *(
            replace(plan, changes=replace(changes, **other))
            for other in (
                {"added": changes.added[1:]},
                {"emptied_slots": (7,)},
                {"deleted": {slot: rows[1:]}},
                {"deleted": {slot + 1: rows}},
                {"lineage_files": ((slot, live.files[0]),)},
            )
        ),
    ]
    assert len({plan_module._build_id(it) for it in plans}) == len(plans)
    tagged = replace(plan, base=replace(base, bound=replace(base.bound, tags=("release",), index_snapshot_id=7)))
    assert plan_module._build_id(tagged) == plan_module._build_id(plan), "equal work is found again"
