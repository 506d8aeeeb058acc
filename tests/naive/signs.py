"""Slow and obvious: signs of four-bit codes, and the distances that they rule out."""

import numpy as np


def terms(values: np.ndarray, widths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factor f64[N] and error f64[N] of vectors f64[N, D] from the offset on, by their signs times the widths."""
    signs = np.where(values > 0, 1.0, -1.0) * widths
    factors, errors = np.empty(len(values)), np.empty(len(values))
    for row, (value, sign) in enumerate(zip(values, signs, strict=True)):
        factors[row] = (value @ value) / (value @ sign)
        rest = value - factors[row] * sign
        assert abs(rest @ value) < 1e-6 * (value @ value)
        errors[row] = np.sqrt(rest @ rest / (widths @ widths))
    return factors, errors


def integers(codes: np.ndarray) -> np.ndarray:
    """int[Q, D], -16 to 15: signed bytes of queries, divided by eight and rounded, halves up."""
    return np.minimum(np.floor(codes / 8 + 0.5), 15).astype(int)


def unpacked(words: np.ndarray) -> np.ndarray:
    """bool[.., 64 * n] of words u64[.., n], the lowest bit first."""
    bits = [[int(word) >> place & 1 for word in words.ravel() for place in range(64)]]
    return np.array(bits, bool).reshape(*words.shape[:-1], -1)
