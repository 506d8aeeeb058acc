"""Fetched files are the pinned ones; a machine without a network gets an error that says what to do."""

from pathlib import Path

import pytest

from tests.services import jars

COORDINATE = "dev.failsafe:failsafe:3.3.2"


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ICEPUFFIN_CACHE", str(tmp_path))
    monkeypatch.delenv("ICEPUFFIN_OFFLINE", raising=False)
    return tmp_path / "jars"


def test_offline_is_a_reason_to_skip_only_where_it_is_meant(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICEPUFFIN_OFFLINE", "1")
    with pytest.raises(pytest.skip.Exception, match=f"{empty_cache} lacks {COORDINATE}"):
        jars.fetch(COORDINATE)


@pytest.mark.jvm
def test_a_failed_download_is_reported_with_what_to_do(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9")
    with pytest.raises(RuntimeError, match=f"{COORDINATE} could not be fetched .* ICEPUFFIN_OFFLINE=1"):
        jars.fetch(COORDINATE)
    assert not list(empty_cache.glob("*.jar"))


@pytest.mark.jvm
def test_what_is_not_the_pinned_file_is_not_used(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "pinned", lambda *_: {COORDINATE: "0" * 64})
    with pytest.raises(RuntimeError, match="not used"):
        jars.fetch(COORDINATE)
    assert not list(empty_cache.glob("*.jar"))
    monkeypatch.undo()


@pytest.mark.jvm
def test_a_file_is_fetched_once(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = jars.fetch(COORDINATE)
    monkeypatch.setattr(jars, "_fetch_missing", lambda _: pytest.fail("fetched again"))
    assert jars.fetch(COORDINATE) == first
    assert [path.name for path in empty_cache.glob("*.jar")] == ["failsafe-3.3.2.jar"]
