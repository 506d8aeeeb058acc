import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ann_kernels.sketches.hashing import content_hash, murmur3_bytes, wrapping
from tests.naive.theta import murmur3_x64_128


def hash_of(data: bytes, seed: int, *, start: int = 0, padding: bytes = b"") -> int:
    array = np.frombuffer(b"\xaa" * start + data + padding, np.uint8)
    with wrapping():
        return int(murmur3_bytes(array, np.uint64(start), np.uint64(len(data)), np.uint64(seed)))


def test_known_values_of_the_reference_implementation() -> None:
    assert hash_of(b"", 0) == 0
    assert hash_of(b"hello", 0) == 0xCBD8A7B341BD9B02
    assert hash_of(b"The quick brown fox jumps over the lazy dog", 0) == 0xE34BBC7BBC071B6C


@given(data=st.binary(max_size=80), seed=st.sampled_from([0, 9001, 2**64 - 1]), start=st.integers(0, 9))
def test_every_length_and_alignment_agrees_with_the_naive_hash(data: bytes, seed: int, start: int) -> None:
    assert hash_of(data, seed, start=start, padding=b"\xff" * 9) == murmur3_x64_128(data, seed)[0]


@pytest.mark.parametrize("dims", [1, 2, 3, 4, 5, 7, 384])
def test_content_hash_is_the_hash_of_the_rows_bytes(dims: int) -> None:
    vectors = np.random.default_rng(dims).standard_normal((20, dims), dtype=np.float32)
    expected = [murmur3_x64_128(row.tobytes(), 0)[0] for row in vectors]
    assert content_hash(vectors).tolist() == expected


def test_content_hash_takes_views_that_are_not_contiguous() -> None:
    vectors = np.random.default_rng(1).standard_normal((40, 12), dtype=np.float32)
    assert content_hash(vectors[::3, 2:9]).tolist() == content_hash(vectors[::3, 2:9].copy()).tolist()
    assert content_hash(vectors[:0]).shape == (0,)


def test_content_hash_tells_the_two_zeros_apart() -> None:
    zeros = np.array([[0.0], [-0.0]], np.float32)
    assert len(set(content_hash(zeros).tolist())) == 2


@pytest.mark.parametrize("bad", [np.zeros(3, np.float32), np.zeros((2, 2)), np.zeros((1, 1, 1), np.float32)])
def test_content_hash_refuses_other_shapes_and_types(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"content_hash takes f32\[N, D\]"):
        content_hash(bad)


@pytest.mark.parametrize("setting", ["NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK"])
def test_the_same_hashes_without_the_jit_and_under_bounds_check(setting: str, tmp_path: os.PathLike[str]) -> None:
    program = (
        "import numpy as np; from icepuffin.ann_kernels.sketches.hashing import content_hash;"
        "print(content_hash(np.arange(60, dtype=np.float32).reshape(6, 10)).tolist())"
    )
    env = {**os.environ, setting: "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == str(content_hash(np.arange(60, dtype=np.float32).reshape(6, 10)).tolist())
