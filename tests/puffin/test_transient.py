"""Memory of what is large and soon dropped."""

from pathlib import Path

import numpy as np
import pytest

from icepuffin.puffin.transient import transient


def anonymous_bytes() -> int:
    text = Path("/proc/self/smaps_rollup").read_text().split("Anonymous:")[1]
    return 1024 * int(text.split()[0])


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, 3_000_001])
def test_an_array_can_be_filled(size: int) -> None:
    array = transient(size)
    array[:] = np.arange(size)
    assert array.shape == (size,)
    assert (array == np.arange(size).astype(np.uint8)).all()


def test_memory_is_the_systems_again_when_an_array_is_dropped() -> None:
    size = 24 << 20
    before = anonymous_bytes()
    arrays = [transient(size) for _ in range(4)]
    for array in arrays:
        array[:] = 1
    del array
    assert anonymous_bytes() > before + 3.9 * size
    del arrays[:3]  # not in the order of an allocator's end
    assert anonymous_bytes() < before + 1.1 * size
