"""Credentials that catalogs vend: each table's are kept for the whole process, and renewed before they expire."""

import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from icepuffin.ops.errors import IcepuffinError, UnreachableError
from icepuffin.ops.model import Grant, VendedGrants
from icepuffin.ops.storage.locations import normalize

_log = logging.getLogger(__name__)
KEYS = {
    "s3": tuple(
        f"{scope}.{name}"
        for scope in ("s3", "client")
        for name in (
            "access-key-id",
            "secret-access-key",
            "session-token",
            "role-arn",
            "role-session-name",
            "profile-name",
        )
    ),
    "gcs": ("gcs.oauth2.token",),
    "adls": (
        "adls.sas-token",
        "adls.account-key",
        "adls.connection-string",
        "adls.token",
        "adls.tenant-id",
        "adls.client-id",
        "adls.client-secret",
    ),
}
"""Settings that identify the user of a store, by the kind of store; `adls.sas-token.<account>` is one, too. Where a
catalog vends any of a kind, it replaces all of that kind"""
_EXPIRES = ("s3.session-token-expires-at-ms", "gcs.oauth2.token-expires-at", "adls.sas-token-expires-at-ms.")
_SHORT_LIVED = ("s3.session-token", "gcs.oauth2.token", "adls.sas-token", "adls.token")
REMOTE_SIGNING = "s3.remote-signing-enabled"
_EARLY_MS = 5 * 60_000.0
"""Milliseconds between the renewal of credentials and their expiry; a quarter of their remaining time where less"""
_RENEWAL_MS = 10 * 60_000.0
"""Milliseconds until a token is renewed where the catalog does not say when it expires"""
_PAUSE_MS = 30_000.0
"""Milliseconds between two requests to a catalog that gave nothing new"""


class AccessError(UnreachableError):
    """Raised when there are no valid credentials for a table's files. It says nothing about the files."""


class RemoteSigningError(AccessError):
    """Raised when the catalog gives no keys, but offers to sign each request itself."""

    retryable = False


def combined(properties: Mapping[str, str], vended: Mapping[str, str]) -> dict[str, str]:
    """`properties` with `vended` over them. Keys come from one of the two alone: a token fits no key of the other."""
    if kinds := {kind_of_key(key) for key in vended} - {""}:
        properties = {key: value for key, value in properties.items() if kind_of_key(key) not in kinds}
        properties = {key: value for key, value in properties.items() if "s3" not in kinds or key != "s3.anonymous"}
    if properties.get(REMOTE_SIGNING) == "false":
        vended = {**vended, REMOTE_SIGNING: "false"}
    return {**properties, **vended}


def kind_of_key(setting: str) -> str:
    """The kind of store whose user the setting identifies: a key of KEYS; empty for other settings."""
    name = "adls.sas-token" if setting.startswith("adls.sas-token.") else setting
    return next((kind for kind, keys in KEYS.items() if name in keys), "")


def is_vended(setting: str) -> bool:
    """Whether it is a key of a store, or the time at which one expires."""
    return kind_of_key(setting) != "" or setting.startswith(_EXPIRES)


class Lease:
    """One table's vended credentials in this process, shared by its threads. Thread-safe."""

    def __init__(self, vended: VendedGrants) -> None:
        self._vended = vended
        self._lock = threading.Lock()
        self._refused = ""
        """Cause of the catalog's last refusal to give new ones; empty after a success"""
        self._final_until = -math.inf
        """Time, ms since the epoch, until which a store's refusal is final: no new keys are requested"""
        self._adopt(vended.grants)

    @property
    def fresh(self) -> bool:
        """Whether `grant` needs no request to the catalog."""
        return _now() < self._due

    @property
    def ends(self) -> float:
        """Time at which the first of the credentials expires, ms since the epoch; infinite where the catalog does not
        say.
        """
        return self._ends

    def offer(self, vended: VendedGrants) -> None:
        """Take credentials of the same table that came another way, if they last longer."""
        with self._lock:
            if ends_of(vended.grants) > self._ends:
                self._vended = vended
                self._adopt(vended.grants)

    def grant(self, location: str) -> Grant | None:
        """The grant for a location; None where nothing is vended for it. Raises AccessError where it has expired."""
        self._stay_fresh()
        return nearest(self._grants, location)

    def has_other_than(self, refused: Grant | None, location: str) -> bool:
        """Whether there are other credentials than the refused ones, after a request to the catalog if need be."""
        with self._lock:
            if nearest(self._grants, location) == refused and _now() >= self._final_until:
                self._renew()
        if self.grant(location) != refused:
            return True
        self.record_refusal()
        return False

    def record_refusal(self) -> None:
        """Record that a store refuses new credentials too, so that their age is not the cause."""
        self._final_until = _now() + _PAUSE_MS

    def __str__(self) -> str:
        """The credentials in words, for messages."""
        until = "" if math.isinf(self._ends) else f", good until {_as_text(self._ends)}"
        return f"credentials that catalog {self._vended.catalog!r} vended for {self._vended.table}{until}"

    def _stay_fresh(self) -> None:
        if self.fresh and not self._refused:
            return
        expired = _now() >= self._ends
        if not self._lock.acquire(blocking=expired):
            return  # another thread renews them, and these are still valid
        try:
            if not self.fresh:
                self._renew()
            elif self._refused and _now() >= self._ends:
                raise self._expired()
        finally:
            self._lock.release()

    def _renew(self) -> None:
        try:
            grants = self._vended.renew()
            if not grants:
                raise AccessError("it vends none any more")
        except IcepuffinError as error:
            self._refused = str(error)
            self._due = _now() + _PAUSE_MS
            if _now() >= self._ends:
                raise self._expired() from error
            _log.warning("%s: there are no new ones (%s)", self, error)
        else:
            self._adopt(grants)
            if _now() >= self._ends:  # by this machine's clock; the store's may differ, so they are tried
                self._due = _now() + _PAUSE_MS

    def _adopt(self, grants: tuple[Grant, ...]) -> None:
        now = _now()
        self._grants, self._refused = grants, ""
        self._ends = ends_of(grants)
        remaining_ms = max(0.0, self._ends - now)
        self._due = self._ends - min(_EARLY_MS, remaining_ms / 4)
        if math.isinf(self._ends) and any(key.startswith(_SHORT_LIVED) for grant in grants for key in grant.properties):
            self._due = now + _RENEWAL_MS

    def _expired(self) -> AccessError:
        return AccessError(
            f"{self._vended.table}: the credentials that catalog {self._vended.catalog!r} vended for its files expired "
            f"at {_as_text(self._ends)}, and it gives no others ({self._refused}). Check that the catalog answers from "
            "this machine, that your own token or credential for it is still good, and that you may still read the "
            "table; then run it again"
        )


def ends_of(grants: tuple[Grant, ...]) -> float:
    """Time at which the first of the grants expires, ms since the epoch; infinite where none says, 0 without grants."""
    if not grants:
        return 0.0
    texts = [value for grant in grants for key, value in grant.properties.items() if key.startswith(_EXPIRES)]
    return min((float(text) for text in texts if text.isdecimal()), default=math.inf)


def nearest(grants: tuple[Grant, ...], location: str) -> Grant | None:
    """The grant with the longest prefix of `location`, an object or a folder."""
    whole = f"{_spelled(location)}/"
    matching = [grant for grant in grants if whole.startswith(_spelled(grant.prefix))]
    return max(matching, key=lambda grant: len(grant.prefix), default=None)


def _spelled(location: str) -> str:
    """The same as `normalize`, but for a prefix that is a scheme alone."""
    return normalize(location) if ":" in location else location


def _now() -> float:
    return time.time() * 1000


def _as_text(milliseconds: float) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


_leases: dict[tuple[int, str], Lease] = {}


def lease_of(vended: VendedGrants) -> Lease:
    """The process's lease of a table's credentials, with `vended` offered to it: a pickled one may be older."""
    key = os.getpid(), vended.who
    lease = _leases.get(key) or _leases.setdefault(key, Lease(vended))
    if ends_of(vended.grants) > lease.ends:
        lease.offer(vended)
    return lease
