import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icepuffin.ann_kernels.compilation import JIT
from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator, union
from icepuffin.ann_kernels.sketches.theta_estimates import DEFAULT_K, MAX_THETA, bounds, estimate
from tests.naive import theta as naive

Sketch = tuple[int, list[int]]

law = settings(max_examples=60)


def plain(sketch: tuple[int, np.ndarray]) -> Sketch:
    return sketch[0], sketch[1].tolist()


def sketch_of(values: np.ndarray, k: int = DEFAULT_K) -> Sketch:
    accumulator = ThetaAccumulator(k)
    accumulator.update_fixed(values)
    return plain(accumulator.result())


def strings(values: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *(len(v) for v in values)]).astype(np.int32)
    return offsets, np.frombuffer(b"".join(values), np.uint8)


def minimal_twos_complement(number: int) -> bytes:
    """As java.math.BigInteger.toByteArray."""
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


numbers = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=120)
ks = st.sampled_from([1, 2, 3, 16, 4096])


@pytest.mark.parametrize("dtype", ["<u1", "<i4", "<i8", "<f4", "<f8"])
def test_numbers_are_hashed_as_their_own_little_endian_bytes(dtype: str) -> None:
    values = np.random.default_rng(1).integers(0, 100_000, 5_000).astype(dtype)
    assert sketch_of(values, 512) == naive.sketch((v.tobytes() for v in values), 512)


@law
@given(values=numbers, k=ks)
def test_the_sketch_is_the_k_smallest_hashes_of_the_set(values: list[int], k: int) -> None:
    assert sketch_of(np.array(values, np.int64), k) == naive.sketch((struct.pack("<q", v) for v in values), k)


@law
@given(values=st.lists(st.binary(max_size=40), max_size=60), k=ks)
def test_byte_strings_of_every_length_and_the_empty_one_ignored(values: list[bytes], k: int) -> None:
    accumulator = ThetaAccumulator(k)
    accumulator.update_bytes(*strings(values))
    assert plain(accumulator.result()) == naive.sketch(values, k)


def test_large_offsets_and_a_slice_of_the_offsets() -> None:
    values = [f"value {i}".encode() for i in range(50)]
    offsets, data = strings(values)
    accumulator = ThetaAccumulator()
    accumulator.update_bytes(offsets.astype(np.int64)[10:31], data)
    assert plain(accumulator.result()) == naive.sketch(values[10:30])


@law
@given(values=st.lists(st.integers(-(2**127), 2**127 - 1) | st.integers(-300, 300), max_size=60))
def test_decimals_are_minimal_big_endian_twos_complement(values: list[int]) -> None:
    edges = [sign * (1 << bits) + step for bits in range(127) for sign in (1, -1) for step in (-1, 0)]
    numbers_ = values + edges
    words = np.frombuffer(b"".join(n.to_bytes(16, "little", signed=True) for n in numbers_), np.uint64).reshape(-1, 2)
    accumulator = ThetaAccumulator()
    accumulator.update_decimals(words)
    assert plain(accumulator.result()) == naive.sketch(minimal_twos_complement(n) for n in numbers_)


@pytest.mark.parametrize("first_bit", [0, 3, 8, 13])
def test_values_whose_validity_bit_is_unset_do_not_count(first_bit: int) -> None:
    rng = np.random.default_rng(first_bit)
    values, there = rng.integers(0, 2**40, 3_000), rng.random(3_000) < 0.5
    bitmap = np.packbits(np.concatenate([np.ones(first_bit, bool), there]), bitorder="little")
    fixed, decimals, texts = ThetaAccumulator(), ThetaAccumulator(), ThetaAccumulator()
    fixed.update_fixed(values, bitmap, first_bit)
    decimals.update_decimals(np.stack([values, values >> 63], axis=1).view(np.uint64), bitmap, first_bit)
    texts.update_bytes(*strings([str(v).encode() for v in values]), bitmap, first_bit)
    live = values[there].tolist()
    assert plain(fixed.result()) == naive.sketch(struct.pack("<q", v) for v in live)
    assert plain(decimals.result()) == naive.sketch(minimal_twos_complement(v) for v in live)
    assert plain(texts.result()) == naive.sketch(str(v).encode() for v in live)


@law
@given(values=numbers, k=ks, seed=st.integers(0, 99))
def test_a_sketch_does_not_depend_on_order_and_batches(values: list[int], k: int, seed: int) -> None:
    array = np.array(values, np.int64)
    rng = np.random.default_rng(seed)
    accumulator = ThetaAccumulator(k)
    for part in np.array_split(rng.permutation(array), rng.integers(1, 5)):
        accumulator.update_fixed(part)
        accumulator.result()
    assert plain(accumulator.result()) == sketch_of(array, k)


def arrays(sketch: Sketch) -> tuple[int, np.ndarray]:
    return sketch[0], np.array(sketch[1], np.uint64)


@law
@given(a=numbers, b=numbers, c=numbers, k=ks)
def test_union_is_associative_commutative_idempotent_and_the_sketch_of_all(
    a: list[int], b: list[int], c: list[int], k: int
) -> None:
    A, B, C = (arrays(sketch_of(np.array(x, np.int64), k)) for x in (a, b, c))
    everything = plain(union([A, B, C], k))
    assert everything == plain(union([A, union([B, C], k)], k)) == plain(union([union([A, B], k), C], k))
    assert everything == plain(union([C, A, B], k))
    assert plain(union([A, A], k)) == plain(A)
    assert everything == sketch_of(np.array(a + b + c, np.int64), k)


@law
@given(a=numbers, theta=st.integers(1, MAX_THETA), b=numbers, k=ks)
def test_union_with_a_sketch_whose_theta_is_not_one_of_ours(a: list[int], theta: int, b: list[int], k: int) -> None:
    first = sketch_of(np.array(a, np.int64), k)
    second = naive.trim(theta, sketch_of(np.array(b, np.int64))[1], 10**6)
    assert plain(union([arrays(first), arrays(second)], k)) == naive.union([first, second], k)


def test_union_of_nothing_is_empty() -> None:
    assert plain(union([])) == (MAX_THETA, [])
    assert estimate(MAX_THETA, 0) == 0
    assert bounds(MAX_THETA, 0) == (0, 0)


def test_ten_million_distinct_values_lie_within_the_stated_bounds() -> None:
    accumulator = ThetaAccumulator()
    for start in range(0, 10_000_000, 1_000_000):
        accumulator.update_fixed(np.arange(start, start + 1_000_000))
    theta, hashes = accumulator.result()
    low, high = bounds(theta, len(hashes), 3)
    assert len(hashes) == DEFAULT_K
    assert low < 10_000_000 < high
    assert high / low - 1 < 0.1
    assert abs(estimate(theta, len(hashes)) / 10_000_000 - 1) < 3 / DEFAULT_K**0.5


@pytest.mark.parametrize("share", [0.9, 0.999, 0.999999])
def test_there_are_no_fewer_distinct_values_than_hashes(share: float) -> None:
    low, high = bounds(int(share * 2**63), DEFAULT_K)
    assert DEFAULT_K <= low < high
    assert bounds(int(share * 2**63), 1)[0] == 1


def test_bounds_hold_as_often_as_they_say() -> None:
    bounded = 0
    for trial in range(200):
        theta, hashes = sketch_of(np.arange(20_000) + trial * 20_000, 256)
        low, high = bounds(theta, len(hashes), 2)
        bounded += low <= 20_000 <= high
    assert bounded >= 184  # 95.4 % of 200 is 191


def test_accumulators_in_many_threads_give_the_same_sketch() -> None:
    parts = np.array_split(np.random.default_rng(0).integers(0, 300_000, 400_000), 4)
    accumulators = [ThetaAccumulator() for _ in parts]
    threads = [threading.Thread(target=a.update_fixed, args=(p,)) for a, p in zip(accumulators, parts, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert plain(union([a.result() for a in accumulators])) == sketch_of(np.concatenate(parts))


def test_bad_arrays_are_refused_before_a_kernel_sees_them() -> None:
    accumulator = ThetaAccumulator()
    with pytest.raises(ValueError, match="1, 4 or 8 bytes"):
        accumulator.update_fixed(np.zeros(3, np.int16))
    with pytest.raises(ValueError, match="does not hold bits"):
        accumulator.update_fixed(np.zeros(9), np.zeros(1, np.uint8))
    with pytest.raises(ValueError, match="ascend"):
        accumulator.update_bytes(np.array([0, 5, 3], np.int32), np.zeros(9, np.uint8))
    with pytest.raises(ValueError, match="ascend"):
        accumulator.update_bytes(np.array([0, 10], np.int32), np.zeros(9, np.uint8))
    with pytest.raises(ValueError, match=r"u64\[N, 2\]"):
        accumulator.update_decimals(np.zeros((2, 3), np.uint64))
    with pytest.raises(ValueError, match="theta"):
        accumulator.update_sketch(0, np.zeros(0, np.uint64))
    with pytest.raises(ValueError, match="k = 0"):
        ThetaAccumulator(0)
    with pytest.raises(ValueError, match="standard deviations"):
        bounds(5, 1, 4)


USES_KERNELS = """
import numpy as np
from numba.core.dispatcher import Dispatcher
from icepuffin.ann_kernels.sketches import theta

def compiled_forms():
    return {name: kernel.signatures for name, kernel in vars(theta).items() if isinstance(kernel, Dispatcher)}

theta.warm()
before = compiled_forms()
a = theta.ThetaAccumulator(8)
a.update_fixed(np.arange(60))
a.update_fixed(np.arange(60, dtype=np.float32), np.full(9, 0x5A, np.uint8), 5)
a.update_bytes(np.arange(0, 101, 20, dtype=np.int32), np.arange(100, dtype=np.uint8))
a.update_decimals(np.random.default_rng(0).integers(0, 2**64, (50, 2), np.uint64))
theta.union([a.result()], 4)
assert len(before) > 5
assert compiled_forms() == before, compiled_forms()
"""


@pytest.mark.skipif(not JIT, reason="nothing is compiled")
def test_what_comes_after_warming_compiles_nothing() -> None:
    """In a process of its own: other tests compile other forms."""
    subprocess.run([sys.executable, "-W", "error", "-c", USES_KERNELS], check=True)
