"""Read restrictions of a REST catalog: a restricted table is refused by name wherever no reader enforces them."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError, ServiceUnavailableError
from pyiceberg.table import Table
from requests import PreparedRequest, Response

import icepuffin
from icepuffin.errors import CatalogUnavailableError, RestrictedTableError, TableUnavailableError
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.catalog.rest_catalog import _refuse_restricted
from icepuffin.ops.catalog.restricted_tables import refuse_restricted
from icepuffin.ops.resources import Catalogs
from icepuffin.ops.search.tuning import SearchOptions
from icepuffin.ops.tasks.task_runner import LocalRunner
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.catalog.catalog_answers import URI, Answers, plain_catalog
from tests.ops.index.comparison import DEFINITION

FILTER = {"required-row-filter": {"type": "eq", "left": {"type": "reference", "id": 1}, "right": 7}}
MASKS = {"required-column-projections": [{"field-id": 2, "action": "mask-alphanum"}]}
HARMLESS: tuple[Any, ...] = (
    None,
    {},
    {"required-row-filter": None, "required-column-projections": []},
    {"required-row-filter": True},
    {"required-row-filter": {"type": "true"}},
)
REGION = {"type": "reference", "id": 3}
UNKNOWN_FILTERS: tuple[Any, ...] = (
    1,
    "true",
    [],
    {},
    {"type": "true", "more": 1},
    {"type": "like", "left": REGION, "right": "a%"},
    {"type": "eq", "left": REGION},
    {"type": "eq", "left": REGION, "right": "a", "more": 1},
    {"type": "eq", "left": REGION, "right": None},
    {"type": "eq", "left": REGION, "right": 7},
    {"type": "eq", "left": REGION, "right": REGION},
    {"type": "eq", "left": REGION, "right": {"type": "literal", "value": "a", "data-type": "long"}},
    {"type": "eq", "left": REGION, "right": {"type": "literal", "data-type": "string"}},
    {"type": "eq", "left": {"type": "reference", "name": "section"}, "right": "a"},
    {"type": "eq", "left": {"type": "reference", "id": 99}, "right": "a"},
    {"type": "eq", "left": {"type": "reference", "id": 5}, "right": 1.0},
    {"type": "eq", "left": {"type": "reference", "id": True}, "right": 1},
    {"type": "eq", "left": {"type": "reference", "id": 1}, "right": True},
    {"type": "eq", "left": {"type": "reference", "id": 1}, "right": math.nan},
    {"type": "eq", "term": "section", "value": "a"},
    {"type": "in", "child": REGION, "values": "a"},
    {"type": "in", "child": REGION, "values": [None]},
    {"type": "in", "child": REGION, "values": {"type": "literals", "values": ["a"]}},
    {"type": "is-null", "child": {"type": "apply", "function": "lower", "arguments": [REGION]}},
    {"type": "is-nan", "child": REGION},
    {"type": "and", "left": True, "right": {"type": "not", "child": "section"}},
)
UNKNOWN_MASKS: tuple[Any, ...] = (
    {},
    "none",
    [2],
    [{"field-id": 2}],
    [{"field-id": "2", "action": "mask-alphanum"}],
    [{"field-id": True, "action": "mask-alphanum"}],
    [{"field-id": 2, "action": "mask-alphanum", "more": 1}],
    [{"field-id": 2, "action": "mask-alphanum"}, {"field-id": 2, "action": "replace-with-null"}],
)
UNKNOWN: tuple[Any, ...] = (
    {"required-cell-filter": 1},
    {"required-row-filter": True, "more": None},
    [],
    "none",
    0,
    False,
)


@pytest.fixture
def answers(table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch) -> Answers:
    table = table_factory()
    table.append(make_rows(0, 100))
    return Answers.about(table, monkeypatch)


def own_catalog() -> Catalog:
    return open_catalog("own", {"type": "rest", "uri": URI})


def opened(table: Table) -> icepuffin.IndexReader:
    return icepuffin.open_exact(table, "embedding", "l2")


def refused() -> Any:
    return pytest.raises(
        RestrictedTableError,
        match=r"db\.t: the catalog restricts what its user may read of this table .* grant all rows and columns to "
        "this user, or name a catalog",
    )


ENTRIES: dict[str, Callable[[Table], object]] = {
    "join": lambda table: opened(table).search_job(),
    "request of a join": lambda table: opened(table).search_request(1, SearchOptions(), None),
    "trial": lambda table: opened(table).recall_trial(),
    "live recall": lambda table: icepuffin.open_index(table, DEFINITION, recall_sample=0.5),
    "tasks": lambda table: icepuffin.open_index(table, DEFINITION, runner=LocalRunner(1)),
    "tune": lambda table: icepuffin.tune(table, DEFINITION, queries(2)),
    "refresh": lambda table: icepuffin.refresh(table, DEFINITION),
    "define": lambda table: icepuffin.create_index(table, DEFINITION),
    "sketches": icepuffin.read_ndv,
    "plan": icepuffin.plan,
    "list": icepuffin.list_indexes,
    "verify": icepuffin.verify,
    "garbage": icepuffin.gc,
    "report": lambda table: icepuffin.write_report(table, "report.html"),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_table_that_pyiceberg_loaded_is_refused_by_name(answers: Answers, entry: str) -> None:
    answers.restrictions = FILTER
    table = plain_catalog().load_table("db.t")
    answers.requests.clear()
    with refused():
        ENTRIES[entry](table)
    (request,) = answers.requests  # also where a reader is opened first
    assert request.endswith("/v1/namespaces/db/tables/t?snapshots=refs")


@pytest.mark.parametrize(
    ("restrictions", "status", "why"),
    [(FILTER, 200, "it filters its rows"), (None, 404, "was dropped from"), (None, 503, "is not known")],
)
def test_metrics_of_a_table_that_may_not_be_read_cost_no_other_any(
    answers: Answers, caplog: pytest.LogCaptureFixture, restrictions: Any, status: int, why: str
) -> None:
    refused, other = plain_catalog().load_table("db.t"), answers.table
    answers.restrictions, answers.status = restrictions, status
    lines = icepuffin.metrics(refused, other).splitlines()
    up = [line for line in lines if line.startswith("icepuffin_table_up{")]
    name = other.catalog.name
    assert up == [f'icepuffin_table_up{{catalog="{c}",table="db.t"}} {value}' for c, value in (("plain", 0), (name, 1))]
    assert why in caplog.text


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
        answers.restrictions = UNKNOWN[0]
        for use in (following.update, lambda: following.search(queries(1), 3), lambda: following.within(queries(1), 1)):
            with refused():
                use()
        answers.restrictions = None
        assert not following.update()
        assert following.search(queries(1), 3).rows.num_rows == 3


@pytest.mark.parametrize(("status", "error"), [(404, NoSuchTableError), (503, ServiceUnavailableError)])
def test_an_answer_that_is_an_error_restricts_nothing_whatever_it_contains(
    answers: Answers, status: int, error: type[Exception]
) -> None:
    """It is no answer about a table, and who reads the refusal would look for the wrong remedy."""
    catalog = own_catalog()
    answers.status, answers.restrictions = status, FILTER
    with pytest.raises(error):
        catalog.load_table("db.t")


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
def test_restrictions_are_found_however_the_answer_spells_them(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, catalog: Callable[[], Catalog]
) -> None:
    """JSON has escapes in names, too."""
    through = answers.send

    def escaped(request: PreparedRequest) -> Response:
        answer = through(request)
        answer._content = answer.content.replace(b"read-restrictions", rb"read\u002drestrictions")
        return answer

    monkeypatch.setattr(answers, "send", escaped)
    answers.restrictions = MASKS
    with refused():
        icepuffin.refresh(catalog().load_table("db.t"))


@pytest.mark.parametrize("catalog", [plain_catalog, own_catalog])
def test_sql_refuses_a_restricted_table(answers: Answers, catalog: Callable[[], Catalog]) -> None:
    session = icepuffin.SqlSession.on(catalog())
    query = ", ".join(map(str, queries(1)[0].tolist()))
    statement = f"SELECT id FROM db.t ORDER BY l2_distance(embedding, array({query})) LIMIT 1"
    assert session.sql(statement).rows.num_rows == 1  # its reader stays open
    answers.restrictions = FILTER
    with refused():
        session.sql(statement)


def test_sql_refuses_a_restricted_table_whoever_loads_it(answers: Answers) -> None:
    catalog = plain_catalog()
    session = icepuffin.SqlSession(lambda name: (catalog.load_table(name), STORAGE))
    query = ", ".join(map(str, queries(1)[0].tolist()))
    statement = f"SELECT id FROM db.t ORDER BY l2_distance(embedding, array({query})) LIMIT 1"
    assert session.sql(statement).rows.num_rows == 1  # its reader stays open
    answers.restrictions = FILTER
    with refused():
        session.sql(statement)


def test_the_restrictions_of_another_table_of_the_name_are_not_taken(
    answers: Answers, table_factory: Callable[..., Table]
) -> None:
    table = plain_catalog().load_table("db.t")
    answers.table = table_factory("other")
    with pytest.raises(TableUnavailableError, match=r"db\.t is another table in catalog plain than .*; load it again$"):
        opened(table)


@pytest.mark.parametrize("restrictions", HARMLESS, ids=str)
def test_restrictions_that_restrict_nothing_are_none(answers: Answers, restrictions: Any) -> None:
    answers.restrictions = restrictions
    for catalog in (plain_catalog(), own_catalog()):
        assert opened(catalog.load_table("db.t")).search(queries(1), 1).rows.num_rows == 1


@pytest.mark.parametrize("row_filter", UNKNOWN_FILTERS, ids=str)
def test_a_row_filter_that_cannot_be_evaluated_is_a_refusal(answers: Answers, row_filter: Any) -> None:
    answers.restrictions = {"required-row-filter": row_filter}
    with refused() as caught:
        opened(plain_catalog().load_table("db.t"))
    assert "in a form that icepuffin does not know" in str(caught.value)


@pytest.mark.parametrize("masks", UNKNOWN_MASKS, ids=str)
def test_masks_of_a_form_that_is_not_known_are_a_refusal(answers: Answers, masks: Any) -> None:
    answers.restrictions = {"required-column-projections": masks}
    with refused() as caught:
        opened(plain_catalog().load_table("db.t"))
    assert "in a form that icepuffin does not know" in str(caught.value)
    with refused():
        own_catalog().load_table("db.t")


def test_a_row_filter_that_is_nested_too_deeply_is_a_refusal(answers: Answers) -> None:
    table, row_filter = plain_catalog().load_table("db.t"), FILTER["required-row-filter"]
    for _ in range(900):
        row_filter = {"type": "and", "left": row_filter, "right": FILTER["required-row-filter"]}
    answers.restrictions = {"required-row-filter": row_filter}
    with refused():
        opened(table)


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
        with pytest.raises(
            RestrictedTableError,
            match=rf"\(read-restrictions: it {what}\)\. Readers of open_index and .* what holds all of it\. Have",
        ) as refusal:
            refuse_restricted("db.t", restrictions)
        assert not refusal.value.retryable
    with pytest.raises(
        RestrictedTableError,
        match=r"nothing of the table is read: it is no row filter with masks of columns\. Have",
    ):
        refuse_restricted("db.t", 7)


def test_a_refused_table_has_the_name_that_its_address_spells() -> None:
    answer = Response()
    answer.status_code, answer.url = 200, f"{URI}/v1/p/namespaces/a%1Fb%20c/tables/t%C3%A9?snapshots=all"
    answer._content = json.dumps(FILTER | {"read-restrictions": FILTER}).encode()
    with pytest.raises(RestrictedTableError, match=r"^a\.b c\.té: the catalog restricts"):
        _refuse_restricted(answer)


@pytest.mark.parametrize("content", [b"no JSON", b"[" * 100_000, b"1" * 5_000], ids=["text", "deep", "long number"])
def test_a_catalog_that_says_what_nobody_can_read_is_not_read(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    table, through = plain_catalog().load_table("db.t"), answers.send

    def unreadable(request: PreparedRequest) -> Response:
        answer = through(request)
        answer._content = content
        return answer

    monkeypatch.setattr(answers, "send", unreadable)
    with pytest.raises(CatalogUnavailableError, match=r"db\.t: whether catalog 'plain' restricts .* is not known"):
        opened(table)


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
    with pytest.raises(
        CatalogUnavailableError, match=r"db\.t: whether catalog 'plain' restricts .* is not known .* is up$"
    ):
        opened(table)
    answers.status = 404
    with pytest.raises(TableUnavailableError, match=r"db\.t was dropped from catalog plain; load the table again$"):
        opened(table)
