"""Pages give every row once, and in the order of one search for all where answers are exact."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icepuffin.ops.search.errors import IndexUnavailableError, QueryError, UnknownColumnError
from icepuffin.ops.search.pipeline import SearchPipeline
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import SearchResult
from tests.conftest import make_rows, queries
from tests.ops.search.shaped.lake import DEFINITIONS, INDEXED, Lake, lake_in
from tests.ops.search.shaped.test_grouped_search import READERS, WHERE


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return lake_in(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def readers(lake: Lake) -> dict[str, IndexReader]:
    return {name: lake.reader(name) for name in READERS}


def joined(pages: Iterable[SearchResult], size: int) -> list[dict[str, Any]]:
    """The rows of all pages, of which the last alone may be short. Ranks go on."""
    pages = list(pages)
    assert all(len(page) == size for page in pages[:-1])
    assert all(0 < len(page) <= size for page in pages)
    rows = [row for page in pages for row in page]
    assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
    return rows


@given(
    seed=st.integers(0, 999), name=st.sampled_from(READERS), size=st.sampled_from([1, 7, 20, 111, 600]),
    where=st.sampled_from([*WHERE]),
)  # fmt: skip
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_pages_have_every_row_once(
    lake: Lake, readers: dict[str, IndexReader], seed: int, name: str, size: int, where: str | None
) -> None:
    query = make_rows(30_000 + seed, 30_001 + seed)["embedding"][0].as_py()
    ids = [row["id"] for row in joined(readers[name].pages(query, size, columns=["id"], where=where), size)]
    last = INDEXED if name == "graph alone" else np.inf
    assert sorted(ids) == [row for row in lake.live if WHERE[where](row) and row < last]


@pytest.mark.parametrize("name", ["exact", "balls"])
@pytest.mark.parametrize("where", [None, "even < 3"])
@pytest.mark.parametrize("size", [3, 50])
def test_exact_pages_are_one_search(readers: dict[str, IndexReader], name: str, where: str | None, size: int) -> None:
    paged = joined(readers[name].pages(queries(1), size, columns=["id"], where=where), size)
    assert paged == list(readers[name].search(queries(1), 1_000, columns=["id"], where=where))


@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_first_pages_are_the_first_rows(readers: dict[str, IndexReader], name: str) -> None:
    """And are found without comparing every row."""
    pages = readers[name].pages(queries(1), 4, columns=["id"])
    first = [next(pages) for _ in range(3)]
    rows = [row for page in first for row in page]
    assert rows == list(readers[name].search(queries(1), 16, columns=["id"]))[:12]
    assert [page.profile.pruning is None for page in first] == [name != "balls"] * 3
    assert "index" in first[0].profile.milliseconds
    assert set(first[1].profile.milliseconds) == {"rows"}, "the second page was found with the first"


def test_a_page_is_searched_for_when_it_is_asked_for(
    readers: dict[str, IndexReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = readers["graph"].pages(queries(1), 2)
    monkeypatch.setattr(SearchPipeline, "find", lambda *_: pytest.fail("searched"))
    with pytest.raises(pytest.fail.Exception, match="searched"):
        next(pages)


def test_pages_go_on_where_the_index_cannot_be_read_any_more(
    lake: Lake, readers: dict[str, IndexReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = readers["graph by tasks"]
    within = SearchPipeline.within

    def fails(self: SearchPipeline, *arguments: Any) -> Any:
        if self is broken._pipeline:
            raise IndexUnavailableError("a shard is gone")
        return within(self, *arguments)

    monkeypatch.setattr(SearchPipeline, "within", fails)
    pages = list(broken.pages(queries(1), 10, columns=["id"]))
    assert sorted(row["id"] for page in pages for row in page) == lake.live
    assert not pages[0].warnings
    assert "a shard is gone" in pages[-1].warnings
    assert pages[-1].coverage == "exact-scan"


def test_pages_are_of_one_query_and_one_condition(readers: dict[str, IndexReader]) -> None:
    """Which is said before a page is asked for."""
    reader = readers["graph"]
    with pytest.raises(QueryError, match="pages are of one query and one condition"):
        reader.pages(queries(2))
    with pytest.raises(QueryError, match="pages are of one query and one condition"):
        reader.pages(queries(1), where=["even < 3"])  # type: ignore[arg-type]
    for size in (0, None):
        with pytest.raises(QueryError, match="size is 0; ask for at least 1"):
            reader.pages(queries(1), size)  # type: ignore[arg-type]
    with pytest.raises(UnknownColumnError):
        reader.pages(queries(1), columns=["none"])
