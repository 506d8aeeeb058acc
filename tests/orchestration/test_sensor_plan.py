"""What one evaluation requests: a pure plan that loses nothing and repeats nothing that matters."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.assets.spec import TableSpec
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.orchestration.sensor import sensor_definition
from icepuffin.orchestration.sensor.sensor_plan import (
    Policy,
    RunPlan,
    SensorCursor,
    TableFacts,
    WatchedSnapshot,
    expired_partitions,
    plan_runs,
    run_key,
    snapshots_to_record,
)
from icepuffin.orchestration.settings import TableSettings

UUID = "table"


def lineage(*ids: int) -> tuple[WatchedSnapshot, ...]:
    """Snapshots in order; the last is the head."""
    return tuple(WatchedSnapshot(i, number + 1, is_head=i == ids[-1]) for number, i in enumerate(ids))


def facts(*ids: int, **changes: object) -> TableFacts:
    """Dagster shows every snapshot, unless `changes` says otherwise."""
    keys = [str(i) for i in ids]
    base = TableFacts(
        watched=lineage(*ids),
        head=keys[-1] if ids else "",
        parents=descent(*ids),
        partitions=keys,
        recorded=keys,
        done=(),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def descent(*ids: int) -> dict[str, str | None]:
    """Each snapshot with the one before it."""
    keys = [str(i) for i in ids]
    return dict(zip(keys, [None, *keys], strict=False))


def every(found: TableFacts, cursor: SensorCursor | None = None, runs_ahead: int = 100) -> RunPlan:
    return plan_runs(found, cursor or SensorCursor(UUID), policy="every", runs_ahead=runs_ahead)


def newest(found: TableFacts, cursor: SensorCursor | None = None) -> RunPlan:
    return plan_runs(found, cursor or SensorCursor(UUID), policy="newest", runs_ahead=100)


def runs_of(plan: RunPlan) -> tuple[str, ...]:
    """Every snapshot for which a run is requested, whatever the reason."""
    return tuple(dict.fromkeys((*plan.request, *filter(None, (plan.returned_to, plan.again, plan.killed)))))


def test_every_snapshot_is_shown_and_requested_oldest_first() -> None:
    found = facts(7, 3, 5, partitions=(), recorded=())
    assert snapshots_to_record(found, SensorCursor(UUID), "every") == ("7", "3", "5")
    assert every(facts(7, 3, 5)).request == ("7", "3", "5")
    assert every(facts(7, 3, 5), every(facts(7, 3, 5)).cursor).request == ()


def test_only_what_dagster_shows_is_requested_and_the_next_evaluation_goes_on() -> None:
    first = every(facts(1, 2, 3, recorded=["1", "2"]))
    assert (first.request, first.waiting) == (("1", "2"), 1)
    assert snapshots_to_record(facts(1, 2, 3, recorded=["1", "2"]), first.cursor, "every") == ("3",)
    assert every(facts(1, 2, 3, partitions=["1", "3"])).request == ("1",), "no gap, lest the cursor grows"
    second = every(facts(1, 2, 3), first.cursor)
    assert (second.request, second.waiting) == (("3",), 0)


def test_no_more_runs_wait_than_the_setting_allows() -> None:
    first = every(facts(1, 2, 3, 4), runs_ahead=2)
    assert (first.request, first.waiting) == (("1", "2"), 2)
    assert every(facts(1, 2, 3, 4, in_flight=2), first.cursor, runs_ahead=2).request == ()
    assert every(facts(1, 2, 3, 4, in_flight=9), first.cursor, runs_ahead=2).request == ()
    assert every(facts(1, 2, 3, 4, in_flight=1), first.cursor, runs_ahead=2).request == ("3",)


def test_newest_shows_the_head_first_and_requests_it_alone() -> None:
    assert snapshots_to_record(facts(1, 2, 3, partitions=()), SensorCursor(UUID), "newest") == ("3", "1", "2")
    assert newest(facts(1, 2, 3, partitions=["3"])).request == ("3",)
    found = newest(facts(1, 2, 3))
    assert (found.request, found.waiting) == (("3",), 0)


def test_newest_waits_while_a_run_is_in_flight() -> None:
    waiting = newest(facts(1, 2, in_flight=1))
    assert waiting.request == ()
    assert waiting.waiting == 1
    assert newest(facts(1, 2, 3), waiting.cursor).request == ("3",)


def test_what_is_materialised_already_is_not_requested() -> None:
    assert every(facts(1, 2, done=["1"])).request == ("2",)


def test_expired_snapshots_lose_their_partition() -> None:
    assert expired_partitions(facts(3, partitions=["1", "2", "3"], parents=descent(2, 3))) == ("1",)


def test_a_rollback_requests_the_snapshot_it_returned_to_once() -> None:
    first = every(facts(1, 2))
    back = every(facts(1, parents=descent(1, 2), done=["1", "2"]), first.cursor)
    assert (back.request, back.returned_to, back.cursor.returns) == ((), "1", 1)
    assert every(facts(1, parents=descent(1, 2), done=["1", "2"]), back.cursor).returned_to is None
    again = every(facts(1, 2, done=["1", "2"]), back.cursor)
    assert (again.returned_to, again.cursor.returns) == ("2", 2)
    assert run_key(UUID, "1", 1) != run_key(UUID, "1")


def test_sketches_that_another_engine_replaced_are_merged_by_one_run_per_file() -> None:
    done = every(facts(1, 2)).cursor
    overwritten = {"done": ["1", "2"], "made_again_for": "s3://b/others-1.stats"}
    plan = every(facts(1, 2, **overwritten), done)
    assert (plan.again, plan.request, plan.cursor.merged) == ("2", (), "s3://b/others-1.stats")
    assert every(facts(1, 2, **overwritten), SensorCursor.parse(plan.cursor.text(), UUID)).again is None
    assert every(facts(1, 2, **overwritten | {"made_again_for": "s3://b/others-2.stats"}), plan.cursor).again == "2"
    assert every(facts(1, 2, made_again_for="s3://b/others-1.stats")).again is None, "the first run merges it anyway"
    running = every(facts(1, 2, **overwritten | {"done": ["1"]}), done)
    assert running.again is None, "the run that is in flight merges it"
    assert every(facts(1, 2, **overwritten), running.cursor).again == "2", "unless it came too early"
    assert run_key(UUID, "2", reason="others-1.stats") == "table:2:others-1.stats"


def test_a_return_to_a_head_that_is_to_be_made_again_requests_one_run() -> None:
    first = every(facts(1, 2))
    given_up = facts(1, parents=descent(1, 2), done=["1", "2"], made_again_for="1/format 3")
    back = every(given_up, first.cursor)
    assert (back.returned_to, back.again, back.cursor.merged) == ("1", None, "1/format 3")
    later = every(given_up, back.cursor)
    assert (runs_of(later), later.cursor) == ((), back.cursor)


def test_a_table_made_again_under_its_name_starts_anew() -> None:
    cursor = every(facts(1, 2)).cursor
    assert SensorCursor.parse(cursor.text(), UUID) == cursor
    assert SensorCursor.parse(cursor.text(), "another table") == SensorCursor("another table")
    assert SensorCursor.parse(None, UUID) == SensorCursor(UUID)


def test_a_table_without_snapshots_requests_nothing() -> None:
    assert every(facts()) == RunPlan(cursor=SensorCursor(UUID))


@given(
    st.lists(st.integers(1, 10**18), unique=True, min_size=1, max_size=30),
    st.integers(1, 7),
    st.sampled_from(["every", "newest"]),
    st.data(),
)
def test_no_crash_loses_a_snapshot(ids: list[int], runs_ahead: int, policy: Policy, data: st.DataObject) -> None:
    """It may stop within its records, before its partitions, or before its runs; in the end each was made."""
    cursor, partitions, recorded, requested = SensorCursor(UUID), list[str](), set[str](), list[str]()
    keys = [str(i) for i in ids]

    def evaluate(*, shown: int, ends: bool) -> None:
        nonlocal cursor
        observed = facts(*ids, partitions=tuple(partitions), recorded=frozenset(recorded))
        new = snapshots_to_record(observed, cursor, policy)[:shown]
        recorded.update(new)
        if not ends:
            return
        partitions.extend(key for key in new if key not in partitions)
        observed = replace(observed, partitions=tuple(partitions), recorded=frozenset(recorded))
        plan = plan_runs(observed, cursor, policy=policy, runs_ahead=runs_ahead)
        assert len(plan.request) <= runs_ahead
        requested.extend(plan.request)
        cursor = SensorCursor.parse(plan.cursor.text(), UUID)
        assert len(cursor.ahead) <= 1, "a short cursor"

    for _ in range(data.draw(st.integers(0, 20))):
        evaluate(shown=data.draw(st.integers(0, 5)), ends=data.draw(st.booleans()))
    for _ in range(len(ids) + 1):
        evaluate(shown=3, ends=True)
    assert requested == (keys if policy == "every" else keys[-1:])
    assert partitions == (keys if policy == "every" else [*keys[-1:], *keys[:-1]])


@given(st.data())
def test_whatever_a_table_goes_through_each_watched_snapshot_is_requested_once(data: st.DataObject) -> None:
    """Appends, forks, rollbacks, fast-forwards of two watched branches; some evaluations keep no cursor."""
    parents: dict[str, str | None] = {}
    heads: list[str | None] = [None, None]
    cursor, partitions, keys, ever_watched = SensorCursor(UUID), list[str](), list[str](), set[str]()
    for _ in range(data.draw(st.integers(1, 25))):
        which = data.draw(st.integers(0, 1))
        match data.draw(st.sampled_from(["append", "append", "back", "meet", "evaluate", "evaluate"])):
            case "append":
                new = str(len(parents) + 1)
                parents[new] = heads[which]
                heads[which] = new
            case "back":
                at = heads[which]
                heads[which] = parents[at] if at is not None and parents[at] is not None else at
            case "meet":
                heads[which] = heads[1 - which]
            case _:
                new = snapshots_to_record(_facts_of_history(parents, heads, partitions), cursor, "every")
                partitions += new[: data.draw(st.integers(0, 4))]
                plan = every(_facts_of_history(parents, heads, partitions), cursor, data.draw(st.integers(1, 4)))
                ever_watched |= {item.key for item in _facts_of_history(parents, heads, []).watched}
                if data.draw(st.booleans()):
                    cursor = SensorCursor.parse(plan.cursor.text(), UUID)
                    keys += [run_key(UUID, key) for key in plan.request]
    for _ in range(len(parents) + 1):
        partitions += snapshots_to_record(_facts_of_history(parents, heads, partitions), cursor, "every")[:3]
        plan = every(_facts_of_history(parents, heads, partitions), cursor, 3)
        cursor = SensorCursor.parse(plan.cursor.text(), UUID)
        keys += [run_key(UUID, key) for key in plan.request]
        ever_watched |= {item.key for item in _facts_of_history(parents, heads, []).watched}
    assert len(keys) == len(set(keys))
    watched = {item.key for item in _facts_of_history(parents, heads, []).watched}
    assert {run_key(UUID, key) for key in watched} <= set(keys)
    assert set(keys) <= {run_key(UUID, key) for key in ever_watched}
    assert len(partitions) == len(set(partitions))


def _facts_of_history(parents: dict[str, str | None], heads: list[str | None], partitions: list[str]) -> TableFacts:
    reached: set[str] = set()
    for head in heads:
        ancestor = head
        while ancestor is not None:
            reached.add(ancestor)
            ancestor = parents[ancestor]
    ordered = sorted(reached, key=int)
    return TableFacts(
        watched=tuple(WatchedSnapshot(int(key), int(key), is_head=key in heads) for key in ordered),
        head=heads[0] or "",
        parents=dict(parents),
        partitions=tuple(partitions),
        recorded=frozenset(partitions),
        done=(),
    )


def test_a_head_that_came_back_is_requested_although_the_snapshot_before_has_expired() -> None:
    """Main went from 2 back to 1, and 2 expired, all between two ticks: nothing descends from the cursor's tip."""
    first = every(facts(1, 2))
    for changes in ({"done": ["1"]}, {"head_requested": True}):
        back = every(facts(1, **changes), first.cursor)
        assert (back.returned_to, runs_of(back), back.cursor.returns) == ("1", ("1",), 1)
        assert runs_of(every(facts(1, **changes), back.cursor)) == ()


def test_a_head_that_came_back_has_one_run_alone_however_many_are_in_flight() -> None:
    first = every(facts(1, 2))
    back = every(facts(1, head_requested=True), first.cursor)
    assert (back.request, back.returned_to) == ((), "1")
    full = every(facts(1, head_requested=True, in_flight=100), first.cursor)
    assert (full.request, full.returned_to, full.waiting) == ((), "1", 0)
    assert runs_of(every(facts(1, head_requested=True), full.cursor)) == ()


def test_a_head_that_came_back_to_its_tag_has_a_run_where_something_else_is_missing() -> None:
    known = {"parents": descent(1, 2), "index_tags_at_head": True}
    assert runs_of(every(facts(1, **known), every(facts(1, 2)).cursor)) == ("1",)
    assert runs_of(every(facts(1, **known, done=["1"]), every(facts(1, 2)).cursor)) == ()


def test_returns_are_counted_on_from_the_run_keys_that_dagster_has() -> None:
    back = every(facts(1, parents=descent(1, 2), returns=7), every(facts(1, 2)).cursor)
    assert back.cursor.returns == 8


def test_a_cursor_stays_while_the_catalog_is_away_and_knows_when_it_is_back() -> None:
    away = replace(every(facts(1, 2)).cursor, away_since=3.0)
    assert SensorCursor.parse(away.text()) == away
    assert every(facts(1, 2), away).cursor.away_since is None


@pytest.mark.parametrize(("allowed", "quiet"), [(0.0, 15), (14.0, 15), (90.0, 90)])
def test_a_catalog_that_is_away_is_warned_of_once_when_the_table_would_be_late(
    monkeypatch: pytest.MonkeyPatch, allowed: float, quiet: int
) -> None:
    """A quarter of an hour after it went, or when the setting has an index be late."""
    settings = TableSettings(catalog="l", name="n.t", max_freshness_minutes=allowed)
    spec = TableSpec(settings, tuple(IndexDefinition(name=name, column="v") for name in "ef"))
    cursor, warnings = SensorCursor("uuid"), []
    for minutes in (0, quiet - 0.1, quiet, quiet + 60):
        now = SimpleNamespace(time=lambda minutes=minutes: 1_800_000_000 + 60 * minutes)
        monkeypatch.setattr(sensor_definition, "time", now)
        result = sensor_definition._catalog_away(spec, cursor, "away")
        cursor = SensorCursor.parse(result.cursor)
        warnings.append(len(result.asset_events))
    assert (warnings, cursor.away_since) == ([0, 0, 2, 0], 1_800_000_000)


def test_a_first_watched_ref_that_comes_to_be_where_another_one_was_is_a_return() -> None:
    """Written to a branch and published to main, which had no snapshot before: its tag may be elsewhere by now."""
    audited = every(facts(1, 2, head="")).cursor
    published = every(facts(1, parents=descent(1, 2), done=["1"]), audited)
    assert (published.returned_to, runs_of(published)) == ("1", ("1",))
    assert runs_of(every(facts(1, parents=descent(1, 2), done=["1"]), published.cursor)) == ()
    assert runs_of(every(facts(1, 2, done=["2"]), SensorCursor(UUID))) == ("1",), (
        "the first evaluation knows of no move"
    )


def test_a_head_that_moves_to_a_backfilled_snapshot_is_requested_once_unless_its_tag_is_there() -> None:
    first = every(facts(1, 2))
    assert runs_of(every(facts(1, 2, 3, done=["1", "2", "3"], index_tags_at_head=True), first.cursor)) == ()
    forward = every(facts(1, 2, 3, done=["1", "2", "3"]), first.cursor)
    assert runs_of(forward) == ("3",)
    assert runs_of(every(facts(1, 2, 3, done=["1", "2", "3"]), forward.cursor)) == ()


def test_a_head_that_is_not_shown_yet_counts_as_moved_when_it_is() -> None:
    first = every(facts(1, 2))
    unshown = every(facts(1, parents=descent(1), partitions=[], recorded=[], done=["1"]), first.cursor)
    assert (runs_of(unshown), unshown.cursor.head) == ((), "2")
    assert runs_of(every(facts(1, done=["1"]), unshown.cursor)) == ("1",)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "3", '"x"', "null", "{}", '{"tips": 3}', '{"table_uuid": "table", "returns": "x"}', "\0"]
    + [f'{{"table_uuid": "{UUID}", "returns": {number}}}' for number in ('"3"', "3.0", "true")],
)
def test_an_invalid_cursor_is_an_empty_one(text: str) -> None:
    assert SensorCursor.parse(text, UUID) == SensorCursor(UUID)
    assert SensorCursor.parse(text) == SensorCursor()


def test_a_cursor_of_another_release_keeps_what_it_shares() -> None:
    assert SensorCursor.parse('{"table_uuid": "table", "tips": ["1"], "later": 1}', UUID) == SensorCursor(
        UUID, frozenset({"1"})
    )


def test_newest_requests_what_it_skipped_once_another_ref_comes_to_it() -> None:
    def heads(*at: int, **known: object) -> TableFacts:
        watched = [replace(item, is_head=item.snapshot_id in at) for item in lineage(1, 2, 3)]
        return facts(1, 2, 3, watched=watched, **known)

    first = newest(heads(3))
    assert first.request == ("3",)
    busy = newest(heads(2, 3, in_flight=1, done={"3"}), first.cursor)
    assert (busy.request, busy.waiting) == ((), 1)
    back = newest(heads(2, 3, done={"3"}), SensorCursor.parse(busy.cursor.text(), UUID))
    assert back.request == ("2",)
    assert newest(heads(2, 3, done={"3"}), back.cursor).request == (), "whether its run is done or has failed"
    assert newest(heads(2, 3, done={"2", "3"}), first.cursor).request == (), "nothing is owed where it is there"
    assert back.cursor.tips == {"3"}


def test_the_head_is_requested_again_where_its_run_was_killed() -> None:
    first = newest(facts(1, 2))
    killed = newest(facts(1, 2, failed_run="run", was_killed=True), first.cursor)
    assert (killed.killed, killed.request, runs_of(killed)) == ("2", (), ("2",))
    assert runs_of(newest(facts(1, 2, failed_run="run"), first.cursor)) == (), "a failed step would fail again"
    moved = newest(facts(1, 2, failed_run="run", was_killed=True), newest(facts(1)).cursor)
    assert (moved.killed, moved.request) == (None, ("2",)), "no head has two runs at once"
    known = {"done": ["1", "2"], "failed_run": "run", "was_killed": True}
    due = every(facts(1, 2, made_again_for="2/format 3", **known), every(facts(1, 2)).cursor)
    assert (due.again, due.killed) == ("2", None)
    back = every(facts(1, parents=descent(1, 2), **known), every(facts(1, 2)).cursor)
    assert (back.returned_to, back.killed) == ("1", None)


def test_a_cursor_forgets_snapshots_that_have_expired() -> None:
    cursor = SensorCursor(UUID, tips=frozenset({"8"}), ahead=frozenset({"2", "9"}))
    left = every(facts(1, 2, partitions=()), cursor).cursor
    assert (left.tips, left.ahead) == (frozenset(), {"2"})
