"""Read restrictions of a REST catalog: a restricted table is refused by name wherever one comes in.

The catalog's answers are made here, of a table that SQLite keeps: no server runs.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table
from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter

import icepuffin
from icepuffin.ann_kernels.metric import Metric
from icepuffin.errors import CatalogUnavailableError, RestrictedTableError, TableUnavailableError
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.catalog.restricted_tables import refuse_restricted
from icepuffin.ops.resources import Catalogs
from icepuffin.ops.search import exact_search
from tests.conftest import make_rows, queries
from tests.ops.index.comparison import DEFINITION

URI = "http://catalog.invalid"
FILTER = {"required-row-filter": {"type": "eq", "left": {"type": "reference", "id": 1}, "right": 7}}
MASKS = {"required-column-projections": [{"field-id": 2, "action": "mask-alphanum"}]}
HARMLESS: tuple[Any, ...] = (
    None,
    {},
    {"required-row-filter": None, "required-column-projections": []},
    {"required-row-filter": True},
    {"required-row-filter": {"type": "true"}},
)
UNKNOWN: tuple[Any, ...] = (
    {"required-cell-filter": 1},
    {"required-row-filter": True, "more": None},
    [],
    "none",
    0,
    False,
)


@dataclass
class Answers:
    """What the catalog answers about its table."""

    table: Table
    restrictions: Any = None
    status: int = 200
    expired: list[int] = field(default_factory=list)
    """Statuses of the next answers, by which a token is no longer good"""
    requests: list[str] = field(default_factory=list)

    def send(self, request: PreparedRequest) -> Response:
        url = str(request.url)
        answer = Response()
        answer.request, answer.url, answer.status_code = request, url, 200
        document: dict[str, Any] = {"defaults": {}, "overrides": {}}
        if "/tables/" in url:
            assert request.method == "GET"
            self.requests.append(url)
            answer.status_code = self.expired.pop() if self.expired else self.status
            place = self.table.refresh().metadata_location
            metadata = json.loads(Path(place.removeprefix("file://")).read_text(encoding="utf-8"))
            document = {"metadata-location": place, "metadata": metadata, "config": {}}
            if self.restrictions is not None:
                document["read-restrictions"] = self.restrictions
        answer._content = json.dumps(document).encode()
        return answer


@pytest.fixture
def answers(table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch) -> Answers:
    table = table_factory()
    table.append(make_rows(0, 100))
    catalog = Answers(table)

    def send(_: HTTPAdapter, request: PreparedRequest, **__: Any) -> Response:
        return catalog.send(request)

    monkeypatch.setattr(HTTPAdapter, "send", send)
    return catalog


def plain_catalog() -> Catalog:
    return RestCatalog("plain", uri=URI)


def own_catalog() -> Catalog:
    return open_catalog("own", {"type": "rest", "uri": URI})


def opened(table: Table) -> icepuffin.IndexReader:
    return icepuffin.open_exact(table, "embedding", "l2")


def refused() -> Any:
    return pytest.raises(
        RestrictedTableError,
        match=r"db\.t: the catalog restricts what its user may read of this table .* grant all rows",
    )


ENTRIES: dict[str, Callable[[Table], object]] = {
    "open": lambda table: icepuffin.open_index(table, DEFINITION),
    "exact": opened,
    "exact search": lambda table: exact_search(table, "embedding", Metric.L2, queries(1), 1),
    "tune": lambda table: icepuffin.tune(table, DEFINITION, queries(2)),
    "refresh": lambda table: icepuffin.refresh(table, DEFINITION),
    "define": lambda table: icepuffin.create_index(table, DEFINITION),
    "sketches": icepuffin.read_ndv,
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_table_that_pyiceberg_loaded_is_refused_by_name(answers: Answers, entry: str) -> None:
    answers.restrictions = FILTER
    table = plain_catalog().load_table("db.t")
    answers.requests.clear()
    with refused():
        ENTRIES[entry](table)
    (request,) = answers.requests
    assert request.endswith("/v1/namespaces/db/tables/t?snapshots=refs")


def test_a_reader_needs_one_request_and_one_that_follows_two_at_each_step(answers: Answers) -> None:
    table = plain_catalog().load_table("db.t")
    answers.requests.clear()
    reader = opened(table)
    reader.search(queries(1), 3)
    reader.search(queries(1), 3)
    assert len(answers.requests) == 1
    with reader.follow(interval=1e6) as following:
        assert not following.update()
        assert following.search(queries(1), 3).rows.num_rows == 3
        assert len(answers.requests) == 3  # a step loads the table, then requests its restrictions
        answers.restrictions = MASKS
        for use in (following.update, lambda: following.search(queries(1), 3), lambda: following.within(queries(1), 1)):
            with refused():
                use()
        answers.restrictions = None
        assert not following.update()
        assert following.search(queries(1), 3).rows.num_rows == 3


def test_a_catalog_of_the_settings_gives_no_restricted_table(answers: Answers) -> None:
    """So no command, sensor or asset has one: all load tables there."""
    catalog = own_catalog()
    table = catalog.load_table("db.t")
    answers.restrictions = MASKS
    for load in (table.refresh, lambda: catalog.load_table("db.t")):
        with refused():
            load()
    catalogs = Catalogs({"own": {"type": "rest", "uri": URI}})
    for load in (catalogs.table, catalogs.poll):
        with refused():
            load("own", "db.t")
    answers.restrictions = None
    assert catalogs.poll("own", "db.t").name() == ("db", "t")


@pytest.mark.parametrize("catalog", [plain_catalog, own_catalog])
def test_sql_refuses_a_restricted_table(answers: Answers, catalog: Callable[[], Catalog]) -> None:
    session = icepuffin.SqlSession.on(catalog())
    query = ", ".join(map(str, queries(1)[0].tolist()))
    statement = f"SELECT id FROM db.t ORDER BY l2_distance(embedding, array({query})) LIMIT 1"
    assert session.sql(statement).rows.num_rows == 1  # its reader stays open
    answers.restrictions = FILTER
    with refused():
        session.sql(statement)


@pytest.mark.parametrize("restrictions", HARMLESS, ids=str)
def test_restrictions_that_restrict_nothing_are_none(answers: Answers, restrictions: Any) -> None:
    answers.restrictions = restrictions
    for catalog in (plain_catalog(), own_catalog()):
        assert opened(catalog.load_table("db.t")).search(queries(1), 1).rows.num_rows == 1


@pytest.mark.parametrize("restrictions", UNKNOWN, ids=str)
def test_a_form_that_is_not_known_is_a_refusal(answers: Answers, restrictions: Any) -> None:
    answers.restrictions = restrictions
    with refused() as caught:
        opened(plain_catalog().load_table("db.t"))
    assert "in a form that icepuffin does not know" in str(caught.value)
    with refused():
        own_catalog().load_table("db.t")


def test_the_refusal_says_what_is_restricted() -> None:
    for restrictions, what in (
        (FILTER, "filters its rows"),
        (MASKS, "masks some of its columns"),
        ({**FILTER, **MASKS}, "filters its rows and masks some of its columns"),
    ):
        with pytest.raises(RestrictedTableError, match=rf"\(read-restrictions: it {what}\)"):
            refuse_restricted("db.t", restrictions)


def test_a_token_that_has_expired_is_renewed_for_the_question(answers: Answers) -> None:
    table = plain_catalog().load_table("db.t")
    for status in (401, 419):
        answers.expired = [status]
        assert opened(table).search(queries(1), 1).rows.num_rows == 1
    answers.expired = [419, 419]
    with pytest.raises(CatalogUnavailableError, match="is not known"):
        opened(table)


def test_a_catalog_that_does_not_say_is_not_read(answers: Answers) -> None:
    table = plain_catalog().load_table("db.t")
    answers.status = 503
    with pytest.raises(CatalogUnavailableError, match=r"db\.t: whether catalog 'plain' restricts .* is not known"):
        opened(table)
    answers.status = 404
    with pytest.raises(TableUnavailableError, match=r"db\.t was dropped from catalog plain"):
        opened(table)
