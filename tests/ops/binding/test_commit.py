"""Waits between commits and for a catalog that does not answer, to the millisecond; answers that are no success."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    ValidationError,
)
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate

from icepuffin.ops.binding import bindings, commit, expiration
from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.binding.commit import CommitAttempt, CommitOutcome, attempt_commit, commit_attempts, reload_table
from icepuffin.ops.binding.derived_snapshots import NewPack
from icepuffin.ops.errors import CatalogUnavailableError, IcepuffinError
from icepuffin.ops.index.versions import tuning_record
from icepuffin.ops.table.blob_kind import pack_tag
from tests.conftest import ROWS, make_rows
from tests.ops.catalog.bindings import binding, register_statistics

BUSY = ClientError({"Error": {"Code": "ThrottlingException"}}, "GetTable")
"""How a service of AWS answers that has too much to do"""
DOUBLED = [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.0, 2.0, 2.0, 2.0]


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return 1_000.0 + sum(self.waits)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(commit, "time", made)
    return made


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    return table_factory()


@pytest.mark.parametrize(("drawn", "factor", "factor_of_table"), [(0.0, 0.5, 1.0), (0.5, 1.0, 1.05), (1.0, 1.5, 1.1)])
def test_a_wait_is_doubled_each_time_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch, drawn: float, factor: float, factor_of_table: float
) -> None:
    monkeypatch.setattr(commit, "random", SimpleNamespace(random=lambda: drawn))
    assert [commit._pause({}, sent) for sent in range(11)] == pytest.approx([wait * factor for wait in DOUBLED])
    for properties, milliseconds in (
        ({"commit.retry.min-wait-ms": " 30 "}, [30, 60, 120, 60_000]),
        ({"commit.retry.max-wait-ms": "250"}, [100, 200, 250, 250]),
        ({"commit.retry.min-wait-ms": "7", "commit.retry.max-wait-ms": "9999999"}, [7, 14, 28, 600_000]),
    ):
        waits = [commit._pause(properties, sent) for sent in (0, 1, 2, 40)]
        assert waits == pytest.approx([each / 1_000 * factor_of_table for each in milliseconds])


def test_the_passes_of_a_loop_are_one_more_than_its_commits(
    table: Table, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(commit, "COMMIT_ATTEMPTS", 3)
        passes = list(commit_attempts(table))
    assert passes == [CommitAttempt(0, True), CommitAttempt(1, True), CommitAttempt(2, True), CommitAttempt(3, False)]
    assert len(clock.waits) == 2
    table.metadata.properties["commit.retry.total-timeout-ms"] = "25"
    clock.waits.clear()
    passes = list(commit_attempts(table))
    assert sum(clock.waits) == pytest.approx(0.025), "the last wait is cut off"
    assert passes[-1] == CommitAttempt(len(passes) - 1, may_commit=False)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "9" * 19, "ten"])
def test_a_property_that_is_no_number_is_warned_of(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert commit._number({"commit.retry.num-retries": text}, "commit.retry.num-retries") is None
    assert f"commit.retry.num-retries is {text!r}, no number from 0" in caplog.text
    assert commit._number({"commit.retry.num-retries": "9" * 18}, "commit.retry.num-retries") == int("9" * 18)


@pytest.mark.parametrize("patient", [False, True])
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ServerError("away"), r"does not answer \(ServerError\); try again when it is up"),
        (BUSY, r"refuses the request \(ClientError: .* \(ThrottlingException\) .*\); check the rights .*"),
    ],
)
def test_a_catalog_that_does_not_answer_is_waited_for_a_minute(
    table: Table, clock: Clock, monkeypatch: pytest.MonkeyPatch, patient: bool, error: Exception, words: str
) -> None:
    def refresh() -> None:
        raise error

    monkeypatch.setattr(table, "refresh", refresh)
    with pytest.raises(CatalogUnavailableError, match=rf"db\.t: catalog 'test' {words}$"):
        reload_table(table, patient=patient)
    assert clock.waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, *[5.0] * 10] if patient else [])


@pytest.mark.parametrize("error", [ServerError("away"), BUSY])
def test_a_catalog_that_answers_again_is_read(
    table: Table, clock: Clock, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    answers, refresh = iter([error, error]), table.refresh

    def second_time() -> None:
        for answer in answers:
            raise answer
        refresh()

    monkeypatch.setattr(table, "refresh", second_time)
    reload_table(table, patient=True)
    assert clock.waits == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize("error", [ValueError("no such thing"), ValidationError("no such thing")])
def test_metadata_that_cannot_be_read_are_no_table_of_another(
    table: Table, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refresh() -> None:
        raise error

    monkeypatch.setattr(table, "refresh", refresh)
    with pytest.raises(type(error), match="no such thing"):
        reload_table(table)


@pytest.mark.parametrize("kind", [ValueError, BadRequestError])
@pytest.mark.parametrize(
    ("message", "is_refusal"),
    [
        ("Cannot add snapshot with sequence number 3 older than last sequence number 3", True),
        ("Snapshot with snapshot id 7 does not exist", True),
        ("Cannot set ref", False),
    ],
)
def test_only_an_overtaken_commit_is_one_that_somebody_refused(
    table: Table, monkeypatch: pytest.MonkeyPatch, message: str, is_refusal: bool, kind: type[Exception]
) -> None:
    def commit_table(*_: object) -> None:
        raise kind(message)

    monkeypatch.setattr(table.catalog, "commit_table", commit_table)
    if is_refusal:
        assert attempt_commit(table, (), ()) is CommitOutcome.REFUSED
    else:
        with pytest.raises(kind, match=message):
            attempt_commit(table, (), ())


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (TooManyRequestsError("later"), CommitOutcome.REFUSED),
        (ServiceUnavailableError("later"), CommitOutcome.UNKNOWN),
        (BUSY, CommitOutcome.UNKNOWN),
        (ClientError({"Error": {"Code": "TooManyRequestsException"}}, "UpdateTable"), CommitOutcome.UNKNOWN),
    ],
)
def test_a_catalog_that_is_too_busy_may_be_tried_again(
    table: Table, monkeypatch: pytest.MonkeyPatch, error: Exception, outcome: CommitOutcome
) -> None:
    def commit_table(*_: object) -> None:
        raise error

    monkeypatch.setattr(table.catalog, "commit_table", commit_table)
    assert attempt_commit(table, (), ()) is outcome


def test_a_commit_is_for_the_table_that_was_read_and_no_other_of_its_name(table: Table) -> None:
    stale = table.catalog.load_table(table.name())
    table.catalog.drop_table(table.name())
    other = table.catalog.create_table(table.name(), ROWS)
    assert attempt_commit(stale, (), ()) is CommitOutcome.REFUSED
    assert other.refresh().metadata.snapshots == []


def published(table: Table) -> DerivedVersion:
    """A version in the table's metadata, with a pack."""
    table.append(make_rows(0, 1))
    pack = NewPack(f"{table.location()}/metadata/ann-e-pack.puffin", 4, 2)
    return bindings.publish(table, replace(binding(table), new_packs=(pack,)))


def untag_pack(table: Table, version: DerivedVersion) -> None:
    tag = pack_tag("e", version.packs[0].holder_id)
    table.catalog.commit_table(table, (), (RemoveSnapshotRefUpdate(ref_name=tag),))


def remove_version(table: Table, version: DerivedVersion) -> None:
    removal = RemoveSnapshotsUpdate(snapshot_ids=[version.index_snapshot_id])
    table.catalog.commit_table(table, (), (RemoveSnapshotRefUpdate(ref_name="ann_e"), removal))


def note_tuning(table: Table, _: DerivedVersion) -> None:
    table.transaction().set_properties({f"{tuning_record.PREFIX}e": "{}"}).commit_transaction()


def move_side_tag(table: Table, version: DerivedVersion) -> None:
    tag = f"ann_e-{version.base_snapshot_id}"
    bindings.move_tag(table, tag, version.index_snapshot_id, expected_ref=None)


def register(table: Table, version: DerivedVersion) -> None:
    sizes = {"file_size": 1, "footer_size": 1}
    register_statistics(table, version.base_snapshot_id, path="s3://x", blobs=[], over=None, **sizes)


Work = Callable[[Table, DerivedVersion], object]
NOTHING: Work = lambda *_: None  # noqa: E731
WORKS: dict[str, tuple[Work, Work, str]] = {
    "keep_packs": (untag_pack, lambda table, _: bindings.keep_packs(table), "packs could not be tagged"),
    "expire_packs": (remove_version, lambda table, _: expiration.expire_packs(table), "packs could not be expired"),
    "expire_derived": (
        NOTHING,
        lambda table, version: expiration.expire_derived(table, {version.index_snapshot_id}, {"ann_e"}),
        "versions could not be expired",
    ),
    "drop": (NOTHING, lambda table, _: bindings.drop(table, "ann_e"), "ann_e could not be dropped"),
    "move_tag": (NOTHING, move_side_tag, r"ann_e-\d+ could not be changed"),
    "register_statistics": (NOTHING, register, r"statistics of \d+ not set"),
    "forget_record": (
        note_tuning,
        lambda table, _: tuning_record.forget_record(table, "e"),
        r"table property ann\.tuning\.e could not be changed",
    ),
}
"""(what comes before it, the work itself, what could not be done) of all that is done by one commit"""


@pytest.mark.parametrize("name", WORKS)
def test_work_that_others_are_always_ahead_of_ends_with_what_to_do(
    table: Table, clock: Clock, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before, work, message = WORKS[name]
    version = published(table)
    table.transaction().set_properties({"commit.retry.num-retries": "1"}).commit_transaction()
    before(table, version)

    def commit_table(*_: object) -> None:
        raise CommitFailedException("somebody was first")

    monkeypatch.setattr(table.catalog, "commit_table", commit_table)
    with pytest.raises(IcepuffinError, match=rf"^db\.t: {message} in 2 attempts; try again$"):
        work(table.refresh(), version)
    assert len(clock.waits) == 1
