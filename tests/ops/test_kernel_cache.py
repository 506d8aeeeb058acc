"""`icepuffin.ops.kernel_cache` compiles all that a build and searches use: runs on a new image compile nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from icepuffin.ann_kernels.compilation import JIT


@pytest.mark.skipif(not JIT, reason="nothing is compiled")
def test_after_the_warm_up_builds_and_searches_compile_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.ops.kernel_cache_use", str(tmp_path / "lake")]
    repository = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {}
