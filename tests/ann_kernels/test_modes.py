import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.registry import cpu_target

from tests.ann_kernels import exercise

ROOT = Path(__file__).parents[2]
AVX2 = "+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+bmi,+bmi2,+f16c,+lzcnt,+cx16"
HOST_FEATURES = str(cpu_target.target_context.codegen().magic_tuple()[2]).split(",")
MODES = {
    "bounds checked, without AVX-512": {
        "NUMBA_BOUNDSCHECK": "1", "NUMBA_OPT": "0", "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": AVX2,
    },
    "without the JIT": {"NUMBA_DISABLE_JIT": "1"},
}  # fmt: skip
WARNINGS = "error,ignore:Cannot cache compiled function"
"""What LLVM does not optimise keeps addresses, and numba caches no such kernel"""


@pytest.mark.parametrize("mode", MODES)
def test_kernels_give_the_same_in_every_mode(mode: str, tmp_path: Path) -> None:
    if "NUMBA_CPU_NAME" in MODES[mode] and "+avx2" not in HOST_FEATURES:
        pytest.skip("this CPU has no AVX2")
    environment = os.environ | MODES[mode] | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONWARNINGS": WARNINGS}
    command = [sys.executable, "-m", "tests.ann_kernels.exercise"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-3000:]
    there, here = json.loads(done.stdout), exercise.main()
    assert there.pop("mode") != here.pop("mode") or "NUMBA_BOUNDSCHECK" in MODES[mode]
    assert there == here
