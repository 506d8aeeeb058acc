"""Product quantization: a vector as m bytes. Source: Jégou et al., Product Quantization for Nearest Neighbor Search."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from icepuffin.ann_kernels import kmeans
from icepuffin.ann_kernels.arrays import F32, U8, read_only
from icepuffin.ann_kernels.blas_threads import one_blas_thread
from icepuffin.ann_kernels.errors import DimensionError, KernelError

CODEWORDS = 256
_TRAINING_ROWS = 65_536
_ROWS_PER_TASK = 512


def choose_m(dims: int, largest: int = 48) -> int:
    """The largest number of sub-quantizers that divides `dims` and is at most `largest`. Raises KernelError."""
    if dims < 1 or largest < 1:
        raise KernelError(f"{dims} dimensions cannot be cut into {largest} parts")
    return max(m for m in range(1, min(dims, largest) + 1) if dims % m == 0)


def train_pq(sample: F32, m: int, *, seed: int, threads: int = 1, iterations: int = 10) -> F32:
    """Codebook f32[m, 256, D / m] of sample f32[N, D]. Raises DimensionError where m does not divide D."""
    dims = sample.shape[1]
    if dims % m:
        raise DimensionError(f"{m} sub-quantizers do not divide {dims} dimensions")
    width = dims // m
    rng = np.random.default_rng(seed)
    if len(sample) > _TRAINING_ROWS:
        sample = sample[np.sort(rng.choice(len(sample), _TRAINING_ROWS, replace=False))]
    codebook = np.empty((m, CODEWORDS, width), np.float32)

    def train(part: int) -> None:
        values = np.ascontiguousarray(sample[:, part * width : (part + 1) * width])
        center = values.mean(axis=0, dtype=np.float64).astype(np.float32)  # far from zero, products would round away
        codebook[part] = center + kmeans.train(values - center, CODEWORDS, seed=seed + part, iterations=iterations)

    with one_blas_thread, ThreadPoolExecutor(max(1, threads)) as executor:
        list(executor.map(train, range(m)))
    return codebook


def encode_pq(vectors: F32, codebook: F32, *, threads: int = 1) -> U8:
    """Codes u8[N, m] of vectors f32[N, D]: for each part, the nearest codeword. Raises DimensionError, KernelError."""
    m, _, width = codebook.shape
    if vectors.shape[1] != m * width:
        raise DimensionError(f"vectors have {vectors.shape[1]} dimensions, the codebook {m * width}")
    if codebook.shape[1] != CODEWORDS:
        raise KernelError(f"the codebook has {codebook.shape[1]} codewords a part, not {CODEWORDS}")
    codes = np.empty((len(vectors), m), np.uint8)
    books = [kmeans.centered(part) for part in codebook]

    def encode(start: int) -> None:
        rows = read_only(vectors[start : start + _ROWS_PER_TASK])
        for part, book in enumerate(books):
            kmeans.nearest_narrow(rows, part * width, book, codes[start : start + len(rows), part])

    with ThreadPoolExecutor(max(1, threads)) as executor:
        list(executor.map(encode, range(0, len(vectors), _ROWS_PER_TASK)))
    return codes


def decode_pq(codes: U8, codebook: F32) -> F32:
    """The vectors f32[N, D] that codes u8[N, m] stand for."""
    parts = np.arange(codebook.shape[0])
    dims = codebook.shape[0] * codebook.shape[2]  # -1 would not do for no codes
    return np.ascontiguousarray(codebook[parts[None, :], codes].reshape(len(codes), dims))


class PqCodebook:
    """A codebook f32[m, 256, D / m], prepared for the distances of many queries. Immutable."""

    def __init__(self, codebook: F32) -> None:
        centers = np.asarray(codebook.mean(axis=1, dtype=np.float64), np.float32)
        self._centers = centers[:, None]
        """A point amid the codewords of each part: around it, squares are no larger than the distances need"""
        words = codebook - self._centers
        self._norms = np.einsum("mcw,mcw->mc", words, words)
        self._words = np.ascontiguousarray(codebook.transpose(0, 2, 1))
        self._doubled = np.ascontiguousarray(-2 * words.transpose(0, 2, 1))

    def tables(self, queries: F32, *, inner_product: bool) -> F32:
        """f32[Q, m, 256]: what each codeword adds to the squared distance (or to minus dot) of each query f32[D]."""
        parts = queries.reshape(len(queries), len(self._words), -1).transpose(1, 0, 2)
        if inner_product:
            return np.ascontiguousarray(-np.matmul(parts, self._words).transpose(1, 0, 2))
        parts = parts - self._centers
        out = np.matmul(parts, self._doubled)
        out += self._norms[:, None]
        out += np.einsum("mqw,mqw->mq", parts, parts)[:, :, None]
        return np.ascontiguousarray(out.transpose(1, 0, 2))
