"""A reader that follows its table repeats the last searches on the next reader before this takes over."""

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import AuthorizationExpiredError, ForbiddenError, NoSuchTableError, UnauthorizedError
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table, TableProperties

from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.catalog.restricted_tables import RestrictedTableError
from icepuffin.ops.search import following_reader, pipeline
from icepuffin.ops.search.errors import QueryError, UnknownColumnError
from icepuffin.ops.search.following_reader import FollowingReader, RecentSearches
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.storage.local_storage import to_path
from tests.conftest import ROWS, STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, index_head
from tests.ops.index.test_vectors_of_bytes import rows_of, table_of
from tests.ops.search.runners import LabelRecorder
from tests.patience import PATIENCE, until

CONDITION = "section = 'section 2'"


@pytest.fixture(autouse=True)
def _patient_rehearsals(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is due is repeated, on a slow machine as well."""
    monkeypatch.setattr(following_reader, "_REHEARSAL_SECONDS", PATIENCE)


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    new_table = table_factory()
    new_table.append(make_rows(0, 400))
    index_head(new_table)
    return new_table.refresh()


@pytest.fixture
def conditions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The conditions that were evaluated."""
    evaluated: list[Any] = []
    find = pipeline.find_matches

    def found(*arguments: Any, **options: Any) -> Any:
        evaluated.append(arguments[3])
        return find(*arguments, **options)

    monkeypatch.setattr(pipeline, "find_matches", found)
    return evaluated


@pytest.fixture
def following(table: Table) -> Iterator[FollowingReader[IndexReader]]:
    with open_index(table, DEFINITION, storage=STORAGE, recall_sample=1.0).follow(interval=1e6) as reader:
        yield reader


def grown(table: Table) -> None:
    first = int(table.refresh().scan().to_arrow()["id"].to_numpy().max()) + 1
    table.append(make_rows(first, first + 10))


def test_the_first_search_of_each_kind_finds_its_condition_evaluated(
    table: Table, following: FollowingReader[IndexReader], conditions: list[Any]
) -> None:
    query = queries(1)[0]
    following.search(query, 3, columns=["id"], where=CONDITION)
    following.search(query.tolist(), 3, columns=["id"], where=EqualTo("id", 7))
    following.within(query[None], 2.0, columns=["id"], where="id < 9")
    del conditions[:]
    grown(table)
    assert following.update()
    assert sorted(map(str, conditions)) == sorted([CONDITION, str(EqualTo("id", 7)), "id < 9"])
    del conditions[:]
    answer = following.search(queries(5), 3, columns=["id"], where=CONDITION)
    fresh = open_index(table.refresh(), DEFINITION, storage=STORAGE)
    assert answer.rows.equals(fresh.search(queries(5), 3, columns=["id"], where=CONDITION).rows)
    assert conditions == [CONDITION], "of the fresh reader"


def test_repeated_searches_are_no_live_queries(table: Table, following: FollowingReader[IndexReader]) -> None:
    following.search(queries(1), 3)
    sampler = following.reader._pipeline.sampler
    assert sampler is not None
    added: list[object] = []
    sampler.add = lambda *arguments: added.append(arguments)  # type: ignore[method-assign]
    grown(table)
    index_head(table)
    assert following.update()
    assert added == []
    following.search(queries(1), 3)
    assert len(added) == 1


def test_searches_of_many_queries_are_not_repeated(
    table: Table, following: FollowingReader[IndexReader], conditions: list[Any]
) -> None:
    following.search(queries(2), 3, where=CONDITION)
    following.search(queries(1), 3, where=[CONDITION])
    del conditions[:]
    grown(table)
    assert following.update()
    assert conditions == []


def test_a_query_is_repeated_in_whatever_form_it_came(
    table_factory: Callable[..., Table], conditions: list[Any]
) -> None:
    """Here the last byte is 0, which a NumPy array of strings does not keep."""
    vectors = np.arange(260, dtype=np.uint8).reshape(20, 13)
    vectors[0, 12] = 0
    table, kind = table_of(table_factory, vectors)
    definition = replace(DEFINITION, element_type="u8")
    index_head(table, definition)
    one = vectors[0].tobytes()
    forms = [one, bytearray(one), memoryview(one), [one], (one,), pa.array([one]), pa.chunked_array([pa.array([one])])]
    forms += [vectors[0], vectors[:1], vectors[0].tolist(), vectors[:1].tolist(), pa.array([vectors[0]])]
    with open_index(table.refresh(), definition, storage=STORAGE).follow(interval=1e6) as following:
        for number, form in enumerate(forms):
            following.search(form, 3, columns=["id"], where=f"id < {number}")
        following.search([one, one], 3, columns=["id"], where="id > 3")
        del conditions[:]
        table.append(rows_of(vectors[:2], 20, kind))
        assert following.update()
        assert sorted(conditions) == sorted(f"id < {number}" for number in range(len(forms)))


def test_a_number_is_a_query_of_one_dimension(sql_catalog: Catalog) -> None:
    table = sql_catalog.create_table("db.t", ROWS)
    table.append(make_rows(0, 50, dims=1))
    index_head(table)
    query = np.array(0.5)
    with open_index(table.refresh(), DEFINITION, storage=STORAGE).follow(interval=1e6) as following:
        assert following.search(query, 3).rows.equals(following.reader.search(query, 3).rows)


def test_a_search_is_that_of_the_reader_whatever_is_asked_for(table_factory: Callable[..., Table]) -> None:
    table, definition = table_factory(), replace(DEFINITION, vectors="f16")
    table.append(make_rows(0, 300))
    index_head(table, definition)
    options: tuple[dict[str, Any], ...] = (
        {"search_list": 77}, {"shards": 1}, {"oversample": 2}, {"target_recall": 0.9}, {"rerank": True},
        {"certified": True},
    )  # fmt: skip

    def seen(reader: Any, **asked: Any) -> tuple[object, ...]:
        answer = reader.search(queries(1), 3, **asked)
        return answer.profile.parameters, answer.profile.strategy, answer.warnings

    with open_index(table.refresh(), definition, storage=STORAGE).follow(interval=1e6) as following:
        for asked in options:
            assert seen(following, **asked) == seen(following.reader, **asked) != seen(following), asked
        near = following.within(queries(1), 20.0, limit=3).rows["distance"].to_pylist()
        assert len(near) == 3
        counts = [len(following.within(queries(1), near[2], inclusive=inclusive)) for inclusive in (False, True)]
        assert counts == [2, 3]


def test_an_exact_reader_follows_its_branch_and_knows_what_its_bytes_are(table_factory: Callable[..., Table]) -> None:
    vectors = np.arange(260, dtype=np.uint8).reshape(20, 13)
    table, kind = table_of(table_factory, vectors)
    table.manage_snapshots().create_branch(table.metadata.current_snapshot_id or 0, "audit").commit()
    exact = open_exact(table.refresh(), "embedding", "l2", element_type="u8", snapshot="audit", storage=STORAGE)
    with exact.follow(interval=1e6) as following:
        table.append(rows_of(vectors[:3], 20, kind))
        assert not following.update(), "those are rows of main"
        table.append(rows_of(vectors[:2], 23, kind), branch="audit")
        assert following.update()
        assert following.reader.row_count == 22
        assert following.search(vectors[0], 3).rows["distance"].to_pylist()[:2] == [0.0, 0.0]


def rename(table: Table) -> None:
    with table.update_schema() as change:
        change.rename_column("name", "title")


def map_other_names(table: Table) -> None:
    with table.transaction() as change:
        change.set_properties({TableProperties.DEFAULT_NAME_MAPPING: "[]"})


def register_with(table: Table, **fields: str) -> None:
    """Another table in the place of this one, with all of its snapshots."""
    document = json.loads(table.metadata.model_dump_json(exclude_none=True))
    path = to_path(table.metadata_location).with_name("00099-other.metadata.json")
    path.write_text(json.dumps({**document, **fields}))
    table.catalog.drop_table(table.name())
    table.catalog.register_table(table.name(), f"file://{path}")


@pytest.mark.parametrize(
    "change",
    [
        rename,
        map_other_names,
        partial(register_with, location="file:///elsewhere"),
        partial(register_with, **{"table-uuid": str(UUID(int=7))}),
    ],
)
def test_a_change_of_the_table_is_followed_though_its_snapshot_is_the_same(
    table: Table, change: Callable[[Table], None]
) -> None:
    exact = open_exact(table, "embedding", "l2", storage=STORAGE)
    with exact.follow(interval=1e6) as following:
        change(table)
        assert following.update()
        assert following.reader.snapshot_id == exact.snapshot_id
        assert not following.update()


def test_the_last_kinds_of_searches_are_repeated_while_there_is_time(
    table: Table,
    following: FollowingReader[IndexReader],
    conditions: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in (*range(20), 4, 3, 3):
        following.search(queries(1), 3, where=f"id < {number}")
    del conditions[:]
    grown(table)
    assert following.update()
    assert sorted(conditions) == sorted(f"id < {number}" for number in (3, 4, *range(6, 20)))
    del conditions[:]
    monkeypatch.setattr(following_reader, "_REHEARSAL_SECONDS", 0.0)
    grown(table)
    assert following.update()
    assert conditions == []


def test_a_version_that_could_not_be_read_is_taken_up_once_it_can_be(table: Table) -> None:
    (version,) = index_versions(table, "e")
    path = to_path(version.puffin_path)
    hidden = path.rename(path.with_suffix(".hidden"))
    with open_index(table, DEFINITION, storage=STORAGE).follow(interval=1e6) as following:
        assert (following.reader.version, following.update()) == (None, False)
        hidden.rename(path)
        assert (following.update(), following.reader.version) == (True, version)
        assert not following.update()


def test_a_search_that_fails_by_now_does_not_keep_the_newer_reader_away(
    table: Table, following: FollowingReader[IndexReader], caplog: pytest.LogCaptureFixture
) -> None:
    following.search(queries(1), 3, columns=["name"])
    following.search(queries(1), 3, columns=["id"])
    with table.refresh().update_schema() as change:
        change.delete_column("name")
    table.append(make_rows(900, 901).drop_columns(["name"]))
    with caplog.at_level(logging.INFO, logger="icepuffin"):
        assert following.update()
    assert ["'name'" in record.getMessage() for record in caplog.records if "repeated" in record.getMessage()] == [True]
    assert following.error is None
    with pytest.raises(UnknownColumnError):
        following.search(queries(1), 3, columns=["name"])


def test_nothing_is_repeated_where_each_search_reads_files_or_runs_tasks(table: Table) -> None:
    runner = LabelRecorder()
    exact = open_exact(table, "embedding", "l2", storage=STORAGE)
    tasks = open_index(table, DEFINITION, storage=STORAGE, runner=runner, in_process_mb=0)
    assert tasks.tier == "distributed"
    for reader in (exact, tasks):
        with reader.follow(interval=1e6) as following:
            following.search(queries(1), 3)
            del runner.jobs[:]
            grown(table)
            assert following.update()
            assert runner.jobs == []


def test_a_query_that_is_remembered_is_a_copy(
    table: Table, following: FollowingReader[IndexReader], caplog: pytest.LogCaptureFixture
) -> None:
    """It may be a row of a large array, which changes."""
    many = np.array(queries(4))
    following.search(many[2], 3)
    many[:] = np.nan
    grown(table)
    with caplog.at_level(logging.INFO, logger="icepuffin"):
        assert following.update()
    assert [record.getMessage() for record in caplog.records if "repeated" in record.getMessage()] == []


def test_an_answer_that_was_not_checked_for_three_intervals_says_so(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No check has failed: it has not ended, or the reader was closed."""
    now = [1_000.0]
    clock = SimpleNamespace(time=lambda: now[0], gmtime=time.gmtime, strftime=time.strftime, monotonic=time.monotonic)
    grown(table)
    reader = open_index(table.refresh(), DEFINITION, storage=STORAGE, stale="nearest-only")
    with reader.follow(interval=1e6) as following:
        monkeypatch.setattr(following_reader, "time", clock)
        following.update()
        now[0] += 3e6
        assert following.search(queries(1), 1).warnings == reader.warnings != ()
        now[0] += 1
        *others, warning = following.search(queries(1), 1).warnings
    assert tuple(others) == reader.warnings
    assert warning.startswith(
        "the table was not checked for newer snapshots since 1970-01-01T00:16:40Z: the last check"
    )


def test_nothing_is_shown_of_a_table_that_the_catalog_no_longer_gives(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [AuthorizationExpiredError("no"), ForbiddenError("no"), NoSuchTableError("no"), UnauthorizedError("no")]
    with open_exact(table, "embedding", "l2", storage=STORAGE).follow(interval=1e6) as following:
        for error in errors:
            monkeypatch.setattr(table.catalog, "load_table", Mock(side_effect=error))
            named = rf"no longer gives this table to its user \({type(error).__name__}"
            with pytest.raises(RestrictedTableError, match=named):
                following.update()
            with pytest.raises(RestrictedTableError, match=named):
                following.search(queries(1), 1)


def test_one_search_is_remembered_of_each_method_columns_and_condition() -> None:
    recent: RecentSearches[Any] = RecentSearches()
    for where in (None, "id < 3", EqualTo("id", 3), ["id < 3"]):
        for method in ("search", "within", "search"):
            for columns in (None, ["id"]):
                recent.add(method, [1.0], {"where": where, "columns": columns})
    assert len(recent.all()) == 3 * 2 * 2


def test_nothing_more_is_repeated_once_nobody_follows(following: FollowingReader[IndexReader]) -> None:
    following.search(queries(1), 3)
    end = time.monotonic() + PATIENCE
    assert len(list(following._in_time(end))) == 1
    following.close()
    assert list(following._in_time(end)) == []


def test_an_interval_may_be_longer_than_a_thread_can_wait_and_is_a_number(table: Table) -> None:
    exact = open_exact(table, "embedding", "l2", storage=STORAGE)
    with exact.follow(interval=np.inf) as following:
        following._thread.join(0.05)
        assert following._thread.is_alive()
    for interval in (10**400, 0, np.nan, None, "soon"):
        with pytest.raises(QueryError, match=r"it is a number of seconds above 0"):
            exact.follow(interval=interval)  # type: ignore[arg-type]


def test_a_check_that_fails_is_followed_by_the_next(
    table_factory: Callable[..., Table], caplog: pytest.LogCaptureFixture
) -> None:
    new_table = table_factory()
    new_table.append(make_rows(0, 10))
    first, newer = (open_exact(new_table, "embedding", "l2", storage=STORAGE) for _ in range(2))
    outcomes = iter([OSError("the catalog is away"), RestrictedTableError("the catalog filters its rows")])

    def reopen(_: object, __: object) -> Any:
        for outcome in outcomes:
            raise outcome
        return newer

    with FollowingReader(first, reopen, lambda *_: None, interval=0.001) as following:
        until(lambda: following._reader is newer)
    assert [record.getMessage() for record in caplog.records] == [
        "the newest snapshot could not be opened, searching goes on: the catalog is away",
        "searching ends: the catalog filters its rows",
    ]
