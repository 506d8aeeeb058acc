"""Theta sketching without files: CPU time per value by type, of a union, and of many distinct values.

    python -m benchmarks.sketch_kernels [--values 10000000]

One thread, arrays that the caches do not hold, the fastest of some runs.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator, union, warm
from icepuffin.ann_kernels.sketches.theta_estimates import estimate

RUNS = 3
SKETCHES = 200
Update = Callable[[ThetaAccumulator], None]


def columns(values: int) -> dict[str, tuple[int, Update]]:
    """{type: (bytes per value, what adds the values to a sketch)}."""
    rng = np.random.default_rng(0)
    longs = rng.integers(0, 1 << 62, values)
    few = longs % 3_000
    ints = longs.astype(np.int32)
    text = rng.integers(97, 123, 20 * values, dtype=np.uint8)
    offsets = np.arange(values + 1, dtype=np.int64) * 20
    narrow = np.stack([longs.astype(np.uint64), np.zeros(values, np.uint64)], axis=1)
    wide = np.stack([longs.astype(np.uint64), np.ones(values, np.uint64)], axis=1)
    return {
        "long, timestamp, time, double": (8, lambda sketch: sketch.update_fixed(longs)),
        "int, date, float": (4, lambda sketch: sketch.update_fixed(ints)),
        "long, 3,000 distinct values": (8, lambda sketch: sketch.update_fixed(few)),
        "decimal up to 64 bits": (16, lambda sketch: sketch.update_decimals(narrow)),
        "decimal over 64 bits": (16, lambda sketch: sketch.update_decimals(wide)),
        "string, 20 bytes": (20, lambda sketch: sketch.update_bytes(offsets, text)),
    }


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of the fastest run."""
    spent = []
    for _ in range(RUNS):
        begun = time.process_time()
        work()
        spent.append(time.process_time() - begun)
    return min(spent)


def main() -> None:
    """Print a table in Markdown, and two lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=10_000_000)
    options = parser.parse_args()
    warm()
    print("| type | ns per value | GB/s |\n|---|---|---|")
    for name, (width, update) in columns(options.values).items():
        seconds = cpu_seconds(lambda update=update: update(ThetaAccumulator()))  # type: ignore[misc]
        print(f"| {name} | {1e9 * seconds / options.values:.1f} | {width * options.values / seconds / 1e9:.1f} |")
    sketches = []
    for part in np.array_split(np.arange(options.values), SKETCHES):
        sketch = ThetaAccumulator()
        sketch.update_fixed(part)
        sketches.append(sketch.result())
    print(f"union of {SKETCHES} full sketches: {1000 * cpu_seconds(lambda: union(sketches)):.0f} ms")
    theta, hashes = union(sketches)
    print(f"estimate of {options.values:,} distinct values: {estimate(theta, len(hashes)):,.0f}")


if __name__ == "__main__":
    main()
