"""Random histories of a table: after every step each answer is compared with brute force over PyIceberg's own scan.

A few histories by default; ICEPUFFIN_HISTORIES=200 runs as many. One history in the state machine is one example, its
steps are the rules of `TableHistory`; `pytest -o log_cli=true -o log_cli_level=INFO` shows seed and counts.

All tables have one location, and the shard cache lives on over all steps of all histories.
"""

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.draws import SEED, TALLY, amount
from tests.ops.index.snapshot_answers import COUNTS, MISSES
from tests.ops.index.table_history import TableHistory

DEFAULT_HISTORIES = 3
HISTORIES = amount(DEFAULT_HISTORIES, "ICEPUFFIN_HISTORIES")
_PER_SERVER = 3
"""Histories on SQLite per history on each of the servers"""
_log = logging.getLogger(__name__)


@pytest.mark.usefixtures("seed")
@pytest.mark.filterwarnings("ignore:Delete operation did not match any records:UserWarning")
@pytest.mark.parametrize(
    "catalog",
    [
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.services),
        pytest.param("rest", marks=[pytest.mark.jvm, pytest.mark.services]),
    ],
)
def test_random_histories_give_no_wrong_answer(
    catalog: str,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    COUNTS.clear()
    MISSES.clear()
    print(f"ICEPUFFIN_SEED={SEED} ICEPUFFIN_HISTORIES={HISTORIES} runs these histories again")  # noqa: T201
    histories = HISTORIES
    if catalog != "sqlite":
        histories = -(-HISTORIES // _PER_SERVER)
        monkeypatch.setattr(TableHistory, "catalog_uri", request.getfixturevalue(f"{catalog}_uri"))
    monkeypatch.setattr(TableHistory, "folder", tmp_path / "history")
    run_state_machine_as_test(
        seed(f"{SEED} {catalog}")(TableHistory),
        settings=settings(
            max_examples=histories,
            stateful_step_count=20,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink) if HISTORIES == DEFAULT_HISTORIES else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )
    caplog.set_level(logging.INFO, __name__)
    _log.info("%s, seed %s, %s; %.5f of the true rows missed", catalog, SEED, dict(COUNTS), np.mean(MISSES))
    TALLY.counts.update({kind: COUNTS[kind] for kind in ("histories", "steps")})
    assert COUNTS["steps"] > histories
    assert np.mean(MISSES) < 0.02
    if histories >= 100:  # a few may have none of them
        assert COUNTS["versions with deltas"] > histories / 8
        assert COUNTS["bounded by the metadata"] > histories
        assert COUNTS["rows distributed from deltas"]
        assert COUNTS["rows of the index"] > histories
        assert COUNTS["driver lost"]
        assert COUNTS["drop, gc"]
        assert COUNTS["sweep"]
        assert COUNTS["tags aged"]
        assert any(COUNTS[f"beside a refresh: {act}"] for act in ("index_the_head", "append_and_index"))
