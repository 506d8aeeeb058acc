"""Compilation of all kernels for processes that share numba's cache: `python -m icepuffin.ops.process.kernel_cache`."""

import gc
import logging
import multiprocessing
import os
import sys
import time
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait

from icepuffin.ann_kernels import compiled_code, warmup
from icepuffin.puffin.varint import warm as warm_blobs

PARTS = (*warmup.PARTS, warm_blobs)
"""Uses of kernels that compile them all, in the order in which processes begin with them"""
_REWRITTEN_SECONDS, _PRINTED_SECONDS = 1, 10
"""Seconds from one report to the next: on a terminal, where it takes the place of the last one, and elsewhere"""


def main() -> None:
    """Compile all kernels, in less than a minute the first time and seconds afterwards. Prints how far it is."""
    begun = time.perf_counter()
    processes = min(len(PARTS), len(os.sched_getaffinity(0)))
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_prepare)
    try:
        _report([pool.submit(part) for part in PARTS], begun)
    finally:
        pool.shutdown(cancel_futures=True)


def _report(parts: list[Future[None]], begun: float) -> None:
    """Print how many parts are done until all are. Raises what a part raised."""
    rewrites = sys.stdout.isatty()
    begins, ends = ("\r", "") if rewrites else ("", "\n")
    while wait(parts, _REWRITTEN_SECONDS if rewrites else _PRINTED_SECONDS, FIRST_EXCEPTION).not_done:
        done = [part for part in parts if part.done()]
        for part in done:
            part.result()
        seconds = time.perf_counter() - begun
        print(f"{begins}kernels: {len(done)} of {len(parts)} parts compiled, {seconds:.0f} s", end=ends, flush=True)  # noqa: T201
    for part in parts:
        part.result()
    print(f"{begins}kernels compiled in {time.perf_counter() - begun:.1f} s          ")  # noqa: T201


def _prepare() -> None:
    logging.getLogger(compiled_code.__name__).setLevel(logging.ERROR)  # the line advises to run this
    gc.disable()  # what numba makes stays, and examining it again and again took a tenth of the time


if __name__ == "__main__":
    main()
