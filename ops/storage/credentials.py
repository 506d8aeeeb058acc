"""Credentials that catalogs vend: each table's are kept for the whole process, and renewed before they expire."""

import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.model import Grant, StorageConfig, Vended
from icepuffin.ops.storage.locations import normalize

_log = logging.getLogger(__name__)
KEYS = tuple(
    f"{whose}.{name}"
    for whose in ("s3", "client")
    for name in ("access-key-id", "secret-access-key", "session-token", "role-arn", "role-session-name", "profile-name")
)
"""Settings that say whose requests these are. Vended ones replace all of them, not one by one"""
EXPIRES = "s3.session-token-expires-at-ms"
REMOTE_SIGNING = "s3.remote-signing-enabled"
_EARLY_MS = 5 * 60_000.0
"""How long before they expire credentials are renewed; a quarter of what is left of them where that is less"""
_UNTOLD_MS = 10 * 60_000.0
"""After which a session token is renewed where the catalog does not say when it expires"""
_PAUSE_MS = 30_000.0
"""Between two questions to a catalog that gave nothing new"""


class AccessError(IcepuffinError):
    """Raised when there are no credentials for a table's files, or none that are good any more. The files are well."""


class RemoteSigningError(AccessError):
    """Raised where the catalog gives no keys, but would sign each request itself."""

    retryable = False


def settings_for(location: str, config: StorageConfig) -> dict[str, str]:
    """PyIceberg's store settings for `location` as of now, with what the catalog vends for it; it is asked if need be.

    Vended settings win over others, as in PyIceberg and Iceberg's own clients. Raises AccessError.
    """
    vended = lease_of(config.vended).grant(location) if config.vended else None
    return combined(config.properties, vended.properties if vended else {})


def combined(own: Mapping[str, str], vended: Mapping[str, str]) -> dict[str, str]:
    """Own settings under vended ones. Keys are taken from one of the two: a token of one fits no key of the other."""
    if any(key in vended for key in KEYS):
        own = {key: value for key, value in own.items() if key not in KEYS and key != "s3.anonymous"}
    if own.get(REMOTE_SIGNING) == "false":
        vended = {**vended, REMOTE_SIGNING: "false"}
    return {**own, **vended}


class Lease:
    """One table's vended credentials in this process, whoever of its threads uses them. Thread-safe."""

    def __init__(self, vended: Vended) -> None:
        self._vended = vended
        self._lock = threading.Lock()
        self._refused = ""
        """Why the catalog gave no new ones when it was asked last"""
        self._patience = -math.inf
        """Until when a refusal is believed and the catalog not asked: doing so was in vain"""
        self._take(vended.grants)

    @property
    def fresh(self) -> bool:
        """Whether `grant` will answer at once."""
        return _now() < self._due

    @property
    def ends(self) -> float:
        """When the first of the credentials expires, ms since the epoch; infinite where the catalog does not say."""
        return self._ends

    def offer(self, vended: Vended) -> None:
        """Credentials of the same table that came another way: taken if they last longer."""
        with self._lock:
            if ends_of(vended.grants) > self._ends:
                self._vended = vended
                self._take(vended.grants)

    def grant(self, location: str) -> Grant | None:
        """What is vended for a location; None where nothing is. Raises AccessError for what expired."""
        self._stay_fresh()
        return nearest(self._grants, location)

    def has_other_than(self, refused: Grant | None, location: str) -> bool:
        """Whether there are other credentials than those that a store refused; the catalog is asked if need be."""
        with self._lock:
            if nearest(self._grants, location) == refused and _now() >= self._patience:
                self._renew()
        if self.grant(location) != refused:
            return True
        self.in_vain()
        return False

    def in_vain(self) -> None:
        """New credentials are refused as old ones are: it is not for their age."""
        self._patience = _now() + _PAUSE_MS

    def __str__(self) -> str:
        """What is vended, in words."""
        until = "" if math.isinf(self._ends) else f", good until {_as_text(self._ends)}"
        return f"credentials that catalog {self._vended.catalog!r} vended for {self._vended.table}{until}"

    def _stay_fresh(self) -> None:
        if self.fresh and not self._refused:
            return
        expired = _now() >= self._ends
        if not self._lock.acquire(blocking=expired):
            return  # somebody is at it, and what there is will do
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
            self._take(grants)
            if _now() >= self._ends:  # to this machine's clock; the store may think otherwise, and is asked with them
                self._due = _now() + _PAUSE_MS

    def _take(self, grants: tuple[Grant, ...]) -> None:
        now = _now()
        self._grants, self._refused = grants, ""
        self._ends = ends_of(grants)
        left = max(0.0, self._ends - now)
        self._due = self._ends - min(_EARLY_MS, left / 4)
        if math.isinf(self._ends) and any("s3.session-token" in grant.properties for grant in grants):
            self._due = now + _UNTOLD_MS

    def _expired(self) -> AccessError:
        return AccessError(
            f"{self._vended.table}: the credentials that catalog {self._vended.catalog!r} vended for its files expired "
            f"at {_as_text(self._ends)}, and it gives no others ({self._refused}). Check that the catalog answers from "
            "this machine, that your own token or credential for it is still good, and that you may still read the "
            "table; then run it again"
        )


def ends_of(grants: tuple[Grant, ...]) -> float:
    """When the first of them expires, ms since the epoch; infinite where that is not told, 0 where there is none."""
    told = (grant.properties.get(EXPIRES, "") for grant in grants)
    return min((float(text) if text.isdecimal() else math.inf for text in told), default=0.0)


def nearest(grants: tuple[Grant, ...], location: str) -> Grant | None:
    """The grant with the longest prefix of `location`, an object or a folder."""
    whole = f"{_spelled(location)}/"
    found = [grant for grant in grants if whole.startswith(_spelled(grant.prefix))]
    return max(found, key=lambda grant: len(grant.prefix), default=None)


def _spelled(location: str) -> str:
    """As `normalize`; a prefix may be a scheme alone."""
    return normalize(location) if ":" in location else location


def _now() -> float:
    return time.time() * 1000


def _as_text(milliseconds: float) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


_leases: dict[tuple[int, str], Lease] = {}


def lease_of(vended: Vended) -> Lease:
    """The process's lease of a table's credentials; `vended` as it was pickled may be older than what that holds."""
    key = os.getpid(), vended.who
    found = _leases.get(key) or _leases.setdefault(key, Lease(vended))
    if ends_of(vended.grants) > found.ends:
        found.offer(vended)
    return found
