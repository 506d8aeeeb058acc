"""Memory of what is large and soon dropped."""

import subprocess
import sys

import numpy as np
import pytest

from icepuffin.puffin.transient import transient


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, 3_000_001])
def test_an_array_can_be_filled(size: int) -> None:
    array = transient(size)
    array[:] = np.arange(size)
    assert array.shape == (size,)
    assert (array == np.arange(size).astype(np.uint8)).all()


MEMORY = """
from pathlib import Path
from icepuffin.puffin.transient import transient

def anonymous_bytes():
    text = Path("/proc/self/smaps_rollup").read_text().split("Anonymous:")[1]
    return 1024 * int(text.split()[0])

size = 24 << 20
bytearray(31 << 20)  # malloc keeps blocks up to the largest that was freed
before = anonymous_bytes()
arrays = [transient(size) for _ in range(4)]
for array in arrays:
    array[:] = 1
del array
assert anonymous_bytes() > before + 3.9 * size
del arrays[:3]  # not in the order of an allocator's end
assert anonymous_bytes() < before + 1.1 * size
"""


def test_memory_is_the_systems_again_when_an_array_is_dropped() -> None:
    """In a process of its own, as threads that other tests have left take memory meanwhile."""
    subprocess.run([sys.executable, "-c", MEMORY], check=True)
