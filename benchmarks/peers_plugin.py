"""icepuffin's kernels as a system of a peer benchmark: `peers.py --plugin benchmarks/peers_plugin.py`.

The class has the methods that such a plugin needs; what they call is what the product calls. It is imported by the
benchmark's own Python as well, which need not have icepuffin: so nothing of ours is imported at the top.
"""

from typing import Any


class Icepuffin:
    """One graph over all rows, as one shard of an index holds it."""

    packages = ("icepuffin", "numpy", "numba")
    param = "L"
    can_insert = True

    def __init__(self, spec: dict[str, Any]) -> None:
        import numpy as np  # noqa: PLC0415

        from icepuffin.ann_kernels.graphs import graph_search, locality, vamana  # noqa: PLC0415
        from icepuffin.ann_kernels.metric import Metric  # noqa: PLC0415

        self.locality = locality
        self.vamana = vamana
        self.searcher_class = graph_search.Searcher
        self.metric = Metric.parse(spec["metric"])
        self.params = vamana.VamanaParams(spec["R"], spec["L"], spec["alpha"])
        self.threads = spec["threads"]
        self.room = spec.get("insert", 0)
        # load the compiled kernels, which a process does once
        rng = np.random.default_rng(0)
        for dims in (64, 256, 1_280):  # graphs are walked by bytes, by four bits, or by signs first
            rows = rng.standard_normal((4_096, 8)) @ rng.standard_normal((8, dims))
            self.build(rows.astype(np.float32))
            self.searcher.search(self.vectors[:1], 1, search_list=10)

    def build(self, base: Any) -> None:
        """Timed as the build: rows in memory -> their order as nodes, graph, and codes that it is searched by.

        Rows are moved in place, as a shard's are: `base` is this process's own.
        """
        self.rows = self.locality.locality_order(base, threads=self.threads)
        self.locality.reorder(base, self.rows)
        self.vectors = base
        self.graph = self.vamana.build(self.vectors, self.metric, self.params, threads=self.threads)
        self.searcher = self.searcher_class(self.graph, self.vectors, self.metric, threads=self.threads)

    def sweep(self, values: list[int]) -> list[int]:
        """The search lists to time."""
        return sorted(set(values))

    def set(self, value: int, threads: int) -> None:
        """The search list and threads of the searches to come."""
        self.search_list, self.threads = value, threads

    def search(self, queries: Any, k: int) -> Any:
        """int64[Q, k] row numbers: a shard's nodes are looked up in its locations likewise."""
        return self.rows[self.searcher.search(queries, k, search_list=self.search_list, threads=self.threads)[0]]

    def search_one(self, query: Any, k: int) -> Any:
        """The same for one query, on the calling thread."""
        return self.rows[self.searcher.search(query[None], k, search_list=self.search_list, threads=1)[0]]

    def index_bytes(self) -> int:
        """Bytes that a search reads: vectors, codes, links, and the rows' numbers."""
        arrays = (self.vectors, self.graph.neighbors, self.graph.degrees, self.rows)
        codes = self.searcher.codes
        if codes is not None:
            arrays += codes.space.codes, codes.space.norms, *(getattr(codes, "signs", None) or ())
        return sum(array.nbytes for array in arrays)

    def start_insert(self, base: Any) -> None:
        """The graph that is inserted into, its vectors with room for those to come."""
        import numpy as np  # noqa: PLC0415

        self.build(base)
        self.vectors_and_room = np.empty((len(base) + self.room, base.shape[1]), np.float32)
        self.vectors_and_room[: len(base)] = self.vectors

    def insert(self, rows: Any, first_id: int) -> None:
        """A refresh inserts all new rows of a shard in one call."""
        import numpy as np  # noqa: PLC0415

        self.rows = np.concatenate([self.rows, np.arange(first_id, first_id + len(rows))])
        self.vectors = self.vectors_and_room[: first_id + len(rows)]
        self.vectors[first_id:] = rows
        self.graph = self.vamana.insert(self.graph, self.vectors, self.metric, self.params, threads=self.threads)
        self.searcher = self.searcher_class(self.graph, self.vectors, self.metric, threads=self.threads)


ADAPTERS = {"icepuffin": Icepuffin}
