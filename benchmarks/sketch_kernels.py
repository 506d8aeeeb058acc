"""Sketching without files: CPU time per value by kind and type, of unions, and of many distinct values.

    python -m benchmarks.sketch_kernels [--values 10000000]

One thread, arrays that the caches do not hold, the fastest of some runs.
"""

import argparse
import time
from collections.abc import Callable

import datasketches
import numpy as np
import pyarrow as pa

from icepuffin.ann_kernels.sketches import hashing
from icepuffin.ann_kernels.sketches.kll import DEFAULT_K, KllAccumulator, KllSketch
from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator, union, warm
from icepuffin.ann_kernels.sketches.theta_estimates import estimate
from icepuffin.ops.tasks.sketches.accumulators import SizeAccumulator
from icepuffin.ops.tasks.sketches.column_updates import update_histogram, update_joint
from icepuffin.ops.tasks.sketches.frequent_values import FrequentAccumulator
from icepuffin.puffin.blobs.frequent_items_blob import LG_TABLE

RUNS = 3
SKETCHES = 200
BATCH = 1 << 16
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


def kinds(values: int) -> dict[str, Callable[[], object]]:
    """{statistics and column: what makes them of so many rows, in batches as readers give}, beside datasketches."""
    rng = np.random.default_rng(0)
    longs, doubles = rng.integers(0, 1 << 62, values), rng.random(values)
    skewed = pa.array(rng.zipf(1.3, values) % 200)
    country = pa.array([f"country {i}" for i in range(200)]).take(skewed)
    columns = {
        "long": pa.array(longs),
        "double": pa.array(doubles),
        "string": pa.array(longs).cast(pa.string()),
        "200 strings": country,
    }

    def histogram(name: str) -> Callable[[], object]:
        def work() -> None:
            sketch = KllAccumulator(columns[name].to_numpy().dtype)
            for start in range(0, values, BATCH):
                update_histogram(sketch, columns[name][start : start + BATCH], name)
            sketch.result()

        return work

    def frequent(name: str, iceberg: str) -> Callable[[], object]:
        def work() -> None:
            sketch = FrequentAccumulator()
            for start in range(0, values, BATCH):
                sketch.update(columns[name][start : start + BATCH], iceberg)
            sketch.result()

        return work

    def joint(*pairs: tuple[str, str]) -> Callable[[], object]:
        def work() -> None:
            sketch, types = ThetaAccumulator(), [iceberg for _, iceberg in pairs]
            for start in range(0, values, BATCH):
                update_joint(sketch, [columns[name][start : start + BATCH] for name, _ in pairs], types)
            sketch.result()

        return work

    def frequent_of_datasketches() -> None:
        sketch = datasketches.frequent_strings_sketch(LG_TABLE)
        for text in country[:BATCH].to_pylist() * (values // BATCH):
            sketch.update(text)

    return {
        "KLL, long": histogram("long"),
        "KLL, double": histogram("double"),
        "KLL, double, datasketches": lambda: datasketches.kll_doubles_sketch(DEFAULT_K).update(doubles),
        "frequent, 200 strings": frequent("200 strings", "string"),
        "frequent, 200 strings, datasketches": frequent_of_datasketches,
        "frequent, distinct longs": frequent("long", "long"),
        "joint, 2 longs": joint(("long", "long"), ("long", "long")),
        "joint, long and 200 strings": joint(("long", "long"), ("200 strings", "string")),
        "size, strings of 19 bytes": lambda: SizeAccumulator().update(columns["string"], "string"),
    }


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of the fastest run."""
    spent = []
    for _ in range(RUNS):
        begun = time.process_time()
        work()
        spent.append(time.process_time() - begun)
    return min(spent)


def merged(sketches: list[KllSketch]) -> KllSketch:
    """One sketch of all."""
    accumulator = KllAccumulator(np.int64)
    for sketch in sketches:
        accumulator.merge(sketch)
    return accumulator.result()


def main() -> None:
    """Print a table in Markdown, and three lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=10_000_000)
    options = parser.parse_args()
    warm()
    hashing.warm()
    print("| type | ns per value | GB/s |\n|---|---|---|")
    for name, (width, update) in columns(options.values).items():
        seconds = cpu_seconds(lambda update=update: update(ThetaAccumulator()))  # type: ignore[misc]
        print(f"| {name} | {1e9 * seconds / options.values:.1f} | {width * options.values / seconds / 1e9:.1f} |")
    for name, work in kinds(options.values).items():
        print(f"| {name} | {1e9 * cpu_seconds(work) / options.values:.1f} | |")
    sketches, histograms = [], []
    for part in np.array_split(np.arange(options.values), SKETCHES):
        sketch = ThetaAccumulator()
        sketch.update_fixed(part)
        sketches.append(sketch.result())
        histogram = KllAccumulator(np.int64)
        histogram.update(part)
        histograms.append(histogram.result())
    print(f"union of {SKETCHES} full sketches: {1000 * cpu_seconds(lambda: union(sketches)):.0f} ms")
    merge_us = 1e6 * cpu_seconds(lambda: merged(histograms)) / SKETCHES
    print(f"merge of a KLL sketch: {merge_us:.0f} us")
    theta, hashes = union(sketches)
    print(f"estimate of {options.values:,} distinct values: {estimate(theta, len(hashes)):,.0f}")


if __name__ == "__main__":
    main()
