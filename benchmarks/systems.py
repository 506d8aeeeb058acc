"""Vector indexes behind one face, each run by the Python that has it: `python systems.py SYSTEM FOLDER`.

The folder holds spec.json, base.npy and queries.npy; result.json and answers.npz are written to it. Nothing of ours is
imported unless the system is ours.
"""

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


class DiskAnn:
    """diskannpy's static index in memory."""

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

    def search(self, queries: Any, k: int) -> Any:
        return self.index.batch_search(queries, k, self.value, self.threads).identifiers


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

    def search(self, queries: Any, k: int) -> Any:
        return self.index.search(queries, k)[0]


class HnswLib:
    """hnswlib with M = R / 2, so that its bottom layer has R links."""

    def __init__(self, spec: dict[str, Any]) -> None:
        import hnswlib  # noqa: PLC0415

        self.package, self.spec = hnswlib, spec

    def build(self, base: Any) -> None:
        spec = self.spec
        self.index = self.package.Index("l2", base.shape[1])
        self.index.init_index(len(base), M=spec["R"] // 2, ef_construction=spec["L"], random_seed=100)
        self.index.set_num_threads(spec["threads"])
        self.index.add_items(base)

    def set(self, value: int, threads: int) -> None:
        self.index.set_ef(value)
        self.index.set_num_threads(threads)

    def search(self, queries: Any, k: int) -> Any:
        return self.index.knn_query(queries, k)[0].astype(np.int64)


def _ours(spec: dict[str, Any]) -> Any:
    from benchmarks.peers_plugin import Icepuffin  # noqa: PLC0415

    return Icepuffin(spec)


SYSTEMS = {"icepuffin": _ours, "diskannpy": DiskAnn, "svs": Svs, "hnswlib": HnswLib}


def main(name: str, folder: Path) -> None:
    """Build, then search at each width; the median of the calls of at least half a second."""
    spec = json.loads((folder / "spec.json").read_text())
    base, queries = np.load(folder / "base.npy"), np.load(folder / "queries.npy")
    system: Any = SYSTEMS[name](spec)
    begun = time.perf_counter()
    system.build(base)
    result: dict[str, Any] = {"seconds": time.perf_counter() - begun, "points": []}
    result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if hasattr(system, "after_build"):
        system.after_build()
    answers = {}
    for width in spec["sweep"]:
        system.set(width, spec["threads"])
        answers[str(width)] = np.asarray(system.search(queries, spec["k"]), np.int64)
        spent: list[float] = []
        while len(spent) < 3 or sum(spent) < 0.5:
            spent.append(_timed(system, queries, spec["k"]))
        system.set(width, 1)
        alone = [_timed(system, query[None], spec["k"]) for query in queries]
        middle, late = np.percentile(alone, (50, 99))
        result["points"].append(
            {
                "width": width,
                "qps": len(queries) / float(np.median(spent)),
                "p50_us": middle * 1e6,
                "p99_us": late * 1e6,
            }
        )
    np.savez(folder / "answers.npz", **answers)
    (folder / "result.json").write_text(json.dumps(result))


def _timed(system: Any, queries: Any, k: int) -> float:
    begun = time.perf_counter()
    system.search(queries, k)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
