"""Versions whose recall was measured by another rule: it counts as not measured, and the next refresh builds anew."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from pyiceberg.table import Table

from icepuffin.ops.catalog.bound_versions import index_versions
from icepuffin.ops.index import assembly, plan, tuning_record
from icepuffin.ops.index.plan import plan_version
from icepuffin.ops.index.tuning_record import changes_of, identity_of
from icepuffin.ops.index.version_reader import MEASURED_BY, open_version
from icepuffin.ops.model import Action
from icepuffin.ops.search import open_index
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, index_head

TableFactory = Callable[..., Table]
LARGE = replace(DEFINITION, shards=1)


@pytest.fixture
def table(table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch) -> Table:
    """An index as releases before the rule wrote it: nothing names a rule."""
    created = table_factory()
    created.append(make_rows(0, 400))
    with monkeypatch.context() as earlier:
        earlier.setattr(assembly, "MEASURED_BY", "ann.other")
        earlier.setattr(plan, "RECALL_RULE", "")
        assert index_head(created, LARGE).action is Action.BUILT
    return created.refresh()


@pytest.mark.parametrize("appended", [0, 20])
def test_the_next_refresh_builds_anew(table: Table, appended: int) -> None:
    if appended:
        table.append(make_rows(400, 400 + appended))
    report = index_head(table, LARGE)
    assert (report.action, report.reason) == (
        Action.BUILT, "the recall of the versions there are was measured by an older rule"
    )  # fmt: skip
    assert index_head(table, LARGE).action is Action.REUSED
    table.append(make_rows(500, 510))
    assert index_head(table, LARGE).action is Action.REFRESHED


def test_readers_take_its_recall_for_not_measured(table: Table) -> None:
    earlier = open_version(index_versions(table, "e")[0], STORAGE)
    assert earlier.curves == ("",)
    assert np.isnan(earlier.recalls[0].recall)
    found = open_index(table, LARGE, storage=STORAGE).search(queries()[:1], 5, target_recall=0.9)
    assert any("no recall curve to choose by" in warning for warning in found.warnings)
    index_head(table, LARGE)
    now = next(item for item in index_versions(table.refresh(), "e") if item.tags)
    opened = open_version(now, STORAGE)
    assert opened.curves != ("",)
    assert opened.recalls[0].recall > 0.9


def test_what_was_tuned_by_another_rule_is_not_used(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_version(index_versions(table, "e")[0], STORAGE)
    before = {name: value for name, value in identity_of(opened).items() if name != "recall_rule"}
    assert changes_of(before, identity_of(opened)) == "recall_rule was None and is 2"
    monkeypatch.setattr(tuning_record, "RECALL_RULE", "3")
    assert identity_of(opened)["recall_rule"] == "3"
    assert MEASURED_BY == "ann.recall_rule"


def test_a_retry_takes_nothing_that_was_measured_by_another_rule(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an interrupted run staged is found by its build id, with the recall that it measured."""
    head = table.metadata.current_snapshot_id or 0
    now = plan_version(table, LARGE, head, storage=STORAGE).build_id
    assert plan_version(table, LARGE, head, storage=STORAGE).build_id == now
    monkeypatch.setattr(plan, "RECALL_RULE", "3")
    assert plan_version(table, LARGE, head, storage=STORAGE).build_id != now
