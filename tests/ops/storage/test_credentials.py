"""Vended credentials by a clock that the test sets: which are used, and when others are requested."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event

import pytest
from botocore.exceptions import ClientError

from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.model import Grant, VendedGrants
from icepuffin.ops.storage import credentials
from icepuffin.ops.storage.credentials import AccessError, Lease, combined, ends_of, is_vended, lease_of, nearest
from icepuffin.ops.storage.s3_file_systems import _refuses_keys
from tests.patience import PATIENCE

MINUTE = 60_000.0
NOW = 1_700_000_000_000.0
LAKE = "s3://lake/t"


class Clock:
    """The time of this process, ms since the epoch."""

    def __init__(self) -> None:
        self.now = NOW

    def pass_minutes(self, minutes: float) -> None:
        self.now += minutes * MINUTE


class VendingCatalog:
    """Gives the grants in turn, the last one again and again; refuses where `reason` is set."""

    def __init__(self, *grants: tuple[Grant, ...]) -> None:
        self.requests = 0
        self.reason = ""
        self._grants = grants

    def renew(self) -> tuple[Grant, ...]:
        self.requests += 1
        if self.reason:
            raise IcepuffinError(self.reason)
        return self._grants[min(self.requests, len(self._grants)) - 1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(credentials, "_now", lambda: made.now)
    return made


def keys(name: str, minutes: float | None, prefix: str = LAKE) -> Grant:
    """Keys with a token, good for so many minutes; None: the catalog does not say for how long."""
    own = {"s3.access-key-id": name, "s3.secret-access-key": "secret", "s3.session-token": "token"}
    expiry = {} if minutes is None else {"s3.session-token-expires-at-ms": f"{NOW + minutes * MINUTE:.0f}"}
    return Grant(prefix, own | expiry)


def lease(grants: tuple[Grant, ...], renew: Callable[[], tuple[Grant, ...]]) -> Lease:
    return Lease(VendedGrants("lake", "ns.t", "somebody", grants, renew))


def name_of(grant: Grant | None) -> str:
    return "" if grant is None else grant.properties["s3.access-key-id"]


def test_the_first_of_several_expiries_counts() -> None:
    assert ends_of((keys("a", 60), keys("b", 20), keys("c", 40))) == NOW + 20 * MINUTE
    two = Grant("abfss://", {"adls.sas-token-expires-at-ms.a": "3000", "adls.sas-token-expires-at-ms.b": "2000"})
    assert ends_of((two,)) == 2000
    assert ends_of((keys("a", None),)) == float("inf")
    assert ends_of((Grant(LAKE, {"s3.session-token-expires-at-ms": "tomorrow"}),)) == float("inf")
    assert ends_of(()) == 0


@pytest.mark.parametrize(("minutes", "renewed"), [((60, 20), 15), ((20, 60), 15), ((8, 60), 6)])
def test_all_keys_are_renewed_five_minutes_or_a_quarter_before_the_first_expires(
    clock: Clock, minutes: tuple[float, float], renewed: float
) -> None:
    catalog = VendingCatalog((keys("new", 120), keys("new", 120, f"{LAKE}/metadata")))
    own = lease((keys("old", minutes[0]), keys("old", minutes[1], f"{LAKE}/metadata")), catalog.renew)
    clock.pass_minutes(renewed - 0.01)
    assert (name_of(own.grant(f"{LAKE}/data/a")), catalog.requests) == ("old", 0)
    clock.pass_minutes(0.01)
    assert (name_of(own.grant(f"{LAKE}/data/a")), catalog.requests) == ("new", 1)
    assert (name_of(own.grant(f"{LAKE}/metadata/a")), catalog.requests) == ("new", 1)


@pytest.mark.parametrize(
    "token",
    ["s3.session-token", "gcs.oauth2.token", "adls.token", "adls.sas-token", "adls.sas-token.acc.dfs.core.windows.net"],
)
def test_a_token_of_any_store_is_renewed_though_nobody_says_when_it_expires(clock: Clock, token: str) -> None:
    new = Grant(LAKE, {token: "new"})
    catalog = VendingCatalog((new,))
    own = lease((Grant(LAKE, {token: "old"}),), catalog.renew)
    clock.pass_minutes(10)
    assert (own.grant(LAKE), catalog.requests) == (new, 1)


def test_requests_that_the_user_has_not_signed_by_the_catalog_stay_so() -> None:
    switch = "s3.remote-signing-enabled"
    vended = {switch: "true", "s3.access-key-id": "a"}
    assert combined({switch: "false"}, vended)[switch] == "false"
    assert [combined(own, vended)[switch] for own in ({switch: "true"}, {})] == ["true", "true"]


def test_tokens_without_an_expiry_are_renewed_after_ten_minutes_and_lasting_keys_never(clock: Clock) -> None:
    lasting = Grant(LAKE, {"s3.access-key-id": "a", "s3.secret-access-key": "secret"})
    catalog = VendingCatalog((keys("new", None),))
    of_token, of_key = lease((keys("old", None),), catalog.renew), lease((lasting,), catalog.renew)
    clock.pass_minutes(9.99)
    assert (name_of(of_token.grant(LAKE)), catalog.requests) == ("old", 0)
    clock.pass_minutes(0.01)
    assert (name_of(of_token.grant(LAKE)), catalog.requests) == ("new", 1)
    clock.pass_minutes(1_000_000)
    assert (of_key.grant(LAKE), catalog.requests) == (lasting, 1)


def test_keys_that_came_another_way_are_taken_where_the_first_of_them_lasts_longer(clock: Clock) -> None:
    catalog = VendingCatalog(())
    own = lease((keys("first", 30),), catalog.renew)
    for minutes in ((20, 20), (20, 90), (30, 30)):
        grants = tuple(keys("other", number, prefix) for number, prefix in zip(minutes, (LAKE, "s3://"), strict=True))
        own.offer(VendedGrants("lake", "ns.t", "somebody", grants, catalog.renew))
        assert name_of(own.grant(LAKE)) == "first"
    later = VendingCatalog((keys("renewed", 90),))
    own.offer(VendedGrants("later", "ns.renamed", "somebody", (keys("other", 31),), later.renew))
    assert (name_of(own.grant(LAKE)), own.ends) == ("other", NOW + 31 * MINUTE)
    assert str(own).startswith("credentials that catalog 'later' vended for ns.renamed, good until")
    clock.pass_minutes(30)
    assert (name_of(own.grant(LAKE)), later.requests, catalog.requests) == ("renewed", 1, 0)


def test_a_catalog_that_refuses_is_requested_twice_a_minute_and_named_once_the_keys_have_expired(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = VendingCatalog((keys("new", 120),))
    own = lease((keys("old", 60),), catalog.renew)
    catalog.reason = "no rights"
    clock.pass_minutes(55)
    for _ in range(3):
        assert (name_of(own.grant(LAKE)), catalog.requests) == ("old", 1)
    (warning,) = caplog.messages
    assert warning == (
        "credentials that catalog 'lake' vended for ns.t, good until 2023-11-14T23:13:20+00:00: there are no new ones "
        "(no rights)"
    )
    clock.pass_minutes(0.49)
    assert (name_of(own.grant(LAKE)), catalog.requests) == ("old", 1)
    clock.pass_minutes(0.01)
    assert (name_of(own.grant(LAKE)), catalog.requests) == ("old", 2)
    clock.pass_minutes(4.5)
    message = r"ns\.t: .* catalog 'lake' vended .* expired at 2023-11-14T23:13:20\+00:00.*\(no rights\)"
    message += r"\. Check that the catalog answers"
    for _ in range(2):
        with pytest.raises(AccessError, match=message):
            own.grant(LAKE)
        assert catalog.requests == 3, "the pause holds for keys that have expired, too"
    catalog.reason = ""
    clock.pass_minutes(0.5)
    assert (name_of(own.grant(LAKE)), catalog.requests) == ("new", 4)


def test_keys_that_have_expired_when_they_come_are_tried_and_requested_again_after_a_pause(clock: Clock) -> None:
    """The clock of this machine may be wrong, and the store's right."""
    catalog = VendingCatalog((keys("new", 10),))
    own = lease((keys("old", 5),), catalog.renew)
    clock.pass_minutes(30)
    for _ in range(3):
        assert (name_of(own.grant(LAKE)), catalog.requests) == ("new", 1)
    clock.pass_minutes(0.5)
    assert (name_of(own.grant(LAKE)), catalog.requests) == ("new", 2)


def test_a_clock_that_is_set_back_makes_no_expired_keys_fresh(clock: Clock) -> None:
    catalog = VendingCatalog((keys("new", 120),))
    clock.pass_minutes(45)
    own = lease((keys("old", 5),), catalog.renew)
    clock.pass_minutes(-35)
    assert (name_of(own.grant(LAKE)), catalog.requests) == ("new", 1)


def test_a_refusal_is_forgotten_once_there_are_new_keys(clock: Clock) -> None:
    catalog = VendingCatalog((keys("new", 10),))
    own = lease((keys("old", 5),), catalog.renew)
    catalog.reason = "no rights"
    clock.pass_minutes(30)
    with pytest.raises(AccessError, match="no rights"):
        own.grant(LAKE)
    catalog.reason = ""
    clock.pass_minutes(0.5)
    assert [name_of(own.grant(LAKE)) for _ in range(2)] == ["new", "new"]


@pytest.mark.parametrize(("minutes", "waits"), [(56, False), (60, True), (61, True)])
def test_only_where_the_keys_have_expired_a_thread_waits_for_the_one_that_renews_them(
    clock: Clock, minutes: float, waits: bool
) -> None:
    begun, answered = Event(), Event()

    def renew() -> tuple[Grant, ...]:
        begun.set()
        assert answered.wait(PATIENCE)
        return (keys("new", 120),)

    own = lease((keys("old", 60),), renew)
    clock.pass_minutes(minutes)
    with ThreadPoolExecutor(2) as pool:
        renewing = pool.submit(own.grant, LAKE)
        assert begun.wait(PATIENCE)
        other = pool.submit(own.grant, LAKE)
        is_done = bool(wait([other], 0.1 if waits else PATIENCE).done)
        answered.set()
        assert is_done != waits
        assert name_of(other.result(PATIENCE)) == ("new" if waits else "old")
        assert name_of(renewing.result(PATIENCE)) == "new"


def test_a_catalog_that_vends_nothing_any_more_is_refused(clock: Clock) -> None:
    own = lease((keys("old", 60),), VendingCatalog(()).renew)
    clock.pass_minutes(61)
    with pytest.raises(AccessError, match="it vends none any more"):
        own.grant(LAKE)


def test_what_a_store_refuses_is_replaced_once_and_then_its_refusal_is_final_for_half_a_minute(clock: Clock) -> None:
    catalog = VendingCatalog((keys("second", 60),), (keys("second", 60),), (keys("third", 60),))
    own = lease((keys("first", 60),), catalog.renew)
    first = own.grant(LAKE)
    assert own.has_other_than(first, LAKE)
    assert (name_of(own.grant(LAKE)), catalog.requests) == ("second", 1)
    assert own.has_other_than(first, LAKE), "which another thread has replaced already"
    assert catalog.requests == 1
    second = own.grant(LAKE)
    for _ in range(3):
        assert not own.has_other_than(second, LAKE)
        assert catalog.requests == 2
    clock.pass_minutes(0.5)
    assert own.has_other_than(second, LAKE)
    assert (name_of(own.grant(LAKE)), catalog.requests) == ("third", 3)


@pytest.mark.parametrize("turned", [False, True])
def test_the_longest_of_nested_prefixes_is_whose_keys_open_a_file(turned: bool) -> None:
    grants = (keys("all", 60, "s3://"), keys("table", 60), keys("data", 60, f"{LAKE}/data/"), keys("b", 60, "s3://b"))
    vended = grants[::-1] if turned else grants
    for location, name in (
        (f"{LAKE}/data/a.parquet", "data"),
        (f"{LAKE}/data", "data"),
        (f"{LAKE}/metadata/a.avro", "table"),
        ("s3a://lake/t/data/a.parquet", "data"),
        ("s3://lake/other", "all"),
        ("gs://lake/t/data", ""),
    ):
        assert name_of(nearest(vended, location)) == name
    assert nearest((keys("data", 60, f"{LAKE}/data/"),), f"{LAKE}/database/a") is None
    assert name_of(nearest((keys("table", 60, "S3A://lake/t"),), f"{LAKE}/a")) == "table", "as Hadoop spells it"


def test_a_process_and_a_user_of_a_table_have_a_lease_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that was forked while its parent renewed keys would wait for that thread, which it does not have."""
    monkeypatch.setattr(credentials, "_leases", {})
    grants = (keys("a", 60),)
    ours, another = (VendedGrants("lake", "ns.t", who, grants, lambda: grants) for who in ("ann", "bob"))
    own = lease_of(ours)
    assert lease_of(ours) is own
    assert lease_of(another) is not own
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert lease_of(ours) is not own


def test_the_lease_of_a_process_takes_up_keys_that_last_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_leases", {})
    monkeypatch.setattr(credentials, "_now", lambda: NOW)
    for name, minutes, expected in (("a", 30, "a"), ("b", 60, "b"), ("c", 30, "b")):
        grants = (keys(name, minutes),)
        own = lease_of(VendedGrants("lake", "ns.t", "ann", grants, lambda: ()))
        assert name_of(own.grant(LAKE)) == expected


def test_keys_that_last_no_longer_do_not_wait_while_others_are_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_leases", {})
    vended = [VendedGrants("lake", "ns.t", "ann", (keys("a", minutes),), lambda: ()) for minutes in (60, 30, 60)]
    own = lease_of(vended[0])
    with ThreadPoolExecutor(2) as pool, own._lock:
        for other in vended[1:]:
            assert pool.submit(lease_of, other).result(PATIENCE) is own


def test_requests_are_signed_where_keys_are_vended_though_the_bucket_was_open_to_all() -> None:
    own = {"s3.anonymous": "true", "s3.region": "eu-west-1"}
    vended = {"s3.access-key-id": "a", "s3.secret-access-key": "b"}
    assert combined(own, vended) == {"s3.region": "eu-west-1", **vended}
    assert combined(own, {"gcs.oauth2.token": "t"}) == {**own, "gcs.oauth2.token": "t"}


def test_a_key_and_the_time_of_its_expiry_are_vended_and_other_settings_are_not() -> None:
    account = "acc.dfs.core.windows.net"
    for key in ("s3.access-key-id", "client.session-token", "gcs.oauth2.token", f"adls.sas-token.{account}"):
        assert is_vended(key)
    for expiry in (
        "s3.session-token-expires-at-ms",
        "gcs.oauth2.token-expires-at",
        f"adls.sas-token-expires-at-ms.{account}",
    ):
        assert is_vended(expiry)
    for other in ("s3.endpoint", "s3.session-tokens", "gcs.project-id", "adls.account-name", "client.region"):
        assert not is_vended(other)


@pytest.mark.parametrize("code", ["400", "InvalidToken", "TokenRefreshRequired", "404", "SlowDown", None])
def test_a_store_refuses_keys_by_some_of_its_answers_and_not_by_others(code: str | None) -> None:
    """A HEAD request is answered without a text, by 400 alone."""
    error = OSError("refused")
    error.__cause__ = None if code is None else ClientError({"Error": {"Code": code}}, "HeadObject")
    assert _refuses_keys(error) == (code in {"400", "InvalidToken", "TokenRefreshRequired"})
    assert _refuses_keys(PermissionError("forbidden"))
