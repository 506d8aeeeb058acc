"""What a test may start: Spark and other JVMs where it is marked `jvm`, real servers where it is marked `services`.

Code that starts one calls `need`, which refuses where the test that runs lacks the marker. Tests that find it started,
by a fixture that they share, are refused as well. And no JVM starts in a test without either marker, whoever starts
it, in a process of its own too: each reads JAVA_TOOL_OPTIONS, and finds an option there that it does not know.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_STARTED = {"jvm": "Spark or another JVM", "services": "a real server", "trino": "Trino"}
"""What needs each marker"""
_NO_JVM = "-XX:+TheTestThatStartsThisIsMarkedNeitherJvmNorServices"
_tests: list[pytest.Item] = []
"""The test that runs, if one does"""
_fixtures: list[pytest.FixtureDef[Any]] = []
"""Fixtures that are being set up, each for the one before it"""
_shared: dict[tuple[str, str], str] = {}
"""Marker that each shared fixture needs that has started something, by the fixture's place and name"""


class UnmarkedTestError(Exception):
    """A test starts what it is not marked for."""


def need(marker: str) -> None:
    """Called by what is about to start something. Raises UnmarkedTestError where the test lacks the marker."""
    if _fixtures and _fixtures[-1].scope != "function":
        _shared[_fixtures[-1].baseid, _fixtures[-1].argname] = marker
    for test in _tests:
        _refuse_unmarked(test, marker)


def refuse_unmarked(request: pytest.FixtureRequest) -> None:
    """Refuse a test that used shared fixtures, by their names or dynamically, without the markers that they need."""
    for (place, name), marker in _shared.items():
        if name in request.fixturenames and request.node.nodeid.startswith(place):
            _refuse_unmarked(request.node, marker)


def _refuse_unmarked(test: pytest.Item, marker: str) -> None:
    if test.get_closest_marker(marker) is None:
        raise UnmarkedTestError(f"{test.nodeid} uses {_STARTED[marker]}: mark it with pytest.mark.{marker}")


@contextmanager
def running(test: pytest.Item) -> Iterator[None]:
    """A test runs, with its fixtures: what starts in this block needs its markers."""
    _tests.append(test)
    try:
        with pytest.MonkeyPatch.context() as patch:
            if not any(test.get_closest_marker(marker) for marker in _STARTED):
                patch.setenv("JAVA_TOOL_OPTIONS", f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {_NO_JVM}")
            yield
    finally:
        _tests.pop()


@contextmanager
def setting_up(fixture: pytest.FixtureDef[Any], request: Any) -> Iterator[None]:
    """A fixture is set up. Where it is refused, the next test that wants it may have the marker."""
    _fixtures.append(fixture)
    try:
        yield
    except UnmarkedTestError:
        fixture.finish(request)
        raise
    finally:
        _fixtures.pop()
