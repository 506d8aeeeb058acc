"""Compilation of all kernels into numba's cache, before processes share it: `python -m icepuffin.ops.kernel_cache`."""

import logging
import time

from icepuffin.ann_kernels import compiled_code
from icepuffin.ann_kernels.warmup import warm as warm_graphs_and_sketches
from icepuffin.puffin.varint import warm as warm_blobs


def main() -> None:
    """Compile all kernels: up to two minutes the first time, a second afterwards."""
    logging.getLogger(compiled_code.__name__).setLevel(logging.ERROR)  # the line advises to run this
    begun = time.perf_counter()
    warm_graphs_and_sketches()
    warm_blobs()
    print(f"kernels compiled in {time.perf_counter() - begun:.1f} s")  # noqa: T201


if __name__ == "__main__":
    main()
