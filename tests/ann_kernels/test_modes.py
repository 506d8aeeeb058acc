import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.registry import cpu_target

from icepuffin.ann_kernels.simd.byte_products import HAS_VNNI
from tests.ann_kernels import exercise
from tests.draws import amount

ROOT = Path(__file__).parents[2]
HOST_FEATURES = str(cpu_target.target_context.codegen().magic_tuple()[2]).split(",")
SSE = "+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16"
AVX2 = f"{SSE},+avx,+avx2,+fma,+bmi,+bmi2,+f16c,+lzcnt"
FEWER = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": AVX2}
"""A CPU with the next lesser way to multiply bytes than this one's: with VNNI, by AVX2, or by neither"""
if not HAS_VNNI:
    FEWER = {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": SSE}
MODES = {
    "bounds checked, on a lesser CPU": {
        "NUMBA_BOUNDSCHECK": "1",
        "NUMBA_OPT": "0",
        "OPENBLAS_NUM_THREADS": "2",
        **FEWER,
    },
    "without the JIT": {"NUMBA_DISABLE_JIT": "1", "OPENBLAS_NUM_THREADS": "1"},
}
"""One has another number of BLAS's threads than this process"""
WARNINGS = "error,ignore:Cannot cache compiled function"
"""What LLVM does not optimise keeps addresses, and numba caches no such kernel"""


@pytest.mark.parametrize("mode", MODES)
def test_kernels_give_the_same_in_every_mode(mode: str, tmp_path: Path, seed: str) -> None:
    """A seventh of the uses, all with ICEPUFFIN_DRAWS=7: to compile them takes minutes."""
    if "NUMBA_CPU_NAME" in MODES[mode] and "+sse4.2" not in HOST_FEATURES:
        pytest.skip("this CPU is not of x86-64")
    environment = os.environ | MODES[mode] | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONWARNINGS": WARNINGS}
    parts = random.Random(seed).sample([*exercise.PARTS], min(amount(2), len(exercise.PARTS)))
    command = [sys.executable, "-m", "tests.ann_kernels.exercise", *parts]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-3000:]
    there, here = json.loads(done.stdout), exercise.main(parts)
    assert there.pop("mode") != here.pop("mode")
    assert there == here
