"""K-means and product quantization: ours beside faiss, where its environment is installed.

    python -m benchmarks.quantizers --vectors embeddings.npy [--out quantizers.json] [--peers .venv-peers/bin/python]

Seconds of CPU, not of the clock: work is nearly the same for any number of threads, as those of OpenMP wait asleep.
`error` is the mean squared distance of a vector from its centroid, and from what its code stands for. Each system runs
in a process of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
CENTROIDS, ITERATIONS = 256, 20
PIECES, PIECE_ITERATIONS = 48, 10
STEPS = ("k-means", "nearest of 256 centroids", "PQ training", "PQ encoding")


class Icepuffin:
    """The kernels that a build calls."""

    def __init__(self, threads: int) -> None:
        from icepuffin.ann_kernels.codes import kmeans, product_quantization  # noqa: PLC0415  the peers have no icepuffin

        self.threads, self.kmeans, self.pq = threads, kmeans, product_quantization

    def train(self, vectors: Any) -> Any:
        return self.kmeans.train(vectors, CENTROIDS, seed=0, iterations=ITERATIONS, threads=self.threads)

    def assign(self, vectors: Any, centroids: Any) -> Any:
        return self.kmeans.assign(vectors, centroids, threads=self.threads)[1]

    def train_codebook(self, vectors: Any) -> Any:
        return self.pq.train_pq(vectors, PIECES, seed=0, threads=self.threads, iterations=PIECE_ITERATIONS)

    def encode(self, vectors: Any, codebook: Any) -> Any:
        return self.pq.encode_pq(vectors, codebook, threads=self.threads)

    def decode(self, codes: Any, codebook: Any) -> Any:
        return self.pq.decode_pq(codes, codebook)


class Faiss:
    """The same by faiss: all vectors are trained with, none is sampled."""

    def __init__(self, threads: int) -> None:
        import faiss  # type: ignore[import-not-found]  # noqa: PLC0415

        faiss.omp_set_num_threads(threads)
        self.faiss = faiss

    def train(self, vectors: Any) -> Any:
        most = -(-len(vectors) // CENTROIDS)
        clustering = self.faiss.Kmeans(
            vectors.shape[1],
            CENTROIDS,
            niter=ITERATIONS,
            seed=1,
            min_points_per_centroid=1,
            max_points_per_centroid=most,
        )
        clustering.train(vectors)
        return clustering.centroids

    def assign(self, vectors: Any, centroids: Any) -> Any:
        index = self.faiss.IndexFlatL2(vectors.shape[1])
        index.add(centroids)
        return index.search(vectors, 1)[0][:, 0]

    def train_codebook(self, vectors: Any) -> Any:
        quantizer = self.faiss.ProductQuantizer(vectors.shape[1], PIECES, 8)
        quantizer.cp.niter = PIECE_ITERATIONS
        quantizer.cp.min_points_per_centroid = 1  # or it warns of the first call, which is not timed
        quantizer.cp.max_points_per_centroid = -(-len(vectors) // CENTROIDS)
        quantizer.train(vectors)
        return quantizer

    def encode(self, vectors: Any, quantizer: Any) -> Any:
        return quantizer.compute_codes(vectors)

    def decode(self, codes: Any, quantizer: Any) -> Any:
        return quantizer.decode(codes)


SYSTEMS = {"icepuffin": Icepuffin, "faiss": Faiss}


def measure(system: Any, vectors: Any) -> dict[str, Any]:
    """CPU seconds of each step, and the two errors."""
    seconds: dict[str, float] = {}

    def timed(step: str, work: Callable[[], Any]) -> Any:
        started = time.process_time()
        answer = work()
        seconds[step] = time.process_time() - started
        return answer

    head = vectors[:2_000]
    system.encode(head, system.train_codebook(head))  # compiled, and threads started
    centroids = timed(STEPS[0], lambda: system.train(vectors))
    squared = timed(STEPS[1], lambda: system.assign(vectors, centroids))
    codebook = timed(STEPS[2], lambda: system.train_codebook(vectors))
    codes = timed(STEPS[3], lambda: system.encode(vectors, codebook))
    decoded = system.decode(codes, codebook)
    errors = {"k-means": float(np.mean(squared)), "PQ": float(((vectors - decoded) ** 2).sum(axis=1).mean())}
    return {"cpu_seconds": seconds, "error": errors}


def main() -> None:
    """Time both, twice in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True, help="an .npy [rows, dims]; 48 must divide dims")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peers", type=Path, default=ROOT / ".venv-peers/bin/python")
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        name, result = options.inside
        vectors = np.ascontiguousarray(np.load(options.vectors, mmap_mode="r"), np.float32)
        Path(result).write_text(json.dumps(measure(SYSTEMS[name](options.threads), vectors)), encoding="utf-8")
        return
    results: dict[str, list[dict[str, Any]]] = {}
    for _ in range(options.rounds):
        for name, python in (("icepuffin", Path(sys.executable)), ("faiss", options.peers)):
            if not python.exists():
                print(f"{name:10} skipped: no {python}; make it as benchmarks/requirements-peers.txt says")
                continue
            result = _run(name, python, options)
            results.setdefault(name, []).append(result)
            steps = ", ".join(f"{step} {result['cpu_seconds'][step]:.2f}" for step in STEPS)
            errors = ", ".join(f"{step} {error:.4f}" for step, error in result["error"].items())
            print(f"{name:10} CPU s: {steps}; error: {errors}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def _run(name: str, python: Path, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        result = Path(place) / "result.json"
        command = [str(python), str(ROOT / "benchmarks/quantizers.py"), "--vectors", str(options.vectors.resolve())]
        command += ["--threads", str(options.threads), "--inside", name, str(result)]
        counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
        environment = os.environ | dict.fromkeys(counts, str(options.threads)) | {"PYTHONPATH": str(ROOT)}
        environment["OMP_WAIT_POLICY"] = "passive"  # faiss's threads spin otherwise, which would count as its work
        subprocess.run(command, env=environment, check=True)
        return dict(json.loads(result.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
