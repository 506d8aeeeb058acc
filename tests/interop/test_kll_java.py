"""KLL images between this project and Java's DataSketches, which Presto reads them by: both ways, and merged there."""

from typing import Any

import numpy as np
import pytest

from icepuffin.ann_kernels.sketches.kll import DEFAULT_K, KllAccumulator, KllSketch
from icepuffin.puffin.blobs.kll_blob import decode, encode

pytestmark = pytest.mark.jvm
SHARES = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0]
BASE = 2**40
"""Whole numbers from here on are a Java Long; py4j makes an Integer of smaller ones."""


class JavaKll:
    """Java's sketches of Long or Double items."""

    def __init__(self, spark: Any, is_float: bool) -> None:
        self._library = spark._jvm.org.apache.datasketches
        serializers = self._library.common
        serializer = serializers.ArrayOfDoublesSerDe() if is_float else serializers.ArrayOfLongsSerDe()
        self._items = spark._jvm.java.util.Comparator.naturalOrder(), serializer
        self._inclusive = self._library.quantilescommon.QuantileSearchCriteria.INCLUSIVE

    def new(self, k: int) -> Any:
        return self._library.kll.KllItemsSketch.newHeapInstance(k, *self._items)

    def heapified(self, image: bytes) -> Any:
        return self._library.kll.KllItemsSketch.heapify(self._memory(image), *self._items)

    def wrapped(self, image: bytes) -> Any:
        """As Presto's `KllHistogram` has it."""
        return self._library.kll.KllItemsSketch.wrap(self._memory(image), *self._items)

    def _memory(self, image: bytes) -> Any:
        return self._library.memory.Memory.wrap(bytearray(image))

    def quantiles(self, sketch: Any) -> list[float]:
        return [sketch.getQuantile(share, self._inclusive) for share in SHARES]

    def ranks(self, sketch: Any, values: np.ndarray) -> list[float]:
        return [sketch.getRank(value, self._inclusive) for value in values.tolist()]


def values_of(count: int, is_float: bool) -> np.ndarray:
    values = np.random.default_rng(count).permutation(count) + BASE
    return values / 4 if is_float else values


def sketch_of(values: np.ndarray, k: int = DEFAULT_K) -> KllSketch:
    accumulator = KllAccumulator(values.dtype, k)
    accumulator.update(values)
    return accumulator.result()


@pytest.mark.parametrize("is_float", [True, False])
@pytest.mark.parametrize("count", [0, 1, 2, 512, 513, 16_384, 16_385, 100_000])
def test_java_reads_what_is_written_and_writes_the_same_bytes(spark: Any, count: int, is_float: bool) -> None:
    java, sketch = JavaKll(spark, is_float), sketch_of(values_of(count, is_float))
    image = encode(sketch)
    for read in (java.heapified(image), java.wrapped(image)):
        assert (read.getN(), read.getK(), read.getNumRetained()) == (count, DEFAULT_K, sum(map(len, sketch.levels)))
        assert bytes(read.toByteArray()) == image
        if count:
            assert (read.getMinItem(), read.getMaxItem()) == (sketch.minimum, sketch.maximum)
            quantiles = sketch.quantiles(SHARES[:-1])
            assert java.quantiles(read)[:-1] == quantiles.tolist()
            assert java.ranks(read, quantiles) == pytest.approx(sketch.ranks(quantiles).tolist())


@pytest.mark.parametrize("is_float", [True, False])
def test_java_adds_to_what_is_written_and_merges_it(spark: Any, is_float: bool) -> None:
    java = JavaKll(spark, is_float)
    merged = java.new(DEFAULT_K)
    for part in np.array_split(values_of(90_000, is_float), 20):
        merged.merge(java.heapified(encode(sketch_of(part))))
    merged.update(values_of(1, is_float)[0].item())
    assert merged.getN() == 90_001
    read = decode(bytes(merged.toByteArray()), is_float)
    truth = np.sort(values_of(90_000, is_float))
    assert np.abs(read.ranks(truth[::900]) - np.arange(1, 90_001, 900) / 90_000).max() < 0.01


@pytest.mark.parametrize("is_float", [True, False])
@pytest.mark.parametrize("count", [0, 1, 2, 200, 201, 3_000])
def test_what_java_writes_is_read(spark: Any, count: int, is_float: bool) -> None:
    java = JavaKll(spark, is_float)
    written = java.new(200)
    for value in values_of(count, is_float).tolist():
        written.update(value)
    read = decode(bytes(written.toByteArray()), is_float)
    assert (read.k, read.count) == (200, count)
    assert read.levels[0].dtype == (np.float64 if is_float else np.int64)
    if count:
        assert (read.minimum, read.maximum) == (written.getMinItem(), written.getMaxItem())
        assert read.quantiles(SHARES[:-1]).tolist() == java.quantiles(written)[:-1]
        assert java.quantiles(java.heapified(encode(read))) == java.quantiles(written)
