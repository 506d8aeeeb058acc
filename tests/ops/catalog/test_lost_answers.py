"""Commits whose outcome is not known: metadata decides, and nothing that it may come to name is deleted."""

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError, ReadTimeoutError
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding import bindings, commit
from icepuffin.ops.binding.bound_versions import DerivedVersion, holder_ids, index_versions
from icepuffin.ops.binding.derived_snapshots import NewPack
from icepuffin.ops.binding.errors import LostRaceError, UnknownOutcomeError, UnsupportedCatalogError
from icepuffin.ops.binding.expiration import expire_derived, expire_packs
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.errors import CatalogUnavailableError
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.blob_kind import pack_tag
from icepuffin.ops.table.snapshots import UnknownSnapshotError, data_snapshots
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from tests.conftest import STORAGE, make_rows
from tests.ops.catalog.bindings import binding, register_statistics
from tests.ops.index.comparison import DEFINITION

TableFactory = Callable[..., Table]
Commit = Callable[[], Any]


class BadLine:
    """Stands between a table and its catalog: each commit goes through one step; after the last they go through."""

    def __init__(self, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: Iterator[Callable[[Commit], Any]] = iter(())
        self.late: list[Commit] = []
        through = catalog.commit_table

        def commit_table(*arguments: Any) -> Any:
            step = next(self.steps, lambda commit: commit())
            return step(lambda: through(*arguments))

        monkeypatch.setattr(catalog, "commit_table", commit_table)

    def answer_is_lost(self, commit: Commit) -> None:
        commit()
        raise CommitStateUnknownException("gateway timeout")

    def request_is_lost(self, _: Commit) -> None:
        raise CommitStateUnknownException("gateway timeout")

    def request_is_late(self, commit: Commit) -> None:
        self.late.append(commit)
        raise CommitStateUnknownException("gateway timeout")

    def late_ones_arrive_first(self, commit: Commit) -> Any:
        for waiting in self.late:
            waiting()
        return commit()

    def repetition_is_refused_first(self, commit: Commit) -> None:
        self.late.append(commit)
        raise CommitFailedException("the repetition was refused")

    def gateway_repeats_it(self, commit: Commit) -> None:
        commit()
        raise CommitFailedException("the repetition was refused")


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    made = table_factory()
    made.append(make_rows(0, 10))
    return made


@pytest.fixture
def line(table: Table, monkeypatch: pytest.MonkeyPatch) -> BadLine:
    monkeypatch.setattr(commit, "COMMIT_ATTEMPTS", 4)
    return BadLine(table.catalog, monkeypatch)


def assert_readable(table: Table, version: DerivedVersion) -> None:
    table.refresh()
    snapshot = table.metadata.snapshot_by_id(version.index_snapshot_id)
    assert snapshot is not None
    assert snapshot.manifests(table.io)
    assert table.scan(snapshot_id=version.index_snapshot_id).to_arrow().num_rows == 10
    assert open_storage(version.puffin_path, STORAGE).exists(version.puffin_path)


def test_a_commit_whose_answer_was_lost_is_found(table: Table, line: BadLine) -> None:
    line.steps = iter([line.answer_is_lost])
    version = bindings.publish(table, binding(table))
    assert version.tags == ("ann_e",)
    assert len(index_versions(table, "e")) == 1
    assert_readable(table, version)


@pytest.mark.parametrize("error", [ReadTimeoutError, ConnectionClosedError, EndpointConnectionError])
def test_a_commit_whose_answer_aws_lost_is_found(table: Table, line: BadLine, error: type[Exception]) -> None:
    def answer_is_lost(commit: Commit) -> None:
        commit()
        raise error(endpoint_url="https://glue.example.com", error="lost")

    line.steps = iter([answer_is_lost])
    version = bindings.publish(table, binding(table))
    assert len(index_versions(table, "e")) == 1
    assert_readable(table, version)


def test_a_catalog_of_aws_that_is_away_is_named(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def refresh() -> None:
        raise EndpointConnectionError(endpoint_url="https://glue.example.com", error="away")

    monkeypatch.setattr(table, "refresh", refresh)
    with pytest.raises(CatalogUnavailableError, match="does not answer"):
        commit.reload_table(table)


def test_an_answer_of_glue_that_was_cut_off_is_none(
    table: Table, line: BadLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To boto3, which is not installed here, it is an empty one: PyIceberg misses a part of it. Any other KeyError is a
    fault, and is no reason to wait or to look for a commit.
    """
    glue = ModuleType("pyiceberg.catalog.glue")
    misses = FunctionType((lambda answer: answer["Database"]).__code__, glue.__dict__)

    def is_cut_off(commit: Callable[[], object]) -> None:
        commit()
        misses({})

    monkeypatch.setitem(sys.modules, glue.__name__, glue)
    line.steps = iter([is_cut_off])
    version = bindings.publish(table, binding(table))
    assert_readable(table, version)
    refresh = table.refresh

    def cut_off_once() -> None:
        monkeypatch.setattr(table, "refresh", refresh)
        is_cut_off(refresh)

    monkeypatch.setattr(table, "refresh", cut_off_once)
    commit.reload_table(table, patient=True)

    def has_a_fault(*_: object) -> None:
        raise KeyError("Database")

    line.steps = iter([has_a_fault])
    with pytest.raises(KeyError, match="Database"):
        bindings.publish(table, binding(table, 1, expected=version.index_snapshot_id))
    monkeypatch.setattr(table, "refresh", has_a_fault)
    with pytest.raises(KeyError, match="Database"):
        commit.reload_table(table, patient=True)


def aws_error(code: str, status: int) -> ClientError:
    answer = {
        "Error": {"Code": code, "Message": "key topsecret said no"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(answer, "UpdateTable")


@pytest.mark.parametrize(("code", "status"), [("ThrottlingException", 400), ("InternalServiceException", 500)])
@pytest.mark.parametrize("is_lost", [True, False], ids=["landed", "did not land"])
def test_a_commit_that_aws_could_not_answer_is_looked_up_or_repeated(
    table: Table, line: BadLine, code: str, status: int, is_lost: bool
) -> None:
    def fails(commit: Commit) -> None:
        if is_lost:
            commit()
        raise aws_error(code, status)

    line.steps = iter([fails])
    version = bindings.publish(table, binding(table))
    assert len(index_versions(table, "e")) == 1
    assert_readable(table, version)


def test_what_aws_refuses_is_reported_without_keys(
    table: Table, line: BadLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(table.catalog.properties, "glue.secret-access-key", "topsecret")

    def fails(*_: object) -> None:
        raise aws_error("AccessDeniedException", 400)

    words = (
        r"^db\.t: catalog '.*' refuses the request \(ClientError: .*AccessDeniedException.*UpdateTable.*<glue.secret"
        r".*\); check the rights of its user and its settings$"
    )
    line.steps = iter([fails])
    with pytest.raises(CatalogUnavailableError, match=words):
        bindings.publish(table, binding(table))
    monkeypatch.setattr(table, "refresh", fails)
    with pytest.raises(CatalogUnavailableError, match=words):
        commit.reload_table(table, patient=True)


def test_a_commit_whose_answer_was_lost_is_found_where_the_tag_did_not_move(table: Table, line: BadLine) -> None:
    """It is not committed a second time, and what the catalog did not keep is reported."""
    first = bindings.publish(table, binding(table)).index_snapshot_id

    def tag_stays(commit: Commit) -> None:
        commit()
        second = table.catalog.load_table(table.name())
        bindings.move_tag(second, "ann_e", first, expected_ref=second.metadata.refs["ann_e"].snapshot_id)
        raise CommitStateUnknownException("gateway timeout")

    line.steps = iter([tag_stays])
    with pytest.raises(UnsupportedCatalogError, match="accepted tag ann_e and did not keep it"):
        bindings.publish(table, binding(table, 1, expected=first))
    assert len(index_versions(table, "e")) == 2


def test_a_lost_request_is_sent_again(table: Table, line: BadLine) -> None:
    line.steps = iter([line.request_is_lost, line.request_is_lost])
    version = bindings.publish(table, binding(table))
    assert version.tags == ("ann_e",)
    assert_readable(table, version)


def test_a_request_that_arrives_late_is_whole_when_it_lands(table: Table, line: BadLine) -> None:
    line.steps = iter([line.request_is_late, line.late_ones_arrive_first])
    version = bindings.publish(table, binding(table))
    assert len(index_versions(table, "e")) == 1
    assert_readable(table, version)


def test_a_success_that_a_gateway_turned_into_a_refusal_is_found(table: Table, line: BadLine) -> None:
    line.steps = iter([line.gateway_repeats_it])
    assert_readable(table, bindings.publish(table, binding(table)))


def test_a_commit_whose_answer_was_lost_is_checked_as_any_other(table: Table, line: BadLine) -> None:
    new_binding = binding(table)
    table.append(make_rows(10, 20))

    def lost_and_expired(commit: Commit) -> None:
        commit()
        table.refresh().maintenance.expire_snapshots().by_id(new_binding.base_snapshot_id).commit()
        raise CommitStateUnknownException("gateway timeout")

    line.steps = iter([lost_and_expired])
    with pytest.raises(UnknownSnapshotError, match="undone"):
        bindings.publish(table, new_binding)
    assert "ann_e" not in table.refresh().metadata.refs


def test_a_version_is_returned_even_where_the_tag_has_moved_on(table: Table, line: BadLine) -> None:
    def lost_and_overtaken(commit: Commit) -> None:
        commit()
        table.refresh()
        current = table.metadata.refs["ann_e"].snapshot_id
        bindings.publish(table, binding(table, 2, expected=current))
        raise CommitStateUnknownException("gateway timeout")

    request = binding(table, 1)
    line.steps = iter([lost_and_overtaken])
    version = bindings.publish(table, request)
    assert (version.puffin_path, version.tags) == (request.puffin_path, ())
    assert_readable(table, version)
    assert bindings.publish(table, request) == version, "a repetition must not count as a lost race: its file is in use"


def test_while_the_outcome_is_unknown_nothing_is_deleted(table: Table, line: BadLine) -> None:
    new_binding = binding(table)
    line.steps = iter([line.request_is_late] * 4)
    with pytest.raises(UnknownOutcomeError, match=r"db\.t.*ann_e.*is kept; run it again when the catalog is up$"):
        bindings.publish(table, new_binding)
    line.late[0]()
    (version,) = index_versions(table.refresh(), "e")
    assert version.puffin_path == new_binding.puffin_path
    assert_readable(table, version)


def test_a_late_request_to_a_table_of_format_1_is_whole_when_it_lands(
    table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_factory("old", **{"format-version": "1"})
    table.append(make_rows(0, 10))
    assert table.metadata.format_version == 1
    monkeypatch.setattr(commit, "COMMIT_ATTEMPTS", 1)
    line = BadLine(table.catalog, monkeypatch)
    line.steps = iter([line.request_is_late])
    with pytest.raises(UnknownOutcomeError):
        bindings.publish(table, binding(table))
    line.late[0]()
    assert_readable(table, index_versions(table.refresh(), "e")[0])


def test_a_catalog_that_is_away_after_a_lost_answer_leaves_the_outcome_unknown(
    table: Table, line: BadLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=30)

    def lost_and_away(_: Commit) -> None:
        monkeypatch.setattr(table, "refresh", away)
        raise CommitStateUnknownException("gateway timeout")

    line.steps = iter([lost_and_away])
    monkeypatch.setattr(commit, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None))
    with pytest.raises(UnknownOutcomeError, match="is kept"):
        bindings.publish(table, binding(table))


def away() -> None:
    raise CommitStateUnknownException("no route")


@pytest.mark.parametrize("answer", ["refused", "lost", "done"])
@pytest.mark.parametrize("work", ["publish", "move_tag", "drop", "keep_packs", "expire"])
def test_once_a_commit_was_sent_a_catalog_that_is_away_for_a_moment_is_waited_for(
    table: Table, line: BadLine, monkeypatch: pytest.MonkeyPatch, work: str, answer: str
) -> None:
    """Before it, nothing is lost by an error at once; a refused publication may begin again as well."""
    new_pack = NewPack(path="s3://nowhere/pack.puffin", size=4, footer_size=2)
    first = bindings.publish(table, replace(binding(table, 1), new_packs=(new_pack,))).index_snapshot_id
    request = binding(table, 2, expected=first)
    other_tag = f"ann_e-{request.base_snapshot_id}"
    (holder_id,) = holder_ids(table.metadata.snapshot_by_id(first) or pytest.fail("gone"))
    if work == "keep_packs":
        table.manage_snapshots().remove_tag(pack_tag("e", holder_id)).commit()
    do: Callable[[], Any] = {
        "publish": lambda: bindings.publish(table, request),
        "move_tag": lambda: bindings.move_tag(table, other_tag, first, expected_ref=None),
        "drop": lambda: bindings.drop(table, "ann_e"),
        "keep_packs": lambda: bindings.keep_packs(table),
        "expire": lambda: expire_derived(table, [first], ["ann_e"]),
    }[work]
    waits: list[float] = []
    monkeypatch.setattr(commit, "time", SimpleNamespace(monotonic=lambda: sum(waits), sleep=waits.append))
    refresh = table.refresh

    def back_in_a_moment() -> None:
        monkeypatch.setattr(table, "refresh", refresh)
        away()

    def and_away(request: Commit) -> Any:
        monkeypatch.setattr(table, "refresh", back_in_a_moment)
        if answer == "refused":
            raise CommitFailedException("somebody else committed")
        result = request()
        if answer == "lost":
            raise CommitStateUnknownException("gateway timeout")
        return result

    line.steps = iter([and_away])
    if work == "publish" and answer == "refused":
        with pytest.raises(CatalogUnavailableError):
            do()
    else:
        do()
        assert waits.count(0.1) == int(not (work == "keep_packs" and answer == "done")), "it returns at once"
    monkeypatch.setattr(table, "refresh", back_in_a_moment)
    waits.clear()
    with pytest.raises(CatalogUnavailableError):
        do()
    assert waits == []


def test_a_late_request_that_was_overtaken_may_still_land(table: Table, line: BadLine) -> None:
    """No version takes a number, so another one does not keep it out for good: its file stays."""

    def late_and_overtaken(commit: Commit) -> None:
        line.late.append(commit)
        bindings.publish(table, binding(table, 2))
        raise CommitStateUnknownException("gateway timeout")

    line.steps = iter([late_and_overtaken])
    with pytest.raises(UnknownOutcomeError):
        bindings.publish(table, binding(table, 1))
    bindings.drop(table, "ann_e")  # the tag is where it was when the late request was made
    line.late[0]()
    assert_readable(table, index_versions(table.refresh(), "e")[-1])
    bindings.drop(table, "ann_e")
    table.append(make_rows(10, 20))
    with pytest.raises(CommitFailedException, match="last sequence number is 2, not 1"):
        line.late[0]()


def test_a_tag_that_moved_without_a_snapshot_leaves_the_outcome_unknown(table: Table, line: BadLine) -> None:
    first = bindings.publish(table, binding(table, 1))
    second = bindings.publish(table, binding(table, 2, expected=first.index_snapshot_id))

    def late_and_moved(commit: Commit) -> None:
        line.late.append(commit)
        bindings.move_tag(table, "ann_e", first.index_snapshot_id, expected_ref=second.index_snapshot_id)
        raise CommitStateUnknownException("gateway timeout")

    line.steps = iter([late_and_moved])
    with pytest.raises(UnknownOutcomeError):
        bindings.publish(table, binding(table, 3, expected=second.index_snapshot_id))
    bindings.move_tag(table, "ann_e", second.index_snapshot_id, expected_ref=first.index_snapshot_id)
    line.late[0]()
    assert_readable(table, index_versions(table.refresh(), "e")[-1])


def test_a_pack_that_lost_its_tag_meanwhile_leaves_the_outcome_unknown(table: Table, line: BadLine) -> None:
    pack = NewPack(f"{table.location()}/metadata/ann-e-pack.puffin", 4, 2)
    first = bindings.publish(table, replace(binding(table, 1), new_packs=(pack,)))
    holder_id = first.packs[0].holder_id
    shares = replace(binding(table, 2, expected=first.index_snapshot_id), packs=(holder_id,))

    def late_and_untagged(commit: Commit) -> None:
        line.late.append(commit)
        table.manage_snapshots().remove_tag(f"ann_e-pack-{holder_id}").commit()
        raise CommitStateUnknownException("gateway timeout")

    line.steps = iter([late_and_untagged])
    with pytest.raises(UnknownOutcomeError):
        bindings.publish(table, shares)


def test_a_first_request_that_lands_after_its_repetition_was_refused_is_whole(table: Table, line: BadLine) -> None:
    line.steps = iter([line.repetition_is_refused_first, line.late_ones_arrive_first])
    version = bindings.publish(table, binding(table))
    assert len(index_versions(table, "e")) == 1
    assert_readable(table, version)


def test_a_lost_race_leaves_its_manifest_list_to_garbage_collection(table: Table, line: BadLine) -> None:
    def overtaken(commit: Commit) -> Any:
        bindings.publish(table, binding(table, 2))
        return commit()

    line.steps = iter([overtaken])
    wanted = binding(table, 1)
    with pytest.raises(LostRaceError):
        bindings.publish(table, wanted)
    table.refresh()
    store = open_storage(table.location(), STORAGE)
    named = {snapshot.manifest_list for snapshot in table.metadata.snapshots}
    (left,) = {item.path for item in store.list(f"{table.location()}/metadata") if "snap-" in item.path} - named
    assert collect_garbage(table, storage=STORAGE, grace=timedelta(hours=1)).deleted == ()
    assert left in collect_garbage(table, storage=STORAGE, grace=timedelta(0)).deleted
    assert all(store.exists(path) for path in named)


def test_an_index_run_with_an_unknown_end_keeps_its_file_and_the_next_run_finds_it(table: Table, line: BadLine) -> None:
    head = table.metadata.current_snapshot_id
    assert head is not None
    line.steps = iter([line.request_is_late] * 4)
    with pytest.raises(UnknownOutcomeError):
        materialize_index(RunContext(table, STORAGE, LocalRunner(1)), DEFINITION, head)
    line.late[0]()
    report = materialize_index(RunContext(table, STORAGE, LocalRunner(1)), DEFINITION, head)
    assert report.action.value == "reused"


def test_row_deletes_whose_answer_was_lost_are_found(table: Table, line: BadLine) -> None:
    import numpy as np  # noqa: PLC0415

    (file,) = table.inspect.files()["file_path"].to_pylist()
    line.steps = iter([line.answer_is_lost])
    append_position_deletes(table, {file: np.array([1])})
    assert table.scan().to_arrow().num_rows == 9


def refused(_: Commit) -> None:
    raise CommitFailedException("somebody else committed")


@pytest.mark.parametrize(
    ("properties", "attempts", "waits"),
    [
        ({}, 4, [(0.01, 0.03), (0.02, 0.06), (0.04, 0.12)]),
        ({"commit.retry.num-retries": "1"}, 2, [(0.01, 0.03)]),
        ({"commit.retry.num-retries": "0"}, 1, []),
        ({"commit.retry.num-retries": "2", "commit.retry.min-wait-ms": "7"}, 3, [(0.007, 0.008), (0.014, 0.016)]),
        ({"commit.retry.num-retries": "2", "commit.retry.max-wait-ms": "150"}, 3, [(0.1, 0.11), (0.15, 0.166)]),
        ({"commit.retry.total-timeout-ms": "0"}, 1, []),
        (
            {
                "commit.retry.num-retries": "1",
                "commit.retry.min-wait-ms": "9" * 18,
                "commit.retry.max-wait-ms": "9" * 18,
            },
            2,
            [(600, 660)],
        ),
        ({"commit.retry.num-retries": "many"}, 4, [(0.01, 0.03), (0.02, 0.06), (0.04, 0.12)]),
    ],
    ids=str,
)
def test_a_refused_commit_is_repeated_as_the_table_says(
    table: Table,
    line: BadLine,
    monkeypatch: pytest.MonkeyPatch,
    properties: dict[str, str],
    attempts: int,
    waits: list[tuple[float, float]],
) -> None:
    if properties:
        table.transaction().set_properties(properties).commit_transaction()
    slept: list[float] = []
    monkeypatch.setattr(commit, "time", SimpleNamespace(monotonic=time.monotonic, sleep=slept.append))
    line.steps = itertools.repeat(refused)
    with pytest.raises(bindings.BindingError, match=f"could not be committed in {attempts} attempts; try again$"):
        bindings.publish(table, binding(table))
    assert len(slept) == attempts - 1
    assert all(low <= seconds <= high for seconds, (low, high) in zip(slept, waits, strict=True)), slept


def test_the_wait_after_many_attempts_is_a_number() -> None:
    assert commit._pause({}, 5_000) <= 3
    assert commit._pause({"commit.retry.max-wait-ms": "150"}, 5_000) <= 0.165


def test_no_commit_is_sent_after_the_time_that_the_table_allows(
    table: Table, line: BadLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait ends with that time at the latest."""
    properties = {"commit.retry.total-timeout-ms": "30000", "commit.retry.min-wait-ms": "600000"}
    table.transaction().set_properties(properties | {"commit.retry.max-wait-ms": "600000"}).commit_transaction()
    clock = [0.0]

    def slow(commit: Commit) -> None:
        clock[0] += 20
        refused(commit)

    passes = SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda wait: clock.__setitem__(0, clock[0] + wait))
    monkeypatch.setattr(commit, "time", passes)
    line.steps = itertools.repeat(slow)
    with pytest.raises(bindings.BindingError, match="in 2 attempts"):
        bindings.publish(table, binding(table))
    assert clock == [50.0]


@pytest.mark.parametrize(("retries", "refusals"), [(0, 0), (1, 1), (3, 1)])
@pytest.mark.parametrize("work", ["move_tag", "drop", "keep_packs", "expire", "expire_packs", "register_statistics"])
def test_work_whose_answer_was_lost_is_done(
    table: Table, line: BadLine, work: str, retries: int, refusals: int
) -> None:
    """Whatever the table says of repetitions, the metadata show it: also after the last one."""
    first = bindings.publish(table, binding(table, 1)).index_snapshot_id
    pack = NewPack(path="s3://nowhere/pack.puffin", size=4, footer_size=2)
    second = bindings.publish(table, replace(binding(table, 2, expected=first), new_packs=(pack,))).index_snapshot_id
    (holder_id,) = holder_ids(table.metadata.snapshot_by_id(second) or pytest.fail("gone"))
    table.transaction().set_properties({"commit.retry.num-retries": str(retries)}).commit_transaction()
    if work == "keep_packs":
        table.manage_snapshots().remove_tag(pack_tag("e", holder_id)).commit()
    if work == "expire_packs":
        expire_derived(table, [first, second], ["ann_e"])
    base = data_snapshots(table)[-1].snapshot_id
    flows: dict[str, tuple[Callable[[], Any], Any]] = {
        "move_tag": (lambda: bindings.move_tag(table, "ann_e", first, expected_ref=second), None),
        "drop": (lambda: bindings.drop(table, "ann_e"), ("ann_e",)),
        "keep_packs": (lambda: bindings.keep_packs(table), None),
        "expire": (lambda: expire_derived(table, [first], []), (first,)),
        "expire_packs": (lambda: expire_packs(table), (holder_id,)),
        "register_statistics": (
            lambda: register_statistics(
                table, base, path="s3://nowhere/t.puffin", file_size=4, footer_size=2, blobs=[], over=None
            ),
            True,
        ),
    }
    do, returned = flows[work]
    line.steps = iter([refused] * refusals + [line.answer_is_lost])
    assert do() == returned
    table.refresh()
    refs = {name: ref.snapshot_id for name, ref in table.metadata.refs.items()}
    assert {
        "move_tag": refs.get("ann_e") == first,
        "drop": "ann_e" not in refs,
        "keep_packs": refs.get(pack_tag("e", holder_id)) == holder_id,
        "expire": table.metadata.snapshot_by_id(first) is None,
        "expire_packs": table.metadata.snapshot_by_id(holder_id) is None,
        "register_statistics": find_statistics(table, base) is not None,
    }[work]
