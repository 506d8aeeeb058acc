"""Theta sketches the slow, obvious way: murmur3 in Python integers, a set of all hashes, sort."""

from collections.abc import Iterable

MASK = (1 << 64) - 1
MAX_THETA = (1 << 63) - 1


def _rotl(x: int, r: int) -> int:
    return ((x << r) | (x >> (64 - r))) & MASK


def _fmix(x: int) -> int:
    x ^= x >> 33
    x = x * 0xFF51AFD7ED558CCD & MASK
    x ^= x >> 33
    x = x * 0xC4CEB9FE1A85EC53 & MASK
    return x ^ (x >> 33)


def murmur3_x64_128(data: bytes, seed: int) -> tuple[int, int]:
    """Both halves, straight from the reference description."""
    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    h1 = h2 = seed
    blocks = len(data) // 16
    for i in range(blocks):
        k1 = int.from_bytes(data[16 * i : 16 * i + 8], "little")
        k2 = int.from_bytes(data[16 * i + 8 : 16 * i + 16], "little")
        h1 ^= _rotl(k1 * c1 & MASK, 31) * c2 & MASK
        h1 = ((_rotl(h1, 27) + h2) * 5 + 0x52DCE729) & MASK
        h2 ^= _rotl(k2 * c2 & MASK, 33) * c1 & MASK
        h2 = ((_rotl(h2, 31) + h1) * 5 + 0x38495AB5) & MASK
    tail = data[16 * blocks :]
    if len(tail) > 8:
        h2 ^= _rotl(int.from_bytes(tail[8:], "little") * c2 & MASK, 33) * c1 & MASK
    if tail:
        h1 ^= _rotl(int.from_bytes(tail[:8], "little") * c1 & MASK, 31) * c2 & MASK
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & MASK
    h2 = (h2 + h1) & MASK
    h1, h2 = _fmix(h1), _fmix(h2)
    h1 = (h1 + h2) & MASK
    return h1, (h2 + h1) & MASK


def sketch(values: Iterable[bytes], k: int = 4096, seed: int = 9001) -> tuple[int, list[int]]:
    """(theta, ascending hashes): the k smallest distinct hashes of the values, theta the one after them."""
    hashes = sorted({h for value in values if value and (h := murmur3_x64_128(value, seed)[0] >> 1)})
    return trim(MAX_THETA, hashes, k)


def trim(theta: int, hashes: Iterable[int], k: int) -> tuple[int, list[int]]:
    below = sorted({h for h in hashes if h < theta})
    return (below[k], below[:k]) if len(below) > k else (theta, below)


def union(sketches: Iterable[tuple[int, Iterable[int]]], k: int = 4096) -> tuple[int, list[int]]:
    found = [(theta, set(hashes)) for theta, hashes in sketches]
    theta = min((t for t, _ in found), default=MAX_THETA)
    return trim(theta, set().union(*(hashes for _, hashes in found)), k)
