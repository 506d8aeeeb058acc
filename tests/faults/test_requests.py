"""Requests to an S3 server that are lost, late, or answered as if nothing had been written. Clients repeat most; one
retry of the run makes all of it good.
"""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from icepuffin.ops.storage import s3
from tests.faults.test_stores import (
    FULL,
    assert_failures_survived,
    drawn_numbers,
    make_bucket_stage,
)
from tests.services.forwarding import Answer, Request, forward, serving
from tests.services.s3proxy import s3proxy

WRITE_FAULTS = ("lost request", "lost answer", "late answer")
READ_FAULTS = (*WRITE_FAULTS, "stale answer")
WRITE_STRIDE, READ_STRIDE = (1, 1) if FULL else (20, 160)
"""Requests per fault: of those that write, and of the others. A run has 20 to 50 that write, and up to 210 others"""
_PATIENCE_S = 1.0
"""Seconds that the client waits for an answer: a busy machine gives all others in that time"""
_STALE_OBJECT = b"<Error><Code>NoSuchKey</Code><Message>stale</Message></Error>"
_STALE_LISTING = b"""<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>lake</Name>
<KeyCount>0</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated></ListBucketResult>"""

pytestmark = pytest.mark.services


@dataclass(frozen=True)
class Fault:
    """What goes wrong with a request."""

    is_write: bool
    number: int
    """Number of the request among those that write, or among the others: threads send both, in any order"""
    what: str


@dataclass
class Line:
    """Counts the requests that it passes on, and lets one of them go wrong."""

    upstream: str
    requests: Counter[bool] = field(default_factory=Counter)
    """Number of requests, by whether they write"""
    due: Fault | None = None
    happened: list[Fault] = field(default_factory=list)
    hid_a_version: bool = False
    """Whether the file of an index was stated to be missing"""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, request: Request) -> Answer | None:
        is_write = request.method not in ("GET", "HEAD")
        with self._lock:
            self.requests[is_write] += 1
            what = ""
            if self.due is not None and (is_write, self.requests[is_write]) == (self.due.is_write, self.due.number):
                what = self.due.what
                self.happened.append(self.due)
        if what == "lost request":
            return None
        if what == "stale answer":
            is_listing = "list-type" in parse_qs(urlsplit(request.path).query)
            self.hid_a_version = "/ann-e-" in request.path and not is_listing
            return Answer(200, body=_STALE_LISTING) if is_listing else Answer(404, body=_STALE_OBJECT)
        answer = forward(self.upstream, request)
        if what == "late answer":
            time.sleep(1.5 * _PATIENCE_S)
        return None if what == "lost answer" else answer

    @contextmanager
    def failing(self, fault: Fault) -> Iterator[None]:
        """The request goes wrong while the block lasts."""
        self.requests.clear()
        self.due, self.hid_a_version = fault, False
        yield
        self.due = None


def drawn_faults(requests: Counter[bool], rng: random.Random) -> list[Fault]:
    """Faults of requests so far apart, which take turns, of a run that sends as many."""
    return [
        Fault(is_write, number, what)
        for is_write, kinds, stride in ((True, WRITE_FAULTS, WRITE_STRIDE), (False, READ_FAULTS, READ_STRIDE))
        for number, what in zip(
            drawn_numbers(requests[is_write], stride, rng),
            itertools.cycle(rng.sample(kinds, len(kinds))),
            strict=False,
        )
    ]


def test_each_request_to_an_object_store_may_go_wrong(
    server_scenario: str,
    tmp_path: Path,
    survived: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
    rng: random.Random,
) -> None:
    monkeypatch.setitem(s3._TIMEOUTS, "read_timeout", _PATIENCE_S)
    with s3proxy(tmp_path) as direct:
        line = Line(direct.properties["s3.endpoint"])
        with serving(line.answer) as uri:
            storage = replace(direct, properties={**direct.properties, "s3.endpoint": uri})
            stage = make_bucket_stage(tmp_path, server_scenario, storage)
            line.requests.clear()
            outcome = stage.work()
            assert line.requests[True] > 15
            assert line.requests[False] > 50
            faults = drawn_faults(line.requests, rng)
            line.happened.clear()
            assert_failures_survived(stage, line.failing, faults, outcome, hid_a_version=lambda: line.hid_a_version)
    missed = [fault for fault in faults if fault not in line.happened]
    assert not any(fault.is_write for fault in missed), missed
    assert len(missed) < 2 + len(faults) / 20, missed  # a run may read a few times less than the first
    survived.update(f"S3 request: {fault.what}" for fault in line.happened)
