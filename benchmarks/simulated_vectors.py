"""A table of any size from a few real vectors: each row lies between one of them and a near neighbour, plus noise.

    python -m benchmarks.simulated_vectors --base embeddings.npy --rows 1e6 --dims 96 --out vectors.npy

So rows keep the clusters and the local dimension of the real vectors, and no two are alike. A row depends on its number
and the seed alone: rows are made when they are read, and never kept. The command writes them to an .npy, for benchmarks
that take one.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.codes import kmeans

F32 = npt.NDArray[np.float32]
BLOCK = 16_384
"""Rows that are made at once"""
_NEIGHBORS = 8
_ROWS_PER_CLUSTER = 1_000
_TRAINED_ON = 20_000
_NOISE = 0.5
"""Noise relative to the distance of the two vectors that a row lies between"""
_MIN_NOISE = 0.02
"""Noise relative to the spread of all vectors, at least: so that equal vectors do not give equal rows"""
_SIMULATED_ROWS, _CLUSTERS, _LATENT_DIMS = 20_000, 200, 24


class SimulatedVectors:
    """f32[N, D], as rows are read: by a slice, or by an array of row numbers.

    Parameters
    ----------
    folder : Path
        As `prepare` has filled it.
    count : int
        N.
    seed : int
        Another seed gives other rows of the same distribution.
    byte_valued : bool
        Round to whole numbers of 0 to 255.
    """

    def __init__(self, folder: Path, count: int, *, seed: int = 0, byte_valued: bool = False) -> None:
        self._base: F32 = np.load(folder / "base.npy", mmap_mode="r")
        self._neighbors: npt.NDArray[np.int32] = np.load(folder / "neighbors.npy", mmap_mode="r")
        self._lowest, self._highest, self._spread = np.load(folder / "range.npy").tolist()
        self._count = count
        self._seed = seed
        self._byte_valued = byte_valued

    def __len__(self) -> int:
        return self._count

    @property
    def shape(self) -> tuple[int, int]:
        return self._count, self._base.shape[1]

    def __getitem__(self, rows: slice | npt.NDArray[Any]) -> F32:
        if isinstance(rows, slice):
            first, last, _ = rows.indices(self._count)
            parts = [
                self._block(number)[max(0, first - number * BLOCK) : last - number * BLOCK]
                for number in range(first // BLOCK, -(-last // BLOCK))
            ]
            return np.concatenate([np.empty((0, self.shape[1]), np.float32), *parts])
        vectors = np.empty((len(rows), self.shape[1]), np.float32)
        blocks = np.asarray(rows) // BLOCK
        for number in np.unique(blocks).tolist():
            places = np.flatnonzero(blocks == number)
            vectors[places] = self._block(number)[rows[places] - number * BLOCK]
        return vectors

    def _block(self, number: int) -> F32:
        """Rows `number * BLOCK` and the next ones, of a whole block."""
        rng = np.random.default_rng([self._seed, number])
        own = rng.integers(0, len(self._base), BLOCK)
        other = self._neighbors[own, rng.integers(0, self._neighbors.shape[1], BLOCK)]
        start = np.asarray(self._base[own])
        step = self._base[other] - start
        reach = np.sqrt(np.einsum("ij,ij->i", step, step) / step.shape[1])
        noise = np.maximum(_NOISE * reach, _MIN_NOISE * self._spread).astype(np.float32)
        vectors = start + rng.random((BLOCK, 1), np.float32) * step
        vectors += noise[:, None] * rng.standard_normal(step.shape, np.float32)
        if self._byte_valued:
            scale = 255 / max(self._highest - self._lowest, 1e-9)
            vectors = np.clip(np.rint((vectors - self._lowest) * scale), 0, 255).astype(np.float32)
        return vectors


def prepare(base: Path | None, dims: int | None, folder: Path, *, seed: int = 0) -> int:
    """Write the vectors of an .npy and their near neighbours for `SimulatedVectors`; returns their dimensions.

    With `base` None the vectors are simulated, too. Other `dims` than the vectors have are reached by a random
    orthonormal map: it keeps distances where there are more, and most of them where there are fewer.
    """
    vectors = _simulated_base(dims or 128, seed) if base is None else np.load(base, mmap_mode="r")
    if vectors.ndim != 2 or len(vectors) < 2:
        raise ValueError(f"{base} has the shape {vectors.shape}: it must be two or more vectors")
    dims = dims or vectors.shape[1]
    mapping = _orthonormal(vectors.shape[1], dims, seed) if dims != vectors.shape[1] else None
    mapped = np.lib.format.open_memmap(folder / "base.npy", "w+", np.float32, (len(vectors), dims))
    for start in range(0, len(vectors), BLOCK):
        part = np.asarray(vectors[start : start + BLOCK], np.float32)
        mapped[start : start + BLOCK] = part if mapping is None else part @ mapping
    np.save(folder / "neighbors.npy", near_neighbors(mapped, seed=seed))
    some = mapped[:: max(1, len(mapped) // _TRAINED_ON)]
    np.save(folder / "range.npy", np.array([*np.quantile(some, (0.001, 0.999)), some.std(axis=0).mean()]))
    return dims


def near_neighbors(vectors: F32, *, seed: int = 0) -> npt.NDArray[np.int32]:
    """int32[N, n]: the n nearest others of each vector f32[N, D] among those of its k-means cluster.

    A vector that has fewer others in its cluster has some of them, or itself, several times.
    """
    clusters = max(1, len(vectors) // _ROWS_PER_CLUSTER)
    sample = np.array(vectors[:: max(1, len(vectors) // _TRAINED_ON)])
    labels, _ = kmeans.assign(vectors, kmeans.train(sample, clusters, seed=seed, iterations=8))
    order = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[order], np.arange(clusters + 1))
    nearest = np.repeat(np.arange(len(vectors), dtype=np.int32)[:, None], _NEIGHBORS, axis=1)
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        members = order[low:high]
        if len(members) < 2:
            continue
        cluster = np.asarray(vectors[members])
        norms = np.einsum("ij,ij->i", cluster, cluster)
        width = min(_NEIGHBORS, len(members) - 1)
        for start in range(0, len(members), _ROWS_PER_CLUSTER):
            rows = slice(start, start + _ROWS_PER_CLUSTER)
            scores = norms - 2 * (cluster[rows] @ cluster.T)
            scores[np.arange(len(scores)), np.arange(len(scores)) + start] = np.inf
            places = np.argpartition(scores, width - 1, axis=1)[:, :width]
            nearest[members[rows]] = np.resize(members[places].T, (_NEIGHBORS, len(scores))).T
    return nearest


def _orthonormal(rows: int, columns: int, seed: int) -> F32:
    """f32[rows, columns] with orthonormal rows, or columns where these are fewer."""
    gaussian = np.random.default_rng(seed).standard_normal((max(rows, columns), min(rows, columns)))
    basis = np.linalg.qr(gaussian)[0].astype(np.float32)
    return basis if rows >= columns else np.ascontiguousarray(basis.T)


def _simulated_base(dims: int, seed: int) -> F32:
    """Clusters of different sizes in a space of few dimensions, mapped into `dims` dimensions."""
    rng = np.random.default_rng(seed)
    latent = min(dims, _LATENT_DIMS)
    labels = (_CLUSTERS * rng.random(_SIMULATED_ROWS) ** 1.5).astype(np.int64)
    centers = rng.standard_normal((_CLUSTERS, latent))
    points = centers[labels] + 0.4 * rng.standard_normal((_SIMULATED_ROWS, latent))
    return points.astype(np.float32) @ _orthonormal(latent, dims, seed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write an .npy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: int(float(text)), required=True, help="such as 1e6")
    parser.add_argument("--dims", type=int, help="[default: those of the base; 128 without one]")
    parser.add_argument("--base", type=Path, help=".npy of real vectors [default: simulated clusters]")
    parser.add_argument("--byte-valued", action="store_true", help="round vectors to whole numbers of 0 to 255")
    parser.add_argument("--seed", type=int, default=0, help="[default: %(default)s]")
    parser.add_argument("--out", type=Path, required=True, help="the .npy: f32, or u8 with --byte-valued")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        dims = prepare(options.base, options.dims, Path(folder), seed=options.seed)
        vectors = SimulatedVectors(Path(folder), options.rows, seed=options.seed, byte_valued=options.byte_valued)
        kind = np.uint8 if options.byte_valued else np.float32
        written = np.lib.format.open_memmap(options.out, "w+", kind, (options.rows, dims))
        for start in range(0, options.rows, BLOCK):
            written[start : start + BLOCK] = vectors[start : start + BLOCK]
        written.flush()


if __name__ == "__main__":
    main()
