"""The vector store for LangChain: the standard suite of `langchain-tests`, and what it does not ask."""

import asyncio
import inspect
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_tests.integration_tests.vectorstores import EMBEDDING_SIZE, VectorStoreIntegrationTests
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table

import icepuffin
from icepuffin.errors import ArgumentError, QueryError, RestrictedTableError
from icepuffin.langchain import IcepuffinVectorStore
from icepuffin.ops.catalog import read_restrictions
from tests.extras import without_extras
from tests.patience import until

MODEL = DeterministicFakeEmbedding(size=EMBEDDING_SIZE)
VECTORS = pa.list_(pa.float32())


def table_of(catalog: Catalog, name: str = "docs", metric: str = "cosine", **columns: pa.DataType) -> Table:
    kinds = {"id": pa.string(), "text": pa.string(), "metadata": pa.string(), **columns, "embedding": VECTORS}
    table = catalog.create_table(f"db.{name}", pa.schema([*kinds.items()]), properties={"format-version": "2"})
    icepuffin.create_index(table, name="e", column="embedding", metric=metric, text=["text"])
    return table


@pytest.fixture
def vectorstore(sql_catalog: Catalog) -> Iterator[IcepuffinVectorStore]:
    with closing(IcepuffinVectorStore(table_of(sql_catalog), MODEL)) as store:
        yield store


class TestStandardSuite(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, sql_catalog: Catalog) -> Iterator[IcepuffinVectorStore]:  # type: ignore[override]
        with closing(IcepuffinVectorStore(table_of(sql_catalog), self.get_embeddings())) as store:
            yield store

    @pytest.fixture(autouse=True)
    def run_coroutines(self, request: pytest.FixtureRequest) -> None:
        """In a loop of their own: the suite's plugin for them would take part in all other tests."""
        if inspect.iscoroutinefunction(test := request.function):
            request.node.obj = lambda **arguments: asyncio.run(test(**arguments))


def newest(table: Table) -> int:
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def test_new_rows_are_found_beside_a_version_and_old_ones_as_of_their_snapshot(sql_catalog: Catalog) -> None:
    table = table_of(sql_catalog)
    store = IcepuffinVectorStore.from_texts(["a", "b"], MODEL, ids=["1", "2"], table=table, interval=3600)
    icepuffin.refresh(table.refresh())
    before = newest(table)
    store.similarity_search("a")
    store.add_texts(["c", "new b"], ids=["3", "2"])
    found = store.similarity_search_with_score("c", k=9)
    assert {document.id: document.page_content for document, _ in found} == {"1": "a", "2": "new b", "3": "c"}
    assert found[0][0].id == "3"
    assert found[0][1] == pytest.approx(0, abs=1e-6)
    store.delete(["1"])
    assert {document.id for document in store.similarity_search("a", k=9)} == {"2", "3"}
    then = IcepuffinVectorStore(table, MODEL, snapshot=before)
    assert {document.page_content for document in then.similarity_search("a")} == {"a", "b"}
    assert {document.page_content for document in then.get_by_ids(["1", "2", "3"])} == {"a", "b"}
    for write in (lambda: then.add_texts(["d"]), lambda: then.delete(["1"])):
        with pytest.raises(ArgumentError, match=f"reads snapshot {before}: write by one without `snapshot`"):
            write()
    assert newest(table) != before
    store.close()


def test_what_others_write_is_found(sql_catalog: Catalog) -> None:
    table = table_of(sql_catalog)
    with closing(IcepuffinVectorStore(table, MODEL, interval=0.05)) as store:
        store.add_texts(["a"], ids=["1"])
        assert len(store.similarity_search("a")) == 1
        other = sql_catalog.load_table("db.docs")
        other.append(table.refresh().scan().to_arrow().set_column(0, "id", pa.array(["2"], pa.large_string())))
        until(lambda: len(store.similarity_search("a")) == 2)
        assert len(store.get_by_ids(["1", "2"])) == 2


def test_a_commit_has_no_more_than_one_document_of_an_id(vectorstore: IcepuffinVectorStore) -> None:
    assert vectorstore.add_texts(["a", "b", "c"], [{"n": 1}, {"n": 2}, {"n": 3}], ids=["1", "2", "1"]) == [
        "1",
        "2",
        "1",
    ]
    assert {one.id: (one.page_content, one.metadata) for one in vectorstore.similarity_search("a", k=9)} == {
        "1": ("c", {"n": 3}),
        "2": ("b", {"n": 2}),
    }
    before = newest(vectorstore._table)
    vectorstore.add_texts([])
    vectorstore.delete(["none", "of these"])
    assert newest(vectorstore._table) == before


def test_columns_take_their_metadata_and_filters_name_them(sql_catalog: Catalog) -> None:
    table = table_of(sql_catalog, id=pa.int64(), rank=pa.int64(), distance=pa.string())
    with closing(IcepuffinVectorStore(table, MODEL, metadata_columns=["rank", "distance"])) as store:
        store.add_texts(["a", "b"], [{"rank": 7, "distance": "far", "x": [1]}, {"distance": "near"}], ids=["1", "-2"])
        assert table.refresh().scan().to_arrow()["rank"].to_pylist() == [7, None]
        assert store.get_by_ids(["1", "x", "", "-2x", "1" * 30]) == [
            Document(id="1", page_content="a", metadata={"rank": 7, "distance": "far", "x": [1]})
        ]
        for condition in ("rank is null", EqualTo(term="distance", value="near")):
            (found,) = store.similarity_search("a", filter=condition)
            assert found == Document(id="-2", page_content="b", metadata={"distance": "near"})
        store.delete(["-2", "x"])
        assert [one.id for one in store.similarity_search("a")] == ["1"]
        with pytest.raises(ArgumentError, match=r"db\.docs: id takes int64, give such values: .*'one'"):
            store.add_texts(["a"], ids=["one"])
        with pytest.raises(ArgumentError, match=r"db\.docs: rank takes int64, give such values: "):
            store.add_texts(["a"], [{"rank": "first"}], ids=["3"])
        with pytest.raises(ArgumentError, match=r"db\.docs: rank takes int64"):
            store.add_texts(["a"], [{"rank": 2**70}], ids=["3"])


def test_metadata_without_a_column_is_refused(sql_catalog: Catalog) -> None:
    store = IcepuffinVectorStore(
        table_of(sql_catalog, kind=pa.string()), MODEL, metadata_column=None, metadata_columns=["kind"]
    )
    with closing(store):
        with pytest.raises(ArgumentError, match="no column takes the metadata a, b: name it in metadata_columns"):
            store.add_texts(["a"], [{"b": 1, "kind": "x", "a": 2}])
        store.add_texts(["a"], [{"kind": "x"}], ids=["1"])
        assert store.similarity_search("a") == [Document(id="1", page_content="a", metadata={"kind": "x"})]


def test_words_are_searched_for_too(sql_catalog: Catalog) -> None:
    table = table_of(sql_catalog)
    texts = ["a blue whale", "the red fox", "a red rose", "green grass"]
    with closing(IcepuffinVectorStore.from_texts(texts, MODEL, ids=list("abcd"), table=table, words=True)) as store:
        found = store.similarity_search_with_score("foxes", text_weight=1)
        assert (found[0][0].id, found[0][1]) == ("b", 1.0)
        ranked = store.similarity_search_with_score("foxes")
        assert [score for _, score in ranked] == sorted((score for _, score in ranked), reverse=True)
        assert ranked[0][1] <= 2 / 61
        with pytest.raises(ArgumentError, match="relevance is the cosine"):
            store.similarity_search_with_relevance_scores("foxes")


def test_relevance_is_the_cosine(sql_catalog: Catalog) -> None:
    with closing(IcepuffinVectorStore.from_texts(["a"], MODEL, table=table_of(sql_catalog))) as store:
        ((_, relevance),) = store.similarity_search_with_relevance_scores("a", score_threshold=0.9)
        assert relevance == pytest.approx(1)
    other = IcepuffinVectorStore(table_of(sql_catalog, "l2", "l2"), MODEL)
    with pytest.raises(ArgumentError, match="relevance is the cosine"):
        other.similarity_search_with_relevance_scores("a")


def test_marginal_relevance_chooses_what_is_unlike(vectorstore: IcepuffinVectorStore) -> None:
    vectorstore.add_texts(["a", "a", "b"], ids=["1", "2", "3"])
    assert vectorstore.similarity_search_by_vector(MODEL.embed_query("b"), 1)[0].id == "3"
    assert {one.page_content for one in vectorstore.similarity_search("a", 2)} == {"a"}
    unlike = vectorstore.max_marginal_relevance_search("a", 2, lambda_mult=0.1)
    assert {one.page_content for one in unlike} == {"a", "b"}
    assert {one.page_content for one in vectorstore.max_marginal_relevance_search("a", 2, lambda_mult=1)} == {"a"}
    assert vectorstore.max_marginal_relevance_search("a", 2, filter="id = '3'")[0].id == "3"
    retriever = vectorstore.as_retriever(search_type="mmr", search_kwargs={"k": 1})
    assert [one.page_content for one in retriever.invoke("b")] == ["b"]


def test_warnings_of_answers_are_logged(vectorstore: IcepuffinVectorStore, caplog: pytest.LogCaptureFixture) -> None:
    vectorstore._words = True
    vectorstore.add_texts(["a"], ids=["1"])
    with caplog.at_level(logging.WARNING, "icepuffin.langchain"):
        vectorstore.similarity_search("the")
    assert "db.docs: " in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_column": "body"}, "db.docs has no body, but id, text, metadata, embedding: name these by id_column"),
        ({"metadata_columns": ["kind"]}, "db.docs has no kind"),
        ({"id_column": "embedding"}, "db.docs: embedding is list<float>; ids are strings or whole numbers"),
        ({"index": "f"}, "has no index 'f'"),
    ],
)
def test_a_store_that_does_not_fit_its_table_is_refused(
    sql_catalog: Catalog, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError) as raised:
        IcepuffinVectorStore(table_of(sql_catalog), MODEL, **options)
    assert message in str(raised.value)


def test_what_is_left_out_deletes_nothing(vectorstore: IcepuffinVectorStore) -> None:
    vectorstore.add_texts(["a"])
    with pytest.raises(ArgumentError, match="delete takes ids"):
        vectorstore.delete()
    with pytest.raises(ArgumentError, match="2 texts, 1 metadatas, 2 ids: give one of each"):
        vectorstore.add_texts(["a", "b"], [{}])
    with pytest.raises(QueryError, match="k is 0"):
        vectorstore.similarity_search("a", k=0)
    assert len(vectorstore.similarity_search("a", k=9)) == 1


def test_rows_that_a_catalog_hides_are_not_read_by_their_ids(
    vectorstore: IcepuffinVectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectorstore.add_texts(["a"], ids=["1"])
    monkeypatch.setattr(read_restrictions, "_answer", lambda table: {"required-row-filter": {"type": "false"}})
    for call in (vectorstore.get_by_ids, vectorstore.delete):
        with pytest.raises(RestrictedTableError):
            call(["1"])


def test_the_extra_is_named_where_it_is_missing(tmp_path: Path) -> None:
    program = "import icepuffin, sys\nassert 'langchain_core' not in sys.modules\nimport icepuffin.langchain"
    environment = {**os.environ, **without_extras(tmp_path, "langchain")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.endswith("icepuffin.langchain needs langchain_core: pip install 'icepuffin[langchain]'")
