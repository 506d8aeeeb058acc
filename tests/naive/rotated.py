"""Slow and obvious: the rotation, codes of rotated vectors, and the distances that they tell."""

import numpy as np


def words(seed: int, count: int) -> list[int]:
    """SplitMix64."""
    out = []
    for number in range(1, count + 1):
        z = (seed + number * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        out.append(z ^ z >> 31)
    return out


def rotation(dims: int, seed: int) -> np.ndarray:
    """The matrix f64[D', D'] that rows are multiplied by."""
    hadamard = np.array([[(-1.0) ** (i & j).bit_count() for i in range(128)] for j in range(128)]) / np.sqrt(128)
    drawn = [1 - 2 * (word >> bit & 1) for word in words(seed, 3 * dims // 64) for bit in range(64)]
    out = np.eye(dims)
    for signs in np.array(drawn).reshape(3, dims):
        blocks = (out * signs).reshape(len(out), dims // 128, 128) @ hadamard
        out = blocks.transpose(0, 2, 1).reshape(len(out), dims)
    return out


def rotated(vectors: np.ndarray, center: np.ndarray, seed: int) -> np.ndarray:
    gaps = vectors.astype(np.float64) - center
    width = gaps.shape[1] + -gaps.shape[1] % 128
    return np.pad(gaps, ((0, 0), (0, width - gaps.shape[1]))) @ rotation(width, seed)


def levels(high: np.ndarray, low: np.ndarray, bits: int, dims: int) -> np.ndarray:
    """Codes int[N, D'] out of the bytes of their two parts."""

    def halves(plane: np.ndarray) -> np.ndarray:
        blocks = plane.reshape(-1, dims // 128, 64).astype(int)
        return np.concatenate([blocks & 15, blocks >> 4], axis=2).reshape(len(blocks), dims)

    if bits == 4:
        return halves(high)
    if bits == 8:
        return 16 * halves(high) + halves(low)
    ones = low.reshape(-1, dims // 128, 16).astype(int)
    return 2 * halves(high) + np.stack([ones >> bit & 1 for bit in range(8)], axis=2).reshape(len(ones), dims)
