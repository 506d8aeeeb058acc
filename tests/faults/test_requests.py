"""Requests to an S3 server that are lost, late, or answered as if nothing had been written. Clients repeat most; one
retry of the run makes all of it good.
"""

import itertools
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from icepuffin.ops.storage import s3
from tests.faults.test_stores import (
    FULL,
    assert_failures_survived,
    drawn_numbers,
    make_bucket_stage,
    scenarios_on_servers,
)
from tests.services.forwarding import Answer, Request, forward, serving
from tests.services.s3proxy import s3proxy

FAULTS = ("lost request", "lost answer", "late answer", "stale answer")
STRIDE = 1 if FULL else 400
"""Requests per fault. The first is drawn anew in each run, and so is the fault that it begins with"""
_PATIENCE_S = 0.5
_STALE_OBJECT = b"<Error><Code>NoSuchKey</Code><Message>stale</Message></Error>"
_STALE_LISTING = b"""<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>lake</Name>
<KeyCount>0</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated></ListBucketResult>"""

pytestmark = pytest.mark.services


@dataclass
class Line:
    """Numbers the requests that it passes on, and lets one of them go wrong."""

    upstream: str
    requests: int = 0
    fail_at: int = 0
    fault: str = ""
    hid_a_version: bool = False
    """Whether the file of an index was stated to be missing"""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, request: Request) -> Answer | None:
        with self._lock:
            self.requests += 1
            fault = self.fault if self.requests == self.fail_at else ""
        if fault == "lost request":
            return None
        if fault == "stale answer" and request.method in ("GET", "HEAD"):
            is_listing = "list-type" in parse_qs(urlsplit(request.path).query)
            self.hid_a_version = "/ann-e-" in request.path and not is_listing
            return Answer(200, body=_STALE_LISTING) if is_listing else Answer(404, body=_STALE_OBJECT)
        answer = forward(self.upstream, request)
        if fault == "late answer":
            time.sleep(3 * _PATIENCE_S)
        return None if fault == "lost answer" else answer

    @contextmanager
    def failing(self, faults: Mapping[int, str], number: int) -> Iterator[None]:
        """The request of that number goes wrong as `faults` states, while the block lasts."""
        self.requests, self.fail_at, self.fault, self.hid_a_version = 0, number, faults[number], False
        yield
        self.fail_at = 0


def test_each_request_to_an_object_store_may_go_wrong(
    tmp_path: Path, survived: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(s3._TIMEOUTS, "read_timeout", _PATIENCE_S)
    with s3proxy(tmp_path) as direct:
        line = Line(direct.properties["s3.endpoint"])
        with serving(line.answer) as uri:
            storage = replace(direct, properties={**direct.properties, "s3.endpoint": uri})
            for scenario in scenarios_on_servers():
                stage = make_bucket_stage(tmp_path, scenario, storage)
                line.requests = 0
                outcome = stage.work()
                assert line.requests > 50
                numbers = drawn_numbers(line.requests, STRIDE)
                faults = itertools.islice(itertools.cycle(FAULTS), secrets.randbelow(len(FAULTS)), None)
                chosen = dict(zip(numbers, faults, strict=False))
                tried = assert_failures_survived(
                    stage, partial(line.failing, chosen), numbers, outcome, hid_a_version=lambda: line.hid_a_version
                )
                assert tried == len(chosen) > 0
                survived.update(f"S3 request: {fault}" for fault in chosen.values())
