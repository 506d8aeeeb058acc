"""Compilation of all kernels into numba's cache, before processes share it: `python -m icepuffin.ops.kernel_cache`."""

import logging
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from icepuffin.ann_kernels import compiled_code, warmup
from icepuffin.puffin.varint import warm as warm_blobs

_PARTS = (*warmup.PARTS, warm_blobs)


def main() -> None:
    """Compile all kernels: a minute or two the first time, seconds afterwards."""
    begun = time.perf_counter()
    _silence()
    processes = min(len(_PARTS), len(os.sched_getaffinity(0)))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_silence) as pool:
        list(pool.map(_use, _PARTS))
    for part in _PARTS:  # numba's list of a kernel's forms lacks one where two processes have written it at once
        part()
    print(f"kernels compiled in {time.perf_counter() - begun:.1f} s")  # noqa: T201


def _silence() -> None:
    logging.getLogger(compiled_code.__name__).setLevel(logging.ERROR)  # the line advises to run this


def _use(part: Callable[[], None]) -> None:
    part()


if __name__ == "__main__":
    main()
