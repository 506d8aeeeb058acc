"""The report of the demo: what each snapshot got, beside the exact answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table
from rich.console import Console

from examples.demo.history import IDENTIFIER
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.messages import readable_seconds
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.presentation import Grid
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.theta.ndv import read_ndv
from icepuffin.orchestration.cli.output import print_grid
from icepuffin.orchestration.engines import catalogs_of
from icepuffin.orchestration.settings import Settings

INDEX = "embedding"
INDEX_KEY = dg.AssetKey(["demo", "demo", "packages", "ann_index", INDEX])
SKETCH_KEY = dg.AssetKey(["demo", "demo", "packages", "theta_sketches"])
RECALL_AT = 10


@dataclass(frozen=True, slots=True)
class SnapshotLine:
    """One snapshot in the report."""

    what: str
    """The change that made the snapshot, in words"""
    snapshot_id: SnapshotId
    files: int
    rows: int
    ndv: Mapping[str, tuple[int, int]]
    """(estimate by sketch, exact count) per column"""
    recall: float
    """recall@10 of held-out queries through the reader, against exact search of the same snapshot"""
    index_seconds: float
    sketch_seconds: float


def measure(
    settings: Settings,
    instance: dg.DagsterInstance,
    snapshot_id: SnapshotId,
    what: str,
    queries: npt.NDArray[np.float32],
) -> SnapshotLine:
    """Compare what was built for a snapshot with exact answers, which are computed here from the rows."""
    catalogs = catalogs_of(settings)
    table = catalogs.table("demo", IDENTIFIER)
    metadata = _metadata(instance, INDEX_KEY, snapshot_id)
    return SnapshotLine(
        what=what,
        snapshot_id=snapshot_id,
        files=metadata["files"],
        rows=metadata["rows"],
        ndv=_ndv(table, snapshot_id),
        recall=recall(table, snapshot_id, queries),
        index_seconds=metadata["seconds"],
        sketch_seconds=_metadata(instance, SKETCH_KEY, snapshot_id)["seconds"],
    )


def _metadata(instance: dg.DagsterInstance, key: dg.AssetKey, snapshot_id: SnapshotId) -> dict[str, Any]:
    partition = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[str(snapshot_id)])
    record = instance.fetch_materializations(partition, limit=1).records[0]
    event = record.asset_materialization
    values: Any = event.metadata["details"].value if event else {}
    return dict(values)


def _ndv(table: Table, snapshot_id: SnapshotId) -> dict[str, tuple[int, int]]:
    entries = read_ndv(table, snapshot_id).entries
    rows = table.scan(snapshot_id=snapshot_id, selected_fields=tuple(entries)).to_arrow()
    return {
        column: (entry.ndv, pc.count_distinct(rows[column], mode="only_valid").as_py())
        for column, entry in entries.items()
    }


def recall(table: Table, snapshot_id: SnapshotId, queries: npt.NDArray[np.float32]) -> float:
    """Mean recall@10 at a snapshot, through the reader that users have."""
    result = open_index(table, INDEX, snapshot=snapshot_id).search(queries, RECALL_AT, columns=["id"])
    exact = open_exact(table, "embedding", Metric.COSINE, snapshot=snapshot_id).search(
        queries, RECALL_AT, columns=["id"]
    )
    approximate, true = _ids_by_query(result.rows), _ids_by_query(exact.rows)
    return float(np.mean([len(approximate[query] & true[query]) / len(true[query]) for query in true]))


def _ids_by_query(rows: pa.Table) -> dict[int, set[int]]:
    out: dict[int, set[int]] = {}
    for query, row in zip(rows["query"].to_pylist(), rows["id"].to_pylist(), strict=True):
        out.setdefault(query, set()).add(row)
    return out


def print_report(lines: list[SnapshotLine], console: Console) -> None:
    """Two tables: each snapshot with its recall, and its NDVs, beside exact answers."""
    rows = [
        (line.snapshot_id, line.what, line.files, f"{line.rows:,}", f"{line.recall:.4f}",
         readable_seconds(line.index_seconds))
        for line in lines
    ]  # fmt: skip
    title = "Each snapshot: recall@10 of 200 held-out queries, beside exact search"
    print_grid(console, Grid(title, rows, ("snapshot", "change", "files", "rows", "recall@10", "time")))
    columns = list(lines[-1].ndv) if lines else []
    distinct = [
        (*(f"{sketched:,} / {exact:,}" for sketched, exact in (line.ndv[column] for column in columns)),
         readable_seconds(line.sketch_seconds))
        for line in lines
    ]  # fmt: skip
    print_grid(console, Grid("Distinct values: theta sketch / exact count", distinct, (*columns, "time")))
