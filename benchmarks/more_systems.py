"""More vector indexes for `benchmarks/systems.py`: usearch, faiss, RaBitQ, Lance, Paimon, and svs's LVQ codes.

Graphs of the HNSW kind have M = R / 2, so that their bottom layers have R links, and efConstruction = L.
"""

import mmap
from pathlib import Path
from typing import Any

import numpy as np


def bytes_of_files(*paths: Path) -> int:
    """Bytes of all files below the paths."""
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))]
    return sum(file.stat().st_size for file in files if file.is_file())


class _System:
    """What most systems do alike."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.scratch = Path(spec["scratch"])

    def set(self, value: int, threads: int) -> None:
        self.value, self.threads = value, threads


class Usearch(_System):
    """usearch's HNSW of floats."""

    dtype = "f32"

    def build(self, base: Any) -> None:
        from usearch.index import Index  # noqa: PLC0415

        spec = self.spec
        self.scale = 127 / max(base.max(), -base.min())  # no copy: the peak of memory is measured
        self.index = Index(
            ndim=base.shape[1], metric="l2sq", dtype=self.dtype, connectivity=spec["R"] // 2, expansion_add=spec["L"]
        )
        self.insert(base, 0)

    def start_insert(self, base: Any) -> None:
        self.build(base)

    def insert(self, rows: Any, first: int) -> None:
        keys = np.arange(first, first + len(rows))
        for start in range(0, len(rows), 4_096):
            part = slice(start, start + 4_096)
            self.index.add(keys[part], self.coded(rows[part]), threads=self.spec["threads"])

    def coded(self, rows: Any) -> Any:
        return rows

    def set(self, value: int, threads: int) -> None:
        self.index.expansion_search, self.threads = value, threads

    def index_bytes(self) -> int:
        return int(self.index.serialized_length)

    def search(self, queries: Any, k: int) -> Any:
        keys = self.index.search(self.coded(queries), k, threads=self.threads).keys
        return np.asarray(keys).astype(np.int64).reshape(len(queries), k)


class UsearchBytes(Usearch):
    """usearch's HNSW of one byte per dimension, all by one scale; answers are ranked by these bytes."""

    dtype = "i8"

    def coded(self, rows: Any) -> Any:
        return np.clip(np.rint(rows * self.scale), -127, 127).astype(np.int8)


class FaissHnsw(_System):
    """faiss's HNSW of floats."""

    def build(self, base: Any) -> None:
        import faiss  # noqa: PLC0415

        self.package = faiss
        faiss.omp_set_num_threads(self.spec["threads"])
        self.index = faiss.IndexHNSWFlat(base.shape[1], self.spec["R"] // 2)
        self.index.hnsw.efConstruction = self.spec["L"]
        self.index.add(base)

    def start_insert(self, base: Any) -> None:
        self.build(base)

    def insert(self, rows: Any, first: int) -> None:
        self.index.add(rows)

    def set(self, value: int, threads: int) -> None:
        self.package.omp_set_num_threads(threads)
        self.index.hnsw.efSearch = value

    def index_bytes(self) -> int:
        self.package.write_index(self.index, str(self.scratch / "index"))
        return bytes_of_files(self.scratch / "index")

    def search(self, queries: Any, k: int) -> Any:
        return self.index.search(queries, k)[1]


class SvsLvq(_System):
    """scalable-vs, Vamana over LVQ codes: 4 bits, and 8 bits of what is left to rank by. Intel CPUs alone."""

    def prepare(self, base: Any) -> None:
        import svs  # noqa: PLC0415

        self.package = svs
        svs.write_vecs(base, str(self.scratch / "base.fvecs"))

    def build(self, base: Any) -> None:
        svs, spec = self.package, self.spec
        params = svs.VamanaBuildParameters(graph_max_degree=spec["R"], window_size=spec["L"], alpha=spec["alpha"])
        rows = svs.VectorDataLoader(str(self.scratch / "base.fvecs"), svs.DataType.float32, dims=base.shape[1])
        codes = svs.LVQLoader(rows, primary=4, residual=8)
        self.index = svs.Vamana.build(params, codes, svs.DistanceType.L2, num_threads=spec["threads"])

    def set(self, value: int, threads: int) -> None:
        self.index.search_window_size = value
        self.index.num_threads = threads

    def index_bytes(self) -> int:
        parts = [self.scratch / part for part in ("config", "graph", "codes")]
        self.index.save(*map(str, parts))
        return bytes_of_files(*parts)

    def search(self, queries: Any, k: int) -> Any:
        return self.index.search(queries, k)[0]


class RabitqHnsw(_System):
    """rabitqlib's HNSW, ranked by codes of five bits per dimension."""

    bits = 5

    def build(self, base: Any) -> None:
        import rabitqlib  # noqa: PLC0415

        spec = self.spec
        means = rabitqlib.RaBitQKMeans(
            base.shape[1], 16, num_threads=spec["threads"], seed=1,
            final_assignment=rabitqlib.FinalAssignmentMode.Exact,
        )  # fmt: skip
        means.train(base)
        self.index = rabitqlib.HnswIndex(
            dim=base.shape[1], max_elements=len(base), nbits=self.bits, metric="l2", M=spec["R"] // 2,
            ef_construction=spec["L"],
        )  # fmt: skip
        self.index.build(base, means.centroids, means.assignments, num_threads=spec["threads"])

    def start_insert(self, base: Any) -> None:
        self.build(base)
        self.index.resize(len(base) + self.spec["insert"])

    def insert(self, rows: Any, first: int) -> None:
        self.index.add(rows, num_threads=self.spec["threads"])

    def index_bytes(self) -> int:
        self.index.save(str(self.scratch / "index"))
        return bytes_of_files(self.scratch / "index")

    def search(self, queries: Any, k: int) -> Any:
        return self.index.search(queries, k, self.value, num_threads=self.threads)[0]


class SymphonyQg(_System):
    """rabitqlib's SymphonyQG: each node has one-bit codes of its neighbours beside its vector."""

    def build(self, base: Any) -> None:
        import rabitqlib  # noqa: PLC0415

        self.index = rabitqlib.SymqgIndex(dim=base.shape[1], max_degree=self.spec["R"], metric="l2")
        self.index.build(base, self.spec["L"], num_threads=self.spec["threads"])

    index_bytes = RabitqHnsw.index_bytes
    search = RabitqHnsw.search


class Lance(_System):
    """Lance's HNSW over one byte per dimension, in one partition; twice k candidates are ranked by the vectors."""

    def prepare(self, base: Any) -> None:
        import lance  # noqa: PLC0415
        import pyarrow as pa  # noqa: PLC0415

        self.package, self.folder = lance, str(self.scratch / "rows.lance")
        column = pa.FixedSizeListArray.from_arrays(pa.array(base.reshape(-1)), base.shape[1])
        lance.write_dataset(pa.table({"id": np.arange(len(base)), "v": column}), self.folder)

    def build(self, base: Any) -> None:
        self.package.dataset(self.folder).create_index(
            "v", "IVF_HNSW_SQ", metric="l2", num_partitions=1, m=self.spec["R"] // 2, ef_construction=self.spec["L"]
        )

    def after_build(self) -> None:
        self.data = self.package.dataset(self.folder)
        self.data.prewarm_index("v_idx")

    def index_bytes(self) -> int:
        return bytes_of_files(Path(self.folder) / "_indices", Path(self.folder) / "data")

    def search(self, queries: Any, k: int) -> Any:
        how = {"minimum_nprobes": 1, "maximum_nprobes": 1, "ef": self.value, "refine_factor": min(2, self.value // k)}
        rows = self.data.to_table(
            columns=["id", "_distance"], nearest={"column": "v", "q": queries, "k": k, "metric": "l2", **how}
        )
        ids = rows["id"].to_numpy()
        if "query_index" not in rows.column_names:
            return ids.reshape(1, -1)
        order = np.argsort(rows["query_index"].to_numpy(), kind="stable")
        return ids[order].reshape(len(queries), -1)


class _FileRanges:
    """A file as Paimon's library reads it: by ranges, through a callback."""

    estimated_random_read_latency_nanos = 100_000

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def pread_many(self, ranges: Any) -> list[bytes]:
        return [self.content[start : start + length] for start, length in ranges]


class PaimonDiskAnn(_System):
    """paimon-vindex's Vamana in a file, walked by product quantization and ranked by halves (f16)."""

    def build(self, base: Any) -> None:
        import paimon_vindex  # noqa: PLC0415

        self.package, spec = paimon_vindex, self.spec
        options = {
            "index.type": "diskann", "metric": "l2", "diskann.max-degree": spec["R"], "diskann.alpha": spec["alpha"],
            "diskann.build-search-list-size": spec["L"], "diskann.build-distance": "full_precision",
        }  # fmt: skip
        trained = paimon_vindex.VectorIndexTrainer.train({name: str(value) for name, value in options.items()}, base)
        with paimon_vindex.VectorIndexWriter(trained) as writer, (self.scratch / "index").open("wb") as file:
            writer.add_vectors(np.arange(len(base)), base)
            writer.write(file)

    def after_build(self) -> None:
        self.index = self.package.VectorIndexReader(_FileRanges(self.scratch / "index"))
        self.index.optimize_for_search()

    def index_bytes(self) -> int:
        return bytes_of_files(self.scratch / "index")

    def search(self, queries: Any, k: int) -> Any:
        return self.index.search_batch(queries, self.package.SearchParams.diskann(k, self.value))[0]


SYSTEMS = {
    "usearch": Usearch,
    "usearch-i8": UsearchBytes,
    "faiss-hnsw": FaissHnsw,
    "svs-lvq": SvsLvq,
    "rabitq-hnsw5": RabitqHnsw,
    "symphonyqg": SymphonyQg,
    "lance": Lance,
    "paimon-diskann": PaimonDiskAnn,
}
