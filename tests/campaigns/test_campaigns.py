"""A few trials of each campaign, so that its command works when it is needed."""

import pytest

from icepuffin.ops.cache import use_settings
from icepuffin.ops.index.versions import index_packs
from tests.campaigns import crowd, flips, kills, leaks, pages, releases, upserts
from tests.campaigns.budget import BrokenPromiseError, Budget
from tests.draws import SEED, amount
from tests.selection import IS_NIGHT, nightly

pytestmark = pytest.mark.usefixtures("seed")


@nightly
def test_killed_process_groups_break_nothing() -> None:
    budget = Budget(seconds=600.0, seed=SEED, is_enough=lambda counts: counts["killed at work"] == 3)
    kills.run(budget)
    assert budget.counts["killed at work"] == 3


def test_flipped_bits_are_noticed_or_without_effect() -> None:
    budget = Budget(seconds=600.0, seed=SEED, is_enough=lambda counts: counts.total() == 100)
    try:
        flips.run(budget)
    finally:
        use_settings(None)
    assert budget.counts["noticed in headers"]


def test_damaged_files_are_noticed_or_without_effect() -> None:
    budget = Budget(seconds=600.0, seed=SEED, is_enough=lambda counts: counts.total() == 60)
    try:
        pages.run(budget)
    finally:
        use_settings(None)
    assert budget.counts["noticed, published"]
    assert budget.counts["without effect, cached"]


def test_a_changed_answer_ends_the_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(range(10))
    monkeypatch.setattr(flips, "noticed_or", lambda _: next(answers))
    try:
        with pytest.raises(BrokenPromiseError, match="trial 0: bit"):
            flips.run(Budget(seconds=60.0, seed=1))
    finally:
        use_settings(None)


@pytest.mark.parametrize("catalog", ["sqlite", pytest.param("rest", marks=[pytest.mark.services, nightly])])
def test_a_crowd_at_one_table_loses_nothing(monkeypatch: pytest.MonkeyPatch, catalog: str) -> None:
    monkeypatch.setattr(index_packs, "PACK_BYTES", index_packs.PACK_BYTES)  # put back afterwards
    budget = Budget(seconds=600.0, seed=SEED, is_enough=lambda counts: counts["rounds"] == 1)
    crowd.run(budget, catalog)
    assert budget.counts["rounds"] == 1


def test_three_releases_at_one_table_leave_each_other_what_they_cannot_read() -> None:
    budget = Budget(seconds=600.0, seed=SEED, is_enough=lambda counts: counts.total() > 0)
    releases.run(budget, histories=amount(100 if IS_NIGHT else 8))
    assert budget.notes["refused"]


@pytest.mark.services
def test_a_secret_that_shows_ends_the_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "_COMMANDS", (("search", "db.canary0store3"),))
    monkeypatch.setattr(leaks, "_FAULTS", ("no fault",))
    with pytest.raises(BrokenPromiseError, match=r"trial 0, search db\.canary0store3.*: secret key on a command line$"):
        leaks.run(Budget(seconds=60.0, seed=3), spark=False)


class WrongTable:
    """A table whose check fails."""

    name = "wrong"
    log = ("create", "append")

    def create(self, version: str) -> None:
        assert version == "3"

    def step(self) -> None: ...

    def check(self) -> None:
        raise AssertionError("scan")


def test_a_history_that_iceberg_reads_otherwise_ends_the_campaign() -> None:
    """The campaign itself needs Spark for minutes; its histories are those of test_equality_deletes.py."""
    budget = Budget(seconds=60.0, seed=1)
    with pytest.raises(BrokenPromiseError, match="trial 7, after\ncreate\nappend\nAssertionError: scan"):
        upserts.follow(WrongTable(), "3", budget, 7)  # type: ignore[arg-type]
    assert budget.counts.total() == 0


def test_a_seed_repeats_its_trials() -> None:
    first, again = (
        [rng.random() for _, (_, rng) in zip(range(3), Budget(60, seed=7).trials(), strict=False)] for _ in "ab"
    )
    assert first == again
    assert next(Budget(60, seed=7, first=2).trials())[1].random() == first[2]
