"""A shard in memory as kernels use it: decoded, validated, with its searcher, but without a snapshot's tombstones."""

import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.allocation import Allocate, in_memory
from icepuffin.ann_kernels.codes.four_bit_quantization import FourBitCodes
from icepuffin.ann_kernels.codes.rotated_quantization import RotatedCodes
from icepuffin.ann_kernels.codes.scalar_quantization import ScalarCodes
from icepuffin.ann_kernels.distances.coded_comparison import CodeErrors
from icepuffin.ann_kernels.distances.distance_computers import CodeSpace, FourBitSpace, SignSpace
from icepuffin.ann_kernels.graphs.graph import Graph, PackedAdjacency, PackedGraph
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.graphs.walk_codes import WalkCodes
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.cache.mapped_arrays import SPARSE
from icepuffin.puffin.errors import BadBlobError

_ROTATED = ("center", "terms", "high", "low")
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class NodeAddresses:
    """Where the rows of a shard's nodes lie, apart from the shard. Arrays are shared and never written to."""

    file_slots: npt.NDArray[np.uint32]
    row_positions: npt.NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays, mapped or not."""
        return self.file_slots.nbytes + self.row_positions.nbytes

    def to_arrays(self) -> Arrays:
        """Both arrays by name."""
        return {"file_slots": self.file_slots, "row_positions": self.row_positions}

    @classmethod
    def from_arrays(cls, arrays: Arrays, _: Mapping[str, Any]) -> "NodeAddresses":
        """Inverse of `to_arrays`; nothing is copied, nothing checked."""
        return cls(arrays["file_slots"], arrays["row_positions"])


class Completion:
    """What a shard that is searched already still waits for."""

    def __init__(self) -> None:
        self.shard: ReadyShard | None = None
        """Shard with its codes, once they are made"""
        self.ended = threading.Event()
        """Event that is set when they are made, or cannot be"""


@dataclass(frozen=True, slots=True, eq=False)
class ReadyShard:
    """Everything that a search of one shard needs. Arrays are shared and never written to."""

    graph: Graph | PackedGraph
    """Packed in the compact layout"""
    vectors: npt.NDArray[np.float32] | None
    """f32[N, D] prepared; None in a lean shard"""
    pq: tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]] | None
    rotated: RotatedCodes | None
    file_slots: npt.NDArray[np.uint32]
    row_positions: npt.NDArray[np.int64]
    searcher: Searcher
    """Searcher of all nodes, to be masked by a snapshot's tombstones"""
    rounded: bool
    """Whether its vectors are rounded (f16) or coded, and not exactly the table's"""
    completion: Completion | None = None
    """Codes that it waits for; None where it has them, or gets none"""
    has_moved: bool = False
    """Whether its addresses are others than those in its blob"""

    @classmethod
    def from_graph(
        cls,
        graph: Graph | PackedGraph,
        metric: Metric,
        addresses: NodeAddresses,
        *,
        vectors: npt.NDArray[np.float32] | None,
        pq: tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]] | None,
        rotated: RotatedCodes | None,
        rounded: bool,
    ) -> "ReadyShard":
        """A decoded shard, without codes for the graph search."""
        return cls(
            graph=graph,
            vectors=vectors,
            pq=pq,
            rotated=rotated,
            file_slots=addresses.file_slots,
            row_positions=addresses.row_positions,
            searcher=Searcher(graph, vectors, metric, pq=pq, rotated=rotated, coded_from=sys.maxsize),
            rounded=rounded,
        )

    def with_codes(self, *, threads: int = 1, allocate: Allocate = in_memory) -> "ReadyShard":
        """The same shard with codes for the graph search, if they pay: small ones where the graph is packed."""
        searcher = Searcher(
            self.graph,
            self.vectors,
            self.searcher.metric,
            pq=self.pq,
            rotated=self.rotated,
            threads=threads,
            compact=isinstance(self.graph, PackedGraph),
            allocate=allocate,
        )
        return replace(self, searcher=searcher)

    def completed(self) -> "ReadyShard":
        """The same shard with its codes, if it has been waiting for them and they are made."""
        complete = None if self.completion is None else self.completion.shard
        if complete is None:
            return self
        # its own addresses would keep a second mapping of the file
        return complete.relocated(NodeAddresses(self.file_slots, self.row_positions)) if self.has_moved else complete

    @property
    def count(self) -> int:
        return len(self.file_slots)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, mapped or not."""
        return sum(array.nbytes for array in to_arrays(self)[0].values())

    def relocated(self, addresses: NodeAddresses) -> "ReadyShard":
        """The same shard with other addresses. Raises BadBlobError where they are of another number of nodes."""
        if len(addresses.file_slots) != self.count:
            raise BadBlobError(f"addresses of {len(addresses.file_slots):,} nodes for a shard of {self.count:,}")
        return replace(self, file_slots=addresses.file_slots, row_positions=addresses.row_positions, has_moved=True)


def to_arrays(shard: ReadyShard) -> tuple[Arrays, dict[str, Any]]:
    """(arrays by name, plain values): all that `from_arrays` needs. Arrays are in the order of their making."""
    arrays: Arrays = {} if shard.vectors is None else {"vectors": shard.vectors}
    if isinstance(shard.graph, Graph):
        arrays["neighbors"] = shard.graph.neighbors
    arrays |= {"file_slots": shard.file_slots, "row_positions": shard.row_positions}
    if shard.pq is not None:
        arrays["pq_codebook"], arrays["pq_codes"] = shard.pq
    if (rotated := shard.rotated) is not None:
        arrays |= {f"rotated_{name}": getattr(rotated, name) for name in _ROTATED}
    values: dict[str, Any] = {
        "medoid": shard.graph.medoid,
        "metric": shard.searcher.metric.code,
        "rounded": shard.rounded,
    }
    if isinstance(shard.graph, PackedGraph):
        arrays["lists"], arrays["list_starts"], values["longest_list"] = shard.graph.adjacency
        values[SPARSE] = ["vectors"]  # memory holds what is walked by
    else:
        arrays["degrees"] = shard.graph.degrees
    if rotated is not None:
        values["rotated_bits"], values["rotated_seed"] = rotated.bits, rotated.seed
    if (codes := shard.searcher.codes) is not None:
        kind = "sq8" if isinstance(codes, ScalarCodes) else "sq4"
        arrays |= {f"{kind}_{name}": array for name, array in codes.space._asdict().items()}
        arrays[f"{kind}_offset"], values[f"{kind}_scale"] = codes.offset, codes.scale
        if isinstance(codes, FourBitCodes):
            arrays["sq4_widths"] = codes.widths
            if codes.signs is not None:
                arrays |= {f"signs_{name}": array for name, array in codes.signs._asdict().items()}
    if (coded := shard.searcher.coded) is not None:
        arrays["sq8_errors"], values["sq8_error_step"] = coded.errors.steps, coded.errors.step
        arrays["sq8_halves"] = coded.halves
    return arrays, values


def from_arrays(arrays: Arrays, values: Mapping[str, Any]) -> ReadyShard:
    """Inverse of `to_arrays`; nothing is copied, nothing checked."""
    graph: Graph | PackedGraph
    if "lists" in arrays:
        adjacency = PackedAdjacency(arrays["lists"], arrays["list_starts"], values["longest_list"])
        graph = PackedGraph(adjacency, values["medoid"])
    else:
        graph = Graph(arrays["neighbors"], arrays["degrees"], values["medoid"])
    vectors = arrays.get("vectors")
    pq = (arrays["pq_codebook"], arrays["pq_codes"]) if "pq_codes" in arrays else None
    rotated = None
    if "rotated_bits" in values:
        parts = (arrays[f"rotated_{name}"] for name in _ROTATED)
        rotated = RotatedCodes(values["rotated_bits"], values["rotated_seed"], *parts)
    codes: WalkCodes | None = None
    errors: CodeErrors | None = None
    if "sq4_scale" in values:
        four_bit = FourBitSpace(*(arrays[f"sq4_{name}"] for name in FourBitSpace._fields))
        signs = SignSpace(*(arrays[f"signs_{name}"] for name in SignSpace._fields)) if "signs_words" in arrays else None
        codes = FourBitCodes(four_bit, arrays["sq4_offset"], arrays["sq4_widths"], values["sq4_scale"], signs)
    elif "sq8_scale" in values:
        space = CodeSpace(*(arrays[f"sq8_{name}"] for name in CodeSpace._fields))
        codes = ScalarCodes(space, arrays["sq8_offset"], values["sq8_scale"])
        errors = CodeErrors(arrays["sq8_errors"], values["sq8_error_step"])
    return ReadyShard(
        graph=graph,
        vectors=vectors,
        pq=pq,
        rotated=rotated,
        file_slots=arrays["file_slots"],
        row_positions=arrays["row_positions"],
        # a shard that was kept without codes gets none: they did not pay
        searcher=Searcher(
            graph,
            vectors,
            Metric.of_code(values["metric"]),
            pq=pq,
            rotated=rotated,
            codes=codes,
            errors=errors,
            halves=arrays.get("sq8_halves"),
            coded_from=sys.maxsize,
        ),
        rounded=values["rounded"],
    )
