"""`icepuffin.ops.kernel_cache` compiles all that a build and searches use: runs on a new image compile nothing."""

import json
import os
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import pytest

from icepuffin.ann_kernels.compilation import JIT
from icepuffin.ops import kernel_cache


@pytest.mark.skipif(not JIT, reason="nothing is compiled")
def test_after_the_warm_up_builds_and_searches_compile_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.ops.kernel_cache_use", str(tmp_path / "lake")]
    repository = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {}


def test_a_process_that_is_killed_ends_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "_PARTS", (partial(os._exit, 9),))
    with pytest.raises(BrokenProcessPool):
        kernel_cache.main()
