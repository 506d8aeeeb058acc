"""Vector indexes behind one face, each run by the Python that has it: `python systems.py SYSTEM FOLDER`.

The folder holds spec.json, base.npy and queries.npy; result.json and answers.npz are written to it. Nothing of ours is
imported unless the system is ours.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import more_systems


class DiskAnn:
    """diskannpy's static index in memory."""

    first = 0
    """Id of the first row."""

    def __init__(self, spec: dict[str, Any]) -> None:
        import diskannpy  # noqa: PLC0415

        self.package, self.spec = diskannpy, spec

    def build(self, base: Any) -> None:
        spec = self.spec
        self.package.build_memory_index(
            base, "l2", spec["scratch"], complexity=spec["L"], graph_degree=spec["R"], num_threads=spec["threads"],
            alpha=spec["alpha"], use_pq_build=False, num_pq_bytes=0, use_opq=False, index_prefix="a",
        )  # fmt: skip

    def after_build(self) -> None:
        """Loading is not in the build's time."""
        spec = self.spec
        self.index = self.package.StaticMemoryIndex(
            spec["scratch"], num_threads=spec["threads"], initial_search_complexity=spec["L"], index_prefix="a"
        )

    def set(self, value: int, threads: int) -> None:
        self.value, self.threads = value, threads

    def index_bytes(self) -> int:
        return more_systems.bytes_of_files(*(Path(self.spec["scratch"]) / name for name in ("a", "a.data")))

    def search(self, queries: Any, k: int) -> Any:
        return self.index.batch_search(queries, k, self.value, self.threads).identifiers - self.first

    def start_insert(self, base: Any) -> None:
        """An index of another kind: the static one takes no rows. Its ids begin at 1."""
        spec, self.first = self.spec, 1
        self.index = self.package.DynamicMemoryIndex(
            "l2", np.float32, base.shape[1], max_vectors=len(base) + spec["insert"], complexity=spec["L"],
            graph_degree=spec["R"], alpha=spec["alpha"], num_threads=spec["threads"],
            initial_search_complexity=spec["L"], search_threads=spec["threads"],
        )  # fmt: skip
        self.insert(base, 0)

    def insert(self, rows: Any, first: int) -> None:
        ids = np.arange(first + 1, first + len(rows) + 1, dtype=np.uint32)
        self.index.batch_insert(rows, ids, self.spec["threads"])


class Svs:
    """scalable-vs, f32 Vamana."""

    def __init__(self, spec: dict[str, Any]) -> None:
        import svs  # noqa: PLC0415

        self.package, self.spec = svs, spec

    def build(self, base: Any) -> None:
        svs, spec = self.package, self.spec
        params = svs.VamanaBuildParameters(graph_max_degree=spec["R"], window_size=spec["L"], alpha=spec["alpha"])
        self.index = svs.Vamana.build(params, base, svs.DistanceType.L2, num_threads=spec["threads"])

    def set(self, value: int, threads: int) -> None:
        self.index.search_window_size = value
        self.index.num_threads = threads

    def index_bytes(self) -> int:
        parts = [Path(self.spec["scratch"]) / part for part in ("config", "graph", "vectors")]
        self.index.save(*map(str, parts))
        return more_systems.bytes_of_files(*parts)

    def search(self, queries: Any, k: int) -> Any:
        return self.index.search(queries, k)[0]

    def start_insert(self, base: Any) -> None:
        """An index of another kind: the static one takes no rows."""
        svs, spec = self.package, self.spec
        params = svs.VamanaBuildParameters(graph_max_degree=spec["R"], window_size=spec["L"], alpha=spec["alpha"])
        ids = np.arange(len(base), dtype=np.uint64)
        self.index = svs.DynamicVamana.build(params, base, ids, svs.DistanceType.L2, num_threads=spec["threads"])

    def insert(self, rows: Any, first: int) -> None:
        self.index.add(rows, np.arange(first, first + len(rows), dtype=np.uint64))


class HnswLib:
    """hnswlib with M = R / 2, so that its bottom layer has R links."""

    def __init__(self, spec: dict[str, Any]) -> None:
        import hnswlib  # noqa: PLC0415

        self.package, self.spec = hnswlib, spec

    def build(self, base: Any) -> None:
        self.start_insert(base)

    def start_insert(self, base: Any) -> None:
        """Build an index with room for more rows."""
        spec = self.spec
        self.index = self.package.Index("l2", base.shape[1])
        self.index.init_index(len(base) + spec["insert"], M=spec["R"] // 2, ef_construction=spec["L"], random_seed=100)
        self.index.set_num_threads(spec["threads"])
        self.index.add_items(base)

    def insert(self, rows: Any, first: int) -> None:
        self.index.add_items(rows, np.arange(first, first + len(rows)))

    def set(self, value: int, threads: int) -> None:
        self.index.set_ef(value)
        self.index.set_num_threads(threads)

    def index_bytes(self) -> int:
        return int(self.index.index_file_size())

    def search(self, queries: Any, k: int) -> Any:
        return self.index.knn_query(queries, k)[0].astype(np.int64)


def _ours(spec: dict[str, Any]) -> Any:
    from benchmarks.peers_plugin import Icepuffin  # noqa: PLC0415

    return Icepuffin(spec)


SYSTEMS = {"icepuffin": _ours, "diskannpy": DiskAnn, "svs": Svs, "hnswlib": HnswLib, **more_systems.SYSTEMS}


def main(name: str, folder: Path) -> None:
    """Build, then search at each k and width; the median of the calls of at least half a second. Then insert.

    Inserts go into an index of all rows but the last `insert`, which are those that are inserted, in one call.
    """
    spec = json.loads((folder / "spec.json").read_text())
    base, queries = np.load(folder / "base.npy"), np.load(folder / "queries.npy")
    system: Any = SYSTEMS[name](spec)
    if hasattr(system, "prepare"):
        system.prepare(base)
    before = _memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    begun = time.perf_counter()
    system.build(base)
    result: dict[str, Any] = {"seconds": time.perf_counter() - begun, "points": []}
    result["peak_mb"] = _memory_mb("VmHWM") - before
    if hasattr(system, "after_build"):
        system.after_build()
    result["bytes_per_vector"] = system.index_bytes() / len(base) if hasattr(system, "index_bytes") else None
    answers = {}
    for k, width in ((k, width) for k in spec["ks"] for width in spec["widths"] if width >= k):
        system.set(width, spec["threads"])
        answers[f"{k}_{width}"] = np.asarray(system.search(queries, k), np.int64)
        spent: list[float] = []
        while len(spent) < 3 or sum(spent) < 0.5:
            spent.append(_timed(system, queries, k))
        system.set(width, 1)
        alone = [_timed(system, query[None], k) for query in queries[: spec["alone"]]]
        middle, late = np.percentile(alone, (50, 99)) if alone else (np.nan, np.nan)
        result["points"].append(
            {
                "k": k,
                "width": width,
                "qps": len(queries) / float(np.median(spent)),
                "p50_us": middle * 1e6,
                "p99_us": late * 1e6,
            }
        )
    if spec["insert"] and hasattr(system, "insert"):
        base = np.load(folder / "base.npy")  # again: a system may have moved the rows
        first = len(base) - spec["insert"]
        system.start_insert(np.ascontiguousarray(base[:first]))
        rows = np.ascontiguousarray(base[first:])
        begun = time.perf_counter()
        system.insert(rows, first)
        result["insert_us"] = (time.perf_counter() - begun) / len(rows) * 1e6
        system.set(spec["L"], spec["threads"])
        answers["inserted"] = np.asarray(system.search(queries, spec["ks"][0]), np.int64)
    np.savez(folder / "answers.npz", **answers)
    (folder / "result.json").write_text(json.dumps(result))


def _timed(system: Any, queries: Any, k: int) -> float:
    begun = time.perf_counter()
    system.search(queries, k)
    return time.perf_counter() - begun


def _memory_mb(field: str) -> float:
    """A field of this process's /proc/self/status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
