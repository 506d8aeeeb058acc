"""What a report says of golden tables, whole, and of changes of these."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.assets.report import table_report as table_report_module
from icepuffin.assets.report.report_file import ReportFileError, require_folder, write_page
from icepuffin.assets.report.table_report import table_report
from icepuffin.assets.spec import TableSpec
from icepuffin.assets.table_settings import StatisticsSettings, TableSettings
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.versions.tuning_record import PREFIX
from icepuffin.ops.table.snapshots import data_snapshots
from tests.conformance.golden_files import GOLDEN, INDEX, golden_table
from tests.conftest import STORAGE, make_rows
from tests.recorded import by_part, recorded
from tests.repeatable import lying_in

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
"""A time half a day after golden tables were written"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of golden tables' files, at noon."""
    for name in ("t", "packs"):
        shutil.copytree(GOLDEN / name, tmp_path / name)
    monkeypatch.setattr(time, "time", NOON.timestamp)
    with lying_in(tmp_path):
        yield tmp_path


def spec_of(*indexes: IndexDefinition, name: str = "db.t", ref: str = "main", ndv: str = "*") -> TableSpec:
    statistics = StatisticsSettings(ndv=ndv)
    return TableSpec(TableSettings(catalog="golden", name=name, watched_refs=(ref,), statistics=statistics), indexes)


def test_all_that_a_report_knows_of_a_golden_table(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = golden_table(files, "packs", files)
    report = table_report(table, spec_of(INDEX, replace(INDEX, name="other")), STORAGE)
    assert report.made.tzinfo is UTC
    recorded("report_facts.txt", by_part(replace(report, made=NOON)))


def test_what_a_report_knows_of_a_branch_that_is_behind(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_report_module, "MAX_SNAPSHOTS", 2)
    table = golden_table(files, "t", files)
    table.manage_snapshots().create_branch(data_snapshots(table)[1].snapshot_id, "audit").commit()
    report = table_report(table.refresh(), spec_of(INDEX, ref="audit"), STORAGE)
    facts = {name: getattr(report, name) for name in ("head", "snapshots", "snapshot_count", "values", "distinct")}
    recorded("report_branch.txt", by_part(facts | {"index": report.indexes[0].overview, "lag": report.indexes[0].lag}))


def test_what_is_behind_and_what_mends_it(files: Path) -> None:
    table, states = golden_table(files, "t", files), dict[str, object]()

    def state(name: str, spec: TableSpec, of: Table = table) -> None:
        states[name] = table_report(of.refresh(), spec, STORAGE).shortfalls

    state("up to date", spec_of(INDEX))
    state("a ref that is not there", spec_of(INDEX, ref="audit"))
    state("no index, and no sketches wanted", spec_of(ndv="off"))
    state("an index without a version", spec_of(INDEX, replace(INDEX, name="other")))
    odd = table.catalog.create_table("db.it's $(a) table", table.schema())
    state("a new table of an odd name", spec_of(INDEX, name="db.it's $(a) table"), odd)
    odd.append(make_rows(0, 9))
    state("an odd name", spec_of(name="db.it's $(a) table"), odd)
    table.append(make_rows(150, 250))
    state("rows that came since", spec_of(INDEX))
    state("rows that came since, and no sketches wanted", spec_of(INDEX, ndv="off"))
    with table.transaction() as change:
        change.set_properties({PREFIX + "e": "{}"})
    state("a record of tuning that cannot be read", spec_of(INDEX, ndv="off"))
    known = {*files.rglob("*.parquet")}
    append_position_deletes(table, {table.inspect.files()["file_path"][0].as_py(): np.arange(2)})
    (deletes,) = {*files.rglob("*.parquet")} - known
    deletes.rename(files / "aside")
    state("nor deletes", spec_of(INDEX, ndv="off"))
    (files / "aside").rename(deletes)
    path = Path(index_versions(table, "e")[-1].puffin_path.replace("file:///golden", str(files)))
    path.write_bytes(path.read_bytes()[:-40])
    state("nor the version", spec_of(INDEX, ndv="off"))
    path.unlink()
    state("a version that is gone", spec_of(INDEX, ndv="off"))
    with table.transaction() as change:
        change.set_properties({"ann.index.bad.colum": "embedding"})
    state("an index that is not understood, and no other", spec_of(ndv="off"))
    state("one that the settings have", spec_of(replace(INDEX, name="bad"), ndv="off"))
    recorded("report_shortfalls.txt", by_part(states), {str(files): "FOLDER", deletes.name: "DELETES"})


def test_what_is_no_place_for_a_page(tmp_path: Path, files: Path) -> None:
    report = table_report(golden_table(files, "t", files), spec_of(), STORAGE)
    (tmp_path / "mine.html").write_text("mine")
    refusals = []
    for name in ("absent/t.html", "t", "mine.html"):
        with pytest.raises(ReportFileError) as refused:
            require_folder(tmp_path / name)
        refusals.append(str(refused.value))
    for path in (tmp_path / "absent" / "t.html", tmp_path):
        with pytest.raises(ReportFileError) as refused:
            write_page(report, path)
        refusals.append(str(refused.value))
    write_page(report, tmp_path / "t.html")
    require_folder(tmp_path / "t.html")
    recorded("report_refusals.txt", "\n".join(refusals), {str(tmp_path): "FOLDER"})
