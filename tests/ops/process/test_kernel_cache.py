"""`icepuffin.ops.process.kernel_cache` compiles all that builds and searches use: a new image compiles nothing."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from icepuffin.ann_kernels.compilation import JIT
from icepuffin.ops.process import kernel_cache


@pytest.mark.skipif(not JIT, reason="nothing is compiled")
def test_after_the_warm_up_builds_and_searches_compile_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.ops.process.kernel_cache_use", str(tmp_path / "lake")]
    repository = Path(__file__).resolve().parents[3]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {}


def test_a_process_that_is_killed_ends_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "PARTS", (partial(os._exit, 9),))
    with pytest.raises(BrokenProcessPool):
        kernel_cache.main()


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[Future[None]]:
    """Two parts, of which one is done, and reports that follow each other fast."""
    for name in ("_REWRITTEN_SECONDS", "_PRINTED_SECONDS"):
        monkeypatch.setattr(kernel_cache, name, 0.01)
    first: Future[None] = Future()
    first.set_result(None)
    return [first, Future()]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_warm_up_says_how_far_it_is(
    parts: list[Future[None]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, is_terminal: bool
) -> None:
    def seven_seconds() -> float:
        """Of the first line; the last part is done behind it."""
        if not parts[1].done():
            parts[1].set_result(None)
        return 7.0

    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    monkeypatch.setattr(kernel_cache, "time", SimpleNamespace(perf_counter=seven_seconds))
    kernel_cache._report(parts, 0.0)
    first, end = capsys.readouterr().out.strip().split("\r" if is_terminal else "\n")
    assert first == "kernels: 1 of 2 parts compiled, 7 s"
    assert end.rstrip() == "kernels compiled in 7.0 s"


def test_a_part_that_fails_ends_the_warm_up_while_others_run(parts: list[Future[None]]) -> None:
    parts[0] = Future()
    parts[0].set_exception(ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        kernel_cache._report(parts, time.perf_counter())
