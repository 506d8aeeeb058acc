"""Product quantization: a vector as m codes of 8 or of 4 bits, B bytes in all.

Codes of 4 bits lie two in a byte: that of part 2 i in the low half of byte i, that of part 2 i + 1 in the high half.
Source: Jégou et al., Product Quantization for Nearest Neighbor Search.
"""

import numpy as np

from icepuffin.ann_kernels.arrays import F32, U8, read_only
from icepuffin.ann_kernels.blas_threads import one_blas_thread
from icepuffin.ann_kernels.codes import kmeans
from icepuffin.ann_kernels.codes.code_sizes import BITS, code_bytes
from icepuffin.ann_kernels.errors import DimensionError, KernelError
from icepuffin.ann_kernels.parallel import for_each

_TRAINING_ROWS = 65_536
_ROWS_PER_TASK = 512


def code_bits(codebook: F32) -> int:
    """Bits of the codes that a codebook f32[m, 2^bits, D / m] gives."""
    return int(codebook.shape[1]).bit_length() - 1


def train_pq(sample: F32, m: int, *, bits: int = 8, seed: int, threads: int = 1, iterations: int = 10) -> F32:
    """Codebook f32[m, 2^bits, D / m] of sample f32[N, D].

    Raises DimensionError where m does not divide D, KernelError where codes would not fill whole bytes.
    """
    dims = sample.shape[1]
    if dims % m:
        raise DimensionError(f"{m} sub-quantizers do not divide {dims} dimensions")
    if bits not in BITS or m * bits % 8:
        raise KernelError(f"{m} codes of {bits} bits do not fill whole bytes")
    width = dims // m
    rng = np.random.default_rng(seed)
    if len(sample) > _TRAINING_ROWS:
        sample = sample[np.sort(rng.choice(len(sample), _TRAINING_ROWS, replace=False))]
    codebook = np.empty((m, 1 << bits, width), np.float32)

    def train(part: int) -> None:
        values = np.ascontiguousarray(sample[:, part * width : (part + 1) * width])
        center = values.mean(axis=0, dtype=np.float64).astype(np.float32)  # far from zero, products would round away
        codebook[part] = center + kmeans.train(values - center, 1 << bits, seed=seed + part, iterations=iterations)

    with one_blas_thread:
        for_each(train, range(m), threads=threads)
    return codebook


def encode_pq(vectors: F32, codebook: F32, *, threads: int = 1) -> U8:
    """Codes u8[N, B] of vectors f32[N, D]: for each part, the nearest codeword. Raises DimensionError, KernelError."""
    m, words, width = codebook.shape
    bits = code_bits(codebook)
    if vectors.shape[1] != m * width:
        raise DimensionError(f"vectors have {vectors.shape[1]} dimensions, the codebook {m * width}")
    if bits not in BITS or words != 1 << bits:
        raise KernelError(f"the codebook has {words} codewords a part, not 16 or 256")
    codes = np.empty((len(vectors), code_bytes(m, bits)), np.uint8)
    books = [kmeans.centered(part) for part in codebook]

    def encode(start: int) -> None:
        rows = read_only(vectors[start : start + _ROWS_PER_TASK])
        out = codes[start : start + len(rows)]
        parts = out if bits == 8 else np.empty((len(rows), m), np.uint8)
        for part, book in enumerate(books):
            kmeans.nearest_narrow(rows, part * width, book, parts[:, part])
        if bits == 4:
            out[...] = parts[:, 0::2] | parts[:, 1::2] << 4

    for_each(encode, range(0, len(vectors), _ROWS_PER_TASK), threads=threads)
    return codes


def decode_pq(codes: U8, codebook: F32) -> F32:
    """The vectors f32[N, D] that codes u8[N, B] stand for."""
    parts = np.arange(codebook.shape[0])
    if code_bits(codebook) == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), len(parts))
    dims = codebook.shape[0] * codebook.shape[2]  # -1 would not do for no codes
    return np.ascontiguousarray(codebook[parts[None, :], codes].reshape(len(codes), dims))


class PqCodebook:
    """A codebook f32[m, 2^bits, D / m], prepared for the distances of many queries. Immutable."""

    def __init__(self, codebook: F32) -> None:
        centers = np.asarray(codebook.mean(axis=1, dtype=np.float64), np.float32)
        self._centers = centers[:, None]
        """A point amid the codewords of each part: around it, squares are no larger than the distances need"""
        words = codebook - self._centers
        self._norms = np.einsum("mcw,mcw->mc", words, words)
        self._words = np.ascontiguousarray(codebook.transpose(0, 2, 1))
        self._doubled = np.ascontiguousarray(-2 * words.transpose(0, 2, 1))

    def tables(self, queries: F32, *, inner_product: bool) -> F32:
        """f32[Q, B, 256]: what each byte of a code adds to the squared distance (or to minus dot) of each query f32[D].

        A byte of two codes adds what both add.
        """
        tables = self._by_part(queries, inner_product=inner_product)
        if tables.shape[2] == 16:
            pairs = tables[:, 1::2, :, None] + tables[:, 0::2, None, :]
            tables = pairs.reshape(len(queries), -1, 256)
        return np.ascontiguousarray(tables)

    def _by_part(self, queries: F32, *, inner_product: bool) -> F32:
        """f32[Q, m, 2^bits]"""
        parts = queries.reshape(len(queries), len(self._words), -1).transpose(1, 0, 2)
        out: F32
        if inner_product:
            out = -np.matmul(parts, self._words)
        else:
            parts = parts - self._centers
            out = np.matmul(parts, self._doubled)
            out += self._norms[:, None]
            out += np.einsum("mqw,mqw->mq", parts, parts)[:, :, None]
        return out.transpose(1, 0, 2)
