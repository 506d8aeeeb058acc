"""A table whose index has a version of a later release: it is told, left as it is, and never replaced."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from pyiceberg.table import Table

from icepuffin.assets.table_settings import IndexSettings, TableSettings
from icepuffin.ops.binding.bound_versions import index_versions, tagged_version
from icepuffin.ops.index.definitions.ddl import create_index, drop_index, list_definitions
from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition
from icepuffin.ops.index.errors import LaterReleaseError
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.versions import version_format
from icepuffin.ops.index.versions.version_format import FORMAT_VERSION, made_later
from icepuffin.ops.model import Action
from icepuffin.ops.runs.index_verification import verify
from icepuffin.ops.runs.maintenance import gc
from icepuffin.ops.runs.refresh_plan import plan
from icepuffin.ops.runs.snapshot import refresh
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.orchestration.discovery import indexes_of
from icepuffin.puffin.blobs import routing_blob
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head

_to_json = IndexDefinition.to_json
LATER = {
    "version of format 4: a later release wrote it": (version_format, "FORMAT_VERSION", FORMAT_VERSION + 1),
    "routing blob has feature bit 1: a later release wrote it": (routing_blob, "COMMON", 3),
    "a later one wrote it, with depth": (IndexDefinition, "to_json", lambda one: _written(one, depth=1)),
    "a later one wrote it: index e: vectors is 'rq2'": (
        IndexDefinition,
        "to_json",
        lambda one: _written(one, vectors="rq2"),
    ),
}
"""(where, name, value) of what is otherwise in a later release, by what is told of its versions"""


def _written(definition: IndexDefinition, **changes: object) -> str:
    return json.dumps({**json.loads(_to_json(definition)), **changes})


@pytest.fixture(params=LATER)
def told(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def table(table_factory: Callable[..., Table], told: str, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Two snapshots, of which this release has indexed the first, and a later one the second."""
    new_table = table_factory()
    create_index(new_table, DEFINITION)
    new_table.append(make_rows(0, 60))
    index_head(new_table)
    new_table.append(make_rows(60, 70))
    with monkeypatch.context() as later:
        later.setattr(*LATER[told])
        index_head(new_table)
    return new_table.refresh()


@pytest.mark.parametrize("appended", [False, True])
def test_no_refresh_replaces_it(table: Table, told: str, appended: bool) -> None:
    if appended:
        table.append(make_rows(70, 80))
    before = table.refresh().metadata
    for work in (index_head, lambda table: plan(table, "e", storage=STORAGE)):
        with pytest.raises(LaterReleaseError, match=f"{told}.* It stays as it is. Refresh the index by that") as error:
            work(table)
        assert not error.value.retryable
    gc(table, storage=STORAGE, grace_hours=0)
    assert table.refresh().metadata == before


def test_a_rollback_moves_no_tag_away_from_it(table: Table, told: str) -> None:
    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[0].snapshot_id).commit()
    before = table.refresh().metadata
    with pytest.raises(LaterReleaseError, match=told):
        index_head(table)
    assert table.refresh().metadata == before


def test_searches_go_on_without_it_and_tell(table: Table, told: str) -> None:
    assert verify(table, "e").from_later_release
    result, recall = answer_with_recall(table)
    assert (result.coverage, recall > 0.9) == (Coverage.NEAREST_VERSION_AND_TAIL, True)
    assert [told in warning for warning in result.warnings] == [True]


def test_another_snapshot_gets_a_version(table: Table) -> None:
    first, tagged = table.metadata.snapshots[0].snapshot_id, tagged_version(table, "e")
    table.maintenance.expire_snapshots().by_id(index_versions(table, "e")[0].index_snapshot_id).commit()
    report = materialize_index(RunContext(table, STORAGE, LocalRunner(1)), DEFINITION, first)
    assert (report.action, tagged_version(table.refresh(), "e")) == (Action.BUILT, tagged)


def test_this_release_goes_on_once_the_index_is_dropped(table: Table) -> None:
    drop_index(table, "e")
    create_index(table, DEFINITION)
    assert index_head(table).action is Action.REFRESHED
    result, _ = answer_with_recall(table)
    assert (result.coverage, result.warnings) == (Coverage.EXACT_VERSION, ())


def test_a_broken_definition_keeps_no_index_of_the_settings_back(table_factory: Callable[..., Table]) -> None:
    table = table_factory()
    for name in ("e", "f"):
        create_index(table, replace(DEFINITION, name=name))
    with table.transaction() as transaction:
        transaction.set_properties({"ann.index.f.depth": "1"})
    indexes = {name: IndexSettings(column="embedding", metric="l2") for name in ("e", "f")}
    settings = TableSettings(catalog="test", name="db.t", indexes_from_table=False, indexes=indexes)
    assert [it.name for it in indexes_of(table, settings, by_pattern=False).definitions] == ["e"]


def test_a_property_of_no_index_keeps_no_index_back(
    table_factory: Callable[..., Table], caplog: pytest.LogCaptureFixture
) -> None:
    table = table_factory()
    create_index(table, DEFINITION)
    with table.transaction() as transaction:
        transaction.set_properties({"ann.index.e": "on"})
    assert [definition.name for definition in list_definitions(table)] == ["e"]
    assert "table property 'ann.index.e' is no parameter of an index" in caplog.text


@pytest.mark.parametrize(("parameter", "value"), [("depth", "1"), ("vectors", "rq2"), ("max-degree", "9999")])
def test_an_index_that_only_a_later_release_understands_keeps_no_other_back(
    table_factory: Callable[..., Table], caplog: pytest.LogCaptureFixture, parameter: str, value: str
) -> None:
    table = table_factory()
    table.append(make_rows(0, 60))
    for name in ("e", "f"):
        create_index(table, replace(DEFINITION, name=name))
    with table.transaction() as transaction:
        transaction.set_properties({f"ann.index.f.{parameter}": value})
    assert [definition.name for definition in list_definitions(table)] == ["e"]
    for index in (None, "f"):
        with pytest.raises(DefinitionError, match=r"db\.t: .* Leave it to a later release that has set it") as told:
            refresh(table, index, storage=STORAGE)
    assert len(index_versions(table.refresh(), "e")) == 1
    assert str(told.value) in caplog.text
    assert indexes_of(table, TableSettings(catalog="test", name="db.t"), by_pattern=False).left_out == str(told.value)


def test_earlier_formats_and_build_ids_without_one_are_of_no_later_release() -> None:
    formats = (str(FORMAT_VERSION), str(FORMAT_VERSION - 1), "x", "", "9" * 64)
    assert [made_later(f"{number}-ab") for number in formats] == [""] * len(formats)
