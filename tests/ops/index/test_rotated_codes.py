"""Indexes whose shards hold rotated codes: ranked by these, or by the table's vectors where that is wanted."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import In
from pyiceberg.table import Table

from icepuffin.ann_kernels.codes.code_sizes import rotated_bytes
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.definitions.ddl import drop_index
from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition
from icepuffin.ops.index.errors import GateFailedError
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.rows.vector_column import VectorColumnError
from icepuffin.ops.search.measured.tuning_run import tune
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.result import explain
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.puffin.blobs.shard_header import Section
from tests.conftest import ROWS, STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, answer_with_recall, content, ids_by_query, index_head

TableFactory = Callable[..., Table]
CODED = replace(DEFINITION, vectors="rq8")


def indexed(table_factory: TableFactory, definition: IndexDefinition, rows: int = 600) -> Table:
    table = table_factory()
    table.append(make_rows(0, rows))
    index_head(table, definition)
    return table


@pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
@pytest.mark.parametrize(("vectors", "least"), [("rq4", 0.8), ("rq5", 0.85), ("rq8", 0.95)])
def test_an_index_of_codes_answers_without_the_data_files_and_exactly_with_them(
    table_factory: TableFactory, vectors: str, least: float, metric: str
) -> None:
    definition = replace(DEFINITION, vectors=vectors, metric=metric, shards=2, target_recall=0.7)
    table = indexed(table_factory, definition)
    reader, query_vectors = open_index(table, definition, storage=STORAGE), queries()
    exact = open_exact(table, "embedding", definition.metric, storage=STORAGE).search(query_vectors, 10, columns=["id"])
    nearest = ids_by_query(exact.rows)

    def recall(result: object) -> float:
        answers = ids_by_query(result.rows)  # type: ignore[attr-defined]
        return float(np.mean([len({*answers[query]} & {*nearest[query]}) / 10 for query in nearest]))

    by_codes = reader.search(query_vectors, 10, columns=["id"], rerank=False)
    assert recall(by_codes) >= least
    assert by_codes.profile.bytes_read["index"] == 0
    assert by_codes.rows == reader.search(query_vectors, 10, columns=["id"]).rows, "it is the default"
    ranked = reader.search(query_vectors, 10, columns=["id"], rerank=True)
    assert recall(ranked) >= 0.99
    assert ranked.profile.bytes_read["index"] > 0
    hits = dict(zip(zip(exact.rows["query"].to_pylist(), exact.rows["id"].to_pylist(), strict=True),
                    exact.rows["distance"].to_pylist(), strict=True))  # fmt: skip
    for query, row, distance in zip(*(ranked.rows[name].to_pylist() for name in ("query", "id", "distance")),
                                    strict=True):  # fmt: skip
        assert distance == pytest.approx(hits.get((query, row), distance), abs=1e-12), "distances are exact"
    assert check_integrity(RunContext(table, STORAGE), index_versions(table.refresh(), "e")[-1]).faults == ()


def test_only_candidates_whose_interval_reaches_the_kth_are_read(table_factory: TableFactory) -> None:
    coarse, fine = (replace(DEFINITION, vectors=vectors, target_recall=0.5) for vectors in ("rq4", "rq8"))
    table = table_factory(**{"write.parquet.row-group-limit": "5"})
    table.append(make_rows(0, 600))
    read = []
    for definition in (coarse, fine):
        index_head(table, definition)
        version = open_index(table, definition, storage=STORAGE)
        answer = version.search(queries(1), 10, oversample=8, columns=["id"])
        read.append(answer.profile.bytes_read["index"])
    assert 0 < read[1] < read[0]


def test_the_life_of_an_index_of_codes(table_factory: TableFactory) -> None:
    definition = replace(CODED, vectors="rq5", max_deltas=1, target_recall=0.7)
    table = indexed(table_factory, definition)
    for start in (600, 660, 720, 780):  # a delta, then inserts
        table.append(make_rows(start, start + 60))
        report = index_head(table, definition)
        assert answer_with_recall(table, definition=definition)[1] >= 0.85
    assert report.inserted
    table.delete(In("id", [*range(300)]))  # type: ignore[arg-type, misc]
    report = index_head(table, definition)
    assert report.shards_rebuilt
    assert answer_with_recall(table, definition=definition)[1] >= 0.85
    table.overwrite(table.scan().to_arrow().cast(table.schema().as_arrow()))
    report = index_head(table, definition)
    assert (report.remapped, report.inserted) == (540, 0)
    assert answer_with_recall(table, definition=definition)[1] >= 0.85
    result = open_index(table, definition, storage=STORAGE).search(
        queries(), 5, where="section = 'section 1'", columns=["section"]
    )
    assert {*result.rows["section"].to_pylist()} <= {"section 1"}
    assert check_integrity(RunContext(table, STORAGE), index_versions(table.refresh(), "e")[-1]).faults == ()


def test_bytes_do_not_depend_on_threads(table_factory: TableFactory) -> None:
    table = table_factory()
    table.append(make_rows(0, 300))
    files = []
    for threads in (1, 2):
        report = index_head(table, replace(CODED, vectors="rq5"), threads)
        opened = open_version(index_versions(table.refresh(), "e")[-1], STORAGE)
        data = content(report)
        files.append([data[item.blob.offset : item.blob.offset + item.length] for item in opened.shards])
        drop_index(table.refresh(), "e")
    assert files[0] == files[1]


def test_a_shard_of_codes_holds_no_vectors_and_takes_the_bytes_of_its_codes(table_factory: TableFactory) -> None:
    table = indexed(table_factory, replace(CODED, vectors="rq5"))
    opened = open_version(index_versions(table.refresh(), "e")[-1], STORAGE)
    reader = open_shard(opened.shards[0], STORAGE)
    kinds = {Section(entry.kind): entry.stored_length for entry in reader.header.sections}
    assert Section.PQ_CODES not in kinds
    codes = (Section.CODE_TERMS, Section.HIGH_CODES, Section.LOW_CODES)
    assert sum(kinds[kind] for kind in codes) == reader.header.count * rotated_bytes(16, 5)


def test_a_target_reads_data_files_only_where_codes_do_not_reach_it(table_factory: TableFactory) -> None:
    definition = replace(DEFINITION, vectors="rq4", shards=1, target_recall=0.5)
    table = indexed(table_factory, definition, 1_500)
    reader = open_index(table, definition, storage=STORAGE)
    low = reader.search(queries(), 10, target_recall=0.6, columns=["id"])
    high = reader.search(queries(), 10, target_recall=0.99, columns=["id"])
    assert (low.profile.bytes_read["index"], high.profile.bytes_read["index"] > 0) == (0, True)
    assert "ranked by codes" in "".join(map(str, explain(low)))
    assert "ranked by codes, then by the table's vectors" in "".join(map(str, explain(high)))
    assert low.profile.parameters is not None
    assert low.profile.parameters.oversample == 1
    alone = reader.search(queries(), 10, oversample=1, columns=["id"])
    assert alone.profile.bytes_read["index"] == 0, "one candidate per row is one that codes have ranked"
    held = reader.search(queries(), 10, target_recall=0.99, rerank=False, columns=["id"])
    assert held.profile.bytes_read["index"] == 0
    assert any("no width that was measured reaches recall 0.99" in text for text in held.warnings)


def test_queries_of_ones_own_choose_between_codes_and_data_files(table_factory: TableFactory) -> None:
    definition = replace(DEFINITION, vectors="rq4", shards=1, target_recall=0.5)
    table = indexed(table_factory, definition, 1_000)
    tune(table.refresh(), queries(60), definition, targets=[0.95], storage=STORAGE)
    reader = open_index(table.refresh(), definition, storage=STORAGE)
    low, high = (reader.search(queries(1), 10, target_recall=target, columns=[]) for target in (0.6, 0.99))
    assert all("tune" in low_or_high.profile.parameters.why for low_or_high in (low, high))  # type: ignore[union-attr]
    assert (low.profile.bytes_read["index"], high.profile.bytes_read["index"] > 0) == (0, True)


def test_tasks_search_codes_as_this_process_does(table_factory: TableFactory) -> None:
    table = indexed(table_factory, CODED)
    for rerank in (False, True):
        here, there = (
            open_index(table, CODED, storage=STORAGE, **options).search(queries(), 10, columns=["id"], rerank=rerank)
            for options in ({}, {"runner": LocalRunner(2), "in_process_mb": 0})
        )
        assert here.rows == there.rows


def test_too_few_bits_fail_the_gate_and_say_what_to_take(table_factory: TableFactory) -> None:
    table = table_factory()
    table.append(make_rows(0, 600))
    with pytest.raises(GateFailedError, match="take vectors = 'rq5', 'rq8' or 'f32'"):
        index_head(table, replace(DEFINITION, vectors="rq4", target_recall=1.0))


def test_what_cannot_have_codes_is_refused_by_name(table_factory: TableFactory) -> None:
    with pytest.raises(
        DefinitionError, match=r"rq4 has more bits per dimension than elements of one bit: take vectors f16 or f32$"
    ):
        IndexDefinition(name="e", column="c", element_type="bit", metric="hamming", vectors="rq4")
    table = table_factory()
    table.append(make_rows(0, 60, dims=4))
    with pytest.raises(
        DefinitionError, match=r"'rq4' takes 8 to 16,384 dimensions, and column embedding has 4: take f16 or f32$"
    ):
        index_head(table, replace(DEFINITION, vectors="rq4"))


def test_the_definition_names_the_format(table_factory: TableFactory) -> None:
    assert json.loads(CODED.to_json())["vectors"] == "rq8"
    assert IndexDefinition.from_json(CODED.to_json()) == CODED
    assert [replace(DEFINITION, vectors=name).code_bits for name in ("none", "f16", "f32", "rq4", "rq5", "rq8")] == [
        0, 0, 0, 4, 5, 8,
    ]  # fmt: skip


def test_a_vector_too_long_for_codes_is_refused_by_file_and_row(table_factory: TableFactory) -> None:
    """Its terms would be infinite, and no reader takes those."""
    table = indexed(table_factory, CODED)
    longer = make_rows(600, 602).to_pydict()
    longer["embedding"][1][3], longer["embedding"][0] = 1e20, None
    table.append(pa.table(longer, schema=ROWS))
    with pytest.raises(VectorColumnError, match=r"parquet: the vector of row 1 is 1e\+20 long, and rotated codes take"):
        index_head(table, CODED)


def test_candidates_of_doubles_are_all_ranked(sql_catalog: Catalog) -> None:
    """Rounding a column's doubles to float may move them farther than an interval of codes is wide."""
    vectors = np.random.default_rng(1).standard_normal((600, 16)) + 1e7
    rows = pa.table({"id": np.arange(600), "embedding": pa.array(vectors.tolist(), pa.list_(pa.float64()))})
    table = sql_catalog.create_table("db.doubles", rows.schema, properties={"format-version": "2"})
    table.append(rows)
    index_head(table, replace(CODED, shards=1))
    reader = open_index(table, CODED, storage=STORAGE)
    answer = reader.search(vectors[:20], 10, columns=["id"], rerank=True)
    exact = open_exact(table, "embedding", CODED.metric, storage=STORAGE).search(vectors[:20], 10, columns=["id"])
    answers, nearest = ids_by_query(answer.rows), ids_by_query(exact.rows)
    assert np.mean([len({*answers[query]} & {*nearest[query]}) / 10 for query in nearest]) > 0.85
