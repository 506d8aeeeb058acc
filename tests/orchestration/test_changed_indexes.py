"""Indexes in a table's own properties that change while a code location has them as they were."""

import json
from dataclasses import replace

import dagster as dg
import numpy as np
import pytest
from pyiceberg.types import FloatType, ListType

import icepuffin
from icepuffin.assets.partitions import partitions_name
from icepuffin.assets.report.table_report import table_report
from icepuffin.assets.spec import TableSpec
from icepuffin.ops.index.definitions.ddl import create_index, defined_names, drop_index, load_definition
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.planning.current_versions import find_field_id
from icepuffin.ops.model import StorageConfig
from icepuffin.orchestration.cli import main
from icepuffin.orchestration.discovery import indexes_of, table_spec
from icepuffin.orchestration.engines import catalogs_of
from icepuffin.orchestration.factory import build
from icepuffin.orchestration.settings import load
from tests.orchestration.evaluation import found_spec
from tests.orchestration.lake import DIMS, Lake, make_lake, make_rows

OWN = IndexDefinition(name="own", column="embedding", metric="l2", max_degree=16, search_list=32)


@pytest.fixture
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """One snapshot, an index of the settings, and one that the table defines itself."""
    lake = make_lake(tmp_path_factory.mktemp("own") / "lake", snapshots=1)
    create_index(lake.table, OWN)
    return lake


def execute(
    lake: Lake, instance: dg.DagsterInstance, definitions: dg.Definitions, job: str
) -> dg.ExecuteInProcessResult:
    settings = load(lake.settings_file)
    head = str(lake.head())
    name = partitions_name(found_spec(settings.tables["packages"], catalogs_of(settings)))
    instance.add_dynamic_partitions(name, [head])
    return definitions.resolve_job_def(f"{job}_demo_demo_packages").execute_in_process(
        instance=instance, partition_key=head if job == "refresh" else None, raise_on_error=False
    )


@pytest.mark.parametrize("job", ["refresh", "maintain"])
def test_an_index_that_was_dropped_is_not_made_again(lake: Lake, instance: dg.DagsterInstance, job: str) -> None:
    definitions = build(load(lake.settings_file))
    drop_index(lake.table, "own")
    result = execute(lake, instance, definitions, job)
    assert not result.success
    failed = [event for event in result.all_events if event.is_step_failure]
    messages = [str(event.step_failure_data.error) for event in failed]
    assert len(messages) == 1
    assert "index 'own' was dropped, and is not made again; reload the code location" in messages[0]
    assert not [event for event in result.all_events if event.is_step_up_for_retry]
    table = lake.table.refresh()
    assert defined_names(table) == ("embedding",)
    assert "ann_own" not in table.metadata.refs
    assert ("ann_embedding" in table.metadata.refs) is (job == "refresh"), "other indexes are made all the same"


def test_an_index_that_was_made_anew_has_versions_of_its_new_definition(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = build(load(lake.settings_file))
    drop_index(lake.table, "own")
    create_index(lake.table, IndexDefinition(name="own", column="embedding", metric="cosine", target_recall=0.5))
    result = execute(lake, instance, definitions, "refresh")
    assert result.success
    (check,) = (
        check
        for check in result.get_asset_check_evaluations()
        if (check.asset_key.path[-1], check.check_name) == ("own", "recall")
    )
    assert check.metadata["target"].value == 0.5
    table = lake.table.refresh()
    answer = icepuffin.open_index(table, "own").search(np.ones(DIMS, np.float32), 3)
    assert answer.coverage == "exact-version"


def test_an_index_of_the_settings_that_is_to_be_on_another_column_is_refused(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    """Its definition in the table's properties has the id of the column that it was made on."""
    assert execute(lake, instance, build(load(lake.settings_file)), "refresh").success
    with lake.table.refresh().update_schema() as update:
        update.add_column("newer", ListType(100, FloatType(), element_required=False))
    lake.table.refresh().append(make_rows(60, 5))
    changed = lake.settings(retries=2).replace('column = "embedding"', 'column = "newer"')
    lake.settings_file.write_text(changed, encoding="utf-8")
    result = execute(lake, instance, build(load(lake.settings_file)), "refresh")
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    message = (
        "index 'embedding' is on column embedding, and is to be on newer: drop the index, and the next run makes it"
    )
    assert message in str(failed.step_failure_data.error)
    assert not [event for event in result.all_events if event.is_step_up_for_retry]


@pytest.mark.parametrize(
    ("parameter", "before", "after"), [("metric", "cosine", "l2"), ("method", "diskann", "centroid")]
)
def test_other_distances_of_an_index_are_refused_until_it_is_dropped(
    lake: Lake, instance: dg.DagsterInstance, parameter: str, before: str, after: str
) -> None:
    """Readers by name would go on by the old ones, and find no newer version."""
    assert execute(lake, instance, build(load(lake.settings_file)), "refresh").success
    lake.append()
    shared, column, _ = lake.settings(retries=2).partition('column = "embedding"\n')
    lake.settings_file.write_text(f'{shared}{column}{parameter} = "{after}"\n', encoding="utf-8")
    result = execute(lake, instance, build(load(lake.settings_file)), "refresh")
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    message = (
        f"index 'embedding' has {parameter} {before}, and is to have {after}: drop the index, and the next run makes it"
    )
    assert message in str(failed.step_failure_data.error)
    assert not [event for event in result.all_events if event.is_step_up_for_retry]
    drop_index(lake.table, "embedding")
    assert execute(lake, instance, build(load(lake.settings_file)), "refresh").success
    reader = icepuffin.open_index(lake.table.refresh(), "embedding")
    assert str(getattr(reader.definition, parameter)) == after
    assert reader.search(np.ones(DIMS, np.float32), 3).coverage == "exact-version"


def test_an_index_of_the_settings_follows_its_column_to_another_name(lake: Lake, instance: dg.DagsterInstance) -> None:
    assert execute(lake, instance, build(load(lake.settings_file)), "refresh").success
    with lake.table.refresh().update_schema() as update:
        update.rename_column("embedding", "vector")
    renamed = make_rows(60, 5).rename_columns(["id", "name", "vector"])
    for column in ("embedding", "vector"):
        lake.table.refresh().append(renamed)
        changed = lake.settings().replace('column = "embedding"', f'column = "{column}"')
        lake.settings_file.write_text(changed, encoding="utf-8")
        assert execute(lake, instance, build(load(lake.settings_file)), "refresh").success


@pytest.mark.parametrize("from_table", [True, False])
def test_readers_of_an_index_of_the_settings_follow_its_column_too(
    lake: Lake, capsys: pytest.CaptureFixture[str], from_table: bool
) -> None:
    where = ["demo.packages", "--settings", str(lake.write_settings(indexes_from_table=from_table))]
    search = ["search", *where, "--index", "embedding", "--like-id", "3", "--json"]
    main(["refresh", *where, "--index", "embedding"])
    before = icepuffin.open_index(lake.table.refresh(), "embedding").definition
    with lake.table.refresh().update_schema() as update:
        update.rename_column("embedding", "vector")
    capsys.readouterr()
    main(search)
    assert json.loads(capsys.readouterr().out)["column"] == "vector"
    settings = load(lake.settings_file).tables["packages"]
    found = indexes_of(lake.table.refresh(), settings, by_pattern=True)
    spec = table_spec(settings, found)
    assert before is not None
    assert (spec.indexes[0].name, spec.indexes[0].field_id) == ("embedding", before.field_id)
    assert len(spec.indexes) == (2 if from_table else 1)
    of_settings = replace(spec.indexes[0], field_id=None)
    assert find_field_id(lake.table, of_settings) == before.field_id, "by the table's own definition"


def test_lists_show_the_names_that_columns_have_now(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    """And those of the definition where a column is gone, or where it has no id, as after an edit by hand."""
    table = lake.table.refresh()
    icepuffin.create_index(table, name="e", column="embedding", filters=("name", "id"))
    with table.transaction() as by_hand:
        by_hand.set_properties({"ann.index.h.column": "embedding"})
    for change in ("rename", "delete"):
        with table.update_schema(allow_incompatible_changes=True) as update:
            if change == "rename":
                update.rename_column("embedding", "vector").rename_column("name", "label")
            else:
                update.delete_column("vector")
        column = "vector" if change == "rename" else "embedding"
        e, h, _ = (state.definition for state in icepuffin.list_indexes(table))
        assert (e.column, e.filters, h.column) == (column, ("label", "id"), "embedding")
        shown = icepuffin.SqlSession.on(lake.catalog).sql("SHOW INDEXES ON demo.packages").rows.to_pylist()
        assert [(it["column"], it["filters"]) for it in shown[:2]] == [(column, "label, id"), ("embedding", "")]
        main(["index", "list", "demo.packages", "--settings", str(lake.settings_file)])
        assert column in capsys.readouterr().out
        spec = TableSpec(load(lake.settings_file).tables["packages"], (load_definition(table, "e"),))
        page = table_report(table, spec, StorageConfig())
        assert [index.definition.column for index in page.indexes] == [column]


def test_only_what_is_not_shown_is_said_not_to_be(lake: Lake) -> None:
    """An index of the settings is shown, whatever the table's properties have of it, where the table has the column."""
    table, settings = lake.table.refresh(), load(lake.settings_file).tables["packages"]
    with table.transaction() as by_hand:
        by_hand.set_properties({"ann.index.embedding.colum": "embedding"})
    absent = settings.model_copy(
        update={"indexes": {"embedding": settings.indexes["embedding"].model_copy(update={"column": "none"})}}
    )
    for by_pattern in (False, True):
        for own, is_shown in ((settings, True), (absent, not by_pattern)):
            spec = table_spec(own, indexes_of(table, own, by_pattern=by_pattern))
            assert ("embedding" in {index.name for index in spec.indexes}) == is_shown
            assert ("are not shown: " in spec.note) != is_shown
    with table.transaction() as by_hand:
        by_hand.set_properties({"ann.index.own.colum": "embedding"})
    note = table_spec(settings, indexes_of(table, settings, by_pattern=False)).note
    assert (note.count("'ann.index.own.colum' is no parameter"), note.count("embedding.colum")) == (1, 0)
