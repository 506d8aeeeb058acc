"""Comparing an index with exact search over the same snapshot."""

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.model import ObjectRange, StorageConfig, StoredShard
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.result import SearchResult
from icepuffin.ops.storage import open_storage
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from tests.conftest import STORAGE, queries

DEFINITION = IndexDefinition(
    name="e", column="embedding", metric="l2", max_degree=16, search_list=40, shards=3, target_recall=0.8
)


def index_head(table: Table, definition: IndexDefinition = DEFINITION, threads: int = 1) -> IndexReport:
    table.refresh()
    head = table.metadata.current_snapshot_id
    assert head is not None
    return materialize_index(RunContext(table, STORAGE, LocalRunner(threads)), definition, head)


def vector_place(shard: StoredShard, node: int) -> ObjectRange:
    """Where the vector of a node lies."""
    for run in shard.runs:
        if node < run.count:
            return run.part(node, 1)
        node -= run.count
    raise IndexError(node)


def content(report: IndexReport) -> bytes:
    """The bytes of a version's file."""
    assert report.puffin_path is not None
    store = open_storage(report.puffin_path, STORAGE)
    return store.read_range(report.puffin_path, 0, store.size(report.puffin_path))


def ids_by_query(rows: pa.Table) -> dict[int, list[int]]:
    out: dict[int, list[int]] = {}
    for query, row in zip(rows["query"].to_pylist(), rows["id"].to_pylist(), strict=True):
        out.setdefault(query, []).append(row)
    return out


def answer_with_recall(
    table: Table,
    snapshot: int | None = None,
    definition: IndexDefinition = DEFINITION,
    k: int = 10,
    storage: StorageConfig = STORAGE,
) -> tuple[SearchResult, float]:
    """(the index's answer, its recall@k against exact search); also asserts that no row is wrong."""
    metric = Metric.parse(definition.metric)
    query_vectors = queries()
    result = open_index(table, definition, snapshot=snapshot, storage=storage).search(query_vectors, k, columns=["id"])
    true = open_exact(table, definition.column, metric, snapshot=snapshot, storage=storage).search(
        query_vectors, k, columns=["id"]
    )
    live = set(table.scan(snapshot_id=result.snapshot_id, selected_fields=("id",)).to_arrow()["id"].to_pylist())
    assert set(result.rows["id"].to_pylist()) <= live, "a row that is not live was returned"
    answers, wanted = ids_by_query(result.rows), ids_by_query(true.rows)
    assert all(len(answers[query]) == len(wanted[query]) for query in wanted)
    recall = float(np.mean([len(set(answers[query]) & set(wanted[query])) / len(wanted[query]) for query in wanted]))
    return result, recall
