"""Random histories in which every third commit re-embeds rows: no table is stuck, and no answer is wrong.

A commit runs a short one; by night there are thirty, of forty commits each. `pytest -o log_cli=true -o
log_cli_level=INFO` shows seed and counts.
"""

import logging
import random
import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.index.planning.version_plan import VersionPlan, plan_version
from icepuffin.ops.index.planning.work_bounds import refresh_bounds
from icepuffin.ops.index.upkeep.freshness import index_lag
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.model import Action, SnapshotId
from icepuffin.ops.rows.vector_column import VectorColumnError
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.table.snapshots import find_snapshot
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from tests.conftest import STORAGE
from tests.draws import TALLY
from tests.ops.index.history_steps import require_within
from tests.ops.index.model_history import OTHERS, ModelHistory
from tests.selection import IS_NIGHT

HISTORIES, COMMITS = (30, 40) if IS_NIGHT else (1, 12)
_UNFORESEEN = re.compile(r"a refresh has recall@10 .*|shards are out of balance: .*")
"""Reasons to build that the work alone shows, as docs/changing-the-model.md says"""
_log = logging.getLogger(__name__)


@pytest.mark.filterwarnings("ignore:Delete operation did not match any records:UserWarning")
@pytest.mark.parametrize("number", range(HISTORIES))
def test_a_table_whose_model_changes_every_third_commit_is_neither_stuck_nor_wrong(
    number: int, seed: str, table_factory: Callable[..., Table]
) -> None:
    rng, counts = random.Random(seed), Counter[str]()
    history = ModelHistory(table_factory(), rng, counts)
    refresh_all(history)
    re_embeddings = -(-COMMITS // 3)
    kinds = ["re-embed"] * re_embeddings + [rng.choice(OTHERS) for _ in range(COMMITS - re_embeddings)]
    rng.shuffle(kinds)
    for kind in kinds:
        history.commit(kind)
        if rng.random() < 0.15:
            history.expire()
        if rng.random() < 0.3:  # before the refresh, by the version of before
            for definition in history.indexes:
                history.compare(definition)
        if rng.random() < 0.9:
            refresh_all(history)
    _log.info("history %s, seed %r: %s; shares re-embedded %.2f", number, seed, dict(counts), np.mean(history.shares))
    assert len(history.shares) == re_embeddings >= COMMITS / 3
    assert np.mean(history.shares) > 0.2, "a share of the rows that counts"
    recalls = np.array(history.recalls).reshape(-1, 2)
    assert not len(recalls) or recalls[:, 0].mean() >= recalls[:, 1].mean()
    TALLY.counts.update({"histories": 1, "steps": COMMITS})


def refresh_all(history: ModelHistory) -> None:
    for definition in history.indexes:
        refresh_and_compare(history, definition)


def refresh_and_compare(history: ModelHistory, definition: IndexDefinition) -> None:
    """Refresh an index at the head. What its plan foresaw is done, and its version is right; the next run reuses it."""
    table, counts = history.table.refresh(), history.counts
    head = SnapshotId(table.metadata.current_snapshot_id or 0)
    run = RunContext(table, STORAGE, LocalRunner(1))
    lengths = history.lengths(definition)
    if len(lengths) > 1:
        before = index_versions(table, definition.name)
        with pytest.raises(VectorColumnError, match="dimensions"):
            materialize_index(run, definition, head)
        assert index_versions(table.refresh(), definition.name) == before
        history.compare(definition)
        counts["refused: two lengths"] += 1
        return
    plan = plan_version(run, definition, head)
    bounds = refresh_bounds(table, definition, find_snapshot(table, head))
    report = materialize_index(run, definition, head)
    counts[f"index: {report.action}"] += 1
    require_foreseen(plan, report, is_empty=not lengths)
    counts["built after a refresh"] += report.action is Action.BUILT and plan.action is Action.REFRESHED
    if bounds is not None and not _UNFORESEEN.fullmatch(report.reason):
        require_within(bounds, report)
        counts["bounded by the metadata"] += 1
    coverage = history.compare(definition)
    if report.action is Action.EMPTY:
        return
    assert coverage is Coverage.EXACT_VERSION
    table.refresh()
    assert index_lag(table, definition, "main").snapshots == 0
    versions = index_versions(table, definition.name)
    version = next(one for one in versions if one.index_snapshot_id == report.index_snapshot_id)
    assert check_integrity(run, version).faults == ()
    counts["versions verified"] += 1
    assert materialize_index(run, definition, head).action is Action.REUSED


def require_foreseen(plan: VersionPlan, report: IndexReport, *, is_empty: bool) -> None:
    """The plan had the action, but where only the work can show that another one is due. Of rows that are all gone, or
    have lost their vectors, a refresh makes a version, and a build none.
    """
    if report.action is Action.EMPTY:
        assert is_empty
    elif plan.action is Action.REFRESHED and report.action is Action.BUILT:
        assert _UNFORESEEN.fullmatch(report.reason)
    else:
        assert (report.action, report.reason) == (plan.action, plan.reason)
