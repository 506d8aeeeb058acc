"""A REST catalog that changes commits is found on a scratch table, before any work for the real one."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from icepuffin.ops.binding import catalog_trial
from icepuffin.ops.binding.bound_versions import tag_target
from icepuffin.ops.binding.errors import UnsupportedCatalogError
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.model import Action
from icepuffin.ops.resources import Catalogs
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import STORAGE, make_rows
from tests.interop.lakes import Lake, open_lake
from tests.ops.index.comparison import DEFINITION, index_head
from tests.services.altering import AlteredLine, Change, altered_line

pytestmark = pytest.mark.services


@contextmanager
def altered_lake(rest_uri: str, folder: Path, **properties: str) -> Iterator[tuple[Lake, AlteredLine]]:
    with (
        altered_line(rest_uri) as line,
        open_lake(f"altered_{folder.name}", line.uri, folder, **properties) as lake,
    ):
        lake.create("t").append(make_rows(0, 60))
        line.created.clear()
        yield lake, line


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("no tags", "accepted tag ann_trial and did not keep it"),
        ("no ages", "does not keep the max-ref-age-ms of tag ann_trial"),
        ("no statistics", "accepted tag ann_trial and did not keep it"),
        ("a parent", r"gave index snapshot \d+ a parent"),
        ("a parent of a pack", r"gave holder snapshot \d+ a parent"),
        ("version current", r"made snapshot \d+, which is icepuffin's, the current one"),
        ("pack current", r"made snapshot \d+, which is icepuffin's, the current one"),
        ("no old snapshots", r"dropped snapshot \d+ when a version of it was committed"),
        ("no requirements", "takes commits whose requirements are not met"),
        ("bad request", r"refuses the commit of a version \(.*tags are not supported"),
    ],
)
def test_what_a_catalog_changes_is_named_before_any_work(
    rest_uri: str, tmp_path: Path, change: Change, words: str
) -> None:
    with altered_lake(rest_uri, tmp_path) as (lake, line):
        table, line.change = lake.load("t"), change
        before, files = table.metadata_location, set(tmp_path.rglob("*"))
        with pytest.raises(UnsupportedCatalogError, match=f"^db_.*t: catalog '{lake.name}' {words}"):
            index_head(table)
        assert table.refresh().metadata_location == before
        assert lake.catalog.list_tables(lake.namespace) == [(lake.namespace, "t")]
        left = {path for path in set(tmp_path.rglob("*")) - files if path.is_file()}
        assert left == set()


def test_what_failed_is_tried_again(rest_uri: str, tmp_path: Path) -> None:
    with altered_lake(rest_uri, tmp_path) as (lake, line):
        line.change = "no tags"
        with pytest.raises(UnsupportedCatalogError, match=r"was seen on a scratch table; .*\.t was not changed"):
            create_index(lake.load("t"), DEFINITION)
        line.change = ""
        assert create_index(lake.load("t"), DEFINITION).field_id
        assert len(line.created) == 2


def test_a_catalog_is_tried_once_and_not_for_a_table_with_a_version(
    rest_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with altered_lake(rest_uri, tmp_path) as (lake, line):
        for name in ("t", "u"):
            table = lake.load("t") if name == "t" else lake.create("u")
            table.append(make_rows(60, 90))
            assert index_head(table).action is Action.BUILT
        assert [name.startswith("icepuffin_trial_") for name in line.created] == [True, False]
        monkeypatch.setattr(catalog_trial, "_TRIED", {})
        line.created.clear()
        table.append(make_rows(90, 100))
        assert index_head(table).action is Action.REFRESHED
        assert line.created == []


def test_without_the_right_to_create_tables_the_work_goes_on_with_a_warning(
    rest_uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with altered_lake(rest_uri, tmp_path, token="token-1234") as (lake, line):
        line.change = "no new tables"
        with caplog.at_level(logging.WARNING):
            assert index_head(lake.load("t")).action is Action.BUILT
        assert tag_target(lake.load("t"), "ann_e") is not None
        assert f"whether catalog '{lake.name}' keeps tags and snapshots as they are sent was not tried" in caplog.text
        assert "<token> may not create tables" in caplog.text
        assert "token-1234" not in caplog.text


@pytest.mark.parametrize("change", ["lost creation", "no reading", "no commits"])
def test_what_keeps_the_trial_from_its_end_keeps_no_work_from_its_own(
    rest_uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Change
) -> None:
    """Of none of these it is known that the catalog changes commits. The scratch table goes, if it is there."""
    with altered_lake(rest_uri, tmp_path) as (lake, line):
        line.change = change
        with caplog.at_level(logging.WARNING):
            assert create_index(lake.load("t"), DEFINITION).field_id
        assert len(line.created) == 1
        line.change = ""
        assert lake.catalog.list_tables(lake.namespace) == [(lake.namespace, "t")]
        assert "was not tried out before the work" in caplog.text


def test_one_refusal_may_be_of_the_moment(rest_uri: str, tmp_path: Path) -> None:
    with altered_lake(rest_uri, tmp_path) as (lake, line):
        line.change = "bad request once"
        assert create_index(lake.load("t"), DEFINITION).field_id
        assert len(line.created) == 2
        assert lake.catalog.list_tables(lake.namespace) == [(lake.namespace, "t")]


def test_a_scratch_table_is_dropped_without_its_files_where_the_catalog_deletes_none(
    rest_uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with altered_lake(rest_uri, tmp_path) as (lake, line):
        line.change = "no purge"
        with caplog.at_level(logging.WARNING):
            create_index(lake.load("t"), DEFINITION)
        assert lake.catalog.list_tables(lake.namespace) == [(lake.namespace, "t")]
        assert "scratch table" not in caplog.text


def test_a_scratch_table_that_can_not_be_dropped_is_named_and_no_pattern_finds_it(
    rest_uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with altered_lake(rest_uri, tmp_path) as (lake, line):
        line.change = "no dropping"
        with caplog.at_level(logging.WARNING):
            create_index(lake.load("t"), DEFINITION)
        (scratch,) = line.created
        assert f"scratch table {lake.namespace}.{scratch} stays in catalog '{lake.name}'" in caplog.text
        assert (lake.namespace, scratch) in lake.catalog.list_tables(lake.namespace)
        catalogs = Catalogs({lake.name: {"type": "rest", "uri": line.uri}})
        assert catalogs.matching(lake.name, f"{lake.namespace}.*") == (f"{lake.namespace}.t",)


def test_file_sketches_are_not_bound_where_the_catalog_changes_commits(rest_uri: str, tmp_path: Path) -> None:
    with altered_lake(rest_uri, tmp_path) as (lake, line):
        table, line.change = lake.load("t"), "no tags"
        head = table.metadata.current_snapshot_id or 0
        report = count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), head).publish()
        assert "did not keep it" in report.note
        assert not list(tmp_path.rglob("theta-files-*"))
