"""Statistics of all kinds as people meet them: in the shell, in Dagster, in the report, in a project's definitions."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import icepuffin
from examples.demo.row_deletes import append_position_deletes
from icepuffin.assets.drift import drift_result
from icepuffin.assets.glance import INLINE_CHARACTERS, histogram_bars
from icepuffin.assets.newest_snapshots import row_counts
from icepuffin.assets.report.report_page import report_page
from icepuffin.assets.spec import TableSpec
from icepuffin.assets.table_settings import StatisticsSettings, TableSettings
from icepuffin.assets.theta_sketches import theta_sketches_asset
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.resources import Catalogs, Engine
from icepuffin.ops.table.snapshots import find_snapshot
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.ndv import ndv_bounds
from icepuffin.ops.theta.requested_statistics import RequestedStatistics
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.orchestration.cli import main
from tests.conftest import STORAGE

KINDS: dict[str, Any] = {
    "ndv": ["id", "country", "price"],
    "histogram": ["price", "day"],
    "size": "*",
    "frequent": ["country"],
    "joint": [["country", "day"]],
}
COUNTRIES = ["at", "de", "fr"]


def rows(first: int, last: int, *, factor: int = 1, nulls: int = 10) -> pa.Table:
    """Prices run from 0.00 up in steps of .25 times `factor`; each `nulls`-th country is null."""
    numbers = range(first, last)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "country": pa.array([None if it % nulls == 0 else COUNTRIES[it % 3] for it in numbers], pa.string()),
            "price": pa.array([Decimal(factor * number) / 4 for number in numbers], pa.decimal128(12, 2)),
            "day": [date(2026, 1, 1) + timedelta(days=number % 50) for number in numbers],
        }
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("ICEPUFFIN_SETTINGS", raising=False)
    settings(tmp_path)
    return tmp_path


def settings(folder: Path, **statistics: Any) -> None:
    chosen = {**KINDS, **statistics}
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in chosen.items())
    (folder / "icepuffin.toml").write_text(
        f'threads = 1\n[catalogs.lake]\ntype = "sql"\nuri = "sqlite:///{folder}/catalog.db"\n'
        f'warehouse = "file://{folder}"\n[tables.t]\ncatalog = "lake"\nname = "db.t"\n[tables.t.statistics]\n{lines}',
        encoding="utf-8",
    )


@pytest.fixture
def table(folder: Path) -> Iterator[Table]:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace("db")
    created = catalog.create_table("db.t", rows(0, 1).schema)
    created.append(rows(0, 400))
    yield created
    catalog.engine.dispose()


def head(table: Table) -> SnapshotId:
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    return SnapshotId(snapshot.snapshot_id)


def sketched(table: Table, **kinds: Any) -> SnapshotId:
    requested = StatisticsSettings(**{**KINDS, **kinds}).requested
    count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), head(table), requested=requested).publish()
    return head(table)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*words: str) -> str:
        main(list(words))
        return capsys.readouterr().out

    return run


def test_stats_shows_each_kind_with_its_error_and_histograms_as_pictures(
    table: Table, said: Callable[..., str]
) -> None:
    said("refresh", "db.t")
    shown = said("stats", "db.t")
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    for line in (
        "id ndv 400 exact yes",
        "price histogram 0.00 to 99.75, median 49.75 exact yes",
        "country size 720 bytes exact yes",
        "country frequent at 120, de 120, fr 120 exact yes",
        "country, day joint 140 exact yes",
        "price, the middle 99 % of 400 values",
    ):
        assert line in lines, shown
    assert max(map(len, shown.splitlines())) <= 80
    picture = shown.partition("price, the middle")[2].splitlines()[1:6]
    assert [set(line.strip()) <= set(" ▁▂▃▄▅▆▇█") for line in picture] == [True] * 4 + [False]
    assert set(picture[3].strip()) == {"█"}, "the lowest line of a flat histogram is full"
    assert picture[4].split() == ["0.25", "99.25"]
    assert not [line for line in lines if line.startswith(("left out", "not fresh", "warning"))]


def test_stats_gives_all_of_it_as_json(table: Table, said: Callable[..., str]) -> None:
    said("refresh", "db.t")
    document = json.loads(said("stats", "db.t", "--json"))
    assert document["columns"]["id"]["ndv"] == 400
    assert document["statistics"] == icepuffin.read_statistics(table.refresh()).to_arrow().to_pylist()
    assert {row["kind"] for row in document["statistics"]} == {*KINDS}
    assert document["left_out"] == []


def test_stats_of_an_ancestor_are_not_fresh(table: Table, said: Callable[..., str]) -> None:
    before = sketched(table)
    table.append(rows(400, 410))
    shown = said("stats", "db.t")
    assert f"not fresh: counted for snapshot {before}, not for {head(table)}" in shown
    assert "not fresh" not in said("stats", "db.t", "--snapshot", str(before))


def test_stats_warns_of_a_lost_file_and_still_shows_what_the_metadata_has(
    table: Table, said: Callable[..., str]
) -> None:
    entry = find_statistics(table, sketched(table))
    assert entry is not None
    Path(entry.statistics_path.removeprefix("file://")).unlink()
    shown = said("stats", "db.t")
    assert "400" in shown
    assert f"warning: db.t: the statistics file of snapshot {head(table)} is lost" in shown
    document = json.loads(said("stats", "db.t", "--json"))
    assert "is lost" in document["left_out"][0]
    assert "statistics" not in document
    report = icepuffin.write_report(table, "report.html")
    (lost,) = (shortfall for shortfall in report.shortfalls if shortfall.is_fault)
    assert (lost.command, report.statistics) == (f"icepuffin refresh db.t --snapshot {head(table)}", None)


def test_without_other_kinds_no_file_is_read(table: Table, said: Callable[..., str]) -> None:
    entry = find_statistics(table, sketched(table, histogram="off", size="off", frequent="off", joint="off"))
    assert entry is not None
    Path(entry.statistics_path.removeprefix("file://")).unlink()
    assert "distinct values (estimates)" in said("stats", "db.t")
    assert "statistics" not in json.loads(said("stats", "db.t", "--json"))


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("histogram", ["country"], "statistics.histogram names country"),
        ("size", ["price"], "statistics.size names price"),
        ("frequent", ["none"], "statistics.frequent names none"),
        ("joint", [["country", "none"]], "statistics.joint names none"),
    ],
)
def test_a_column_that_a_kind_cannot_take_is_refused_by_name(
    table: Table, folder: Path, capsys: pytest.CaptureFixture[str], kind: str, value: Any, message: str
) -> None:
    settings(folder, **{kind: value})
    for words in (["plan", "db.t"], ["refresh", "db.t"]):
        with pytest.raises(SystemExit) as exited:
            main(words)
        assert exited.value.code == 1
        shown = capsys.readouterr().err
        assert f"db.t, {message}, which it cannot be made of" in shown
        assert "Traceback" not in shown
    result = run_of(table, folder, **{kind: value})
    assert not result.success
    (failure,) = (event for event in result.all_events if event.is_step_failure)
    data: Any = failure.event_specific_data
    assert message in data.user_failure_data.description
    assert find_statistics(table, head(table)) is None


def run_of(table: Table, folder: Path, **statistics: Any) -> dg.ExecuteInProcessResult:
    """A run of the asset on the head."""
    chosen = StatisticsSettings(**{**KINDS, **statistics})
    spec = TableSpec(TableSettings(catalog="lake", name="db.t", statistics=chosen, retries=0))
    asset = theta_sketches_asset(spec)
    catalogs = Catalogs({"lake": {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}})
    engine = Engine(spark_conf={}, threads=1, driver_only_rows=10**6)
    with dg.DagsterInstance.ephemeral() as instance:
        assert asset.partitions_def is not None
        instance.add_dynamic_partitions(str(asset.partitions_def.name), [str(head(table))])  # type: ignore[attr-defined]
        return dg.materialize(
            [asset],
            partition_key=str(head(table)),
            resources={"icepuffin_catalogs": catalogs, "icepuffin_engine": engine},
            instance=instance,
            raise_on_error=False,
        )


def test_a_run_plots_rows_and_quantiles_and_draws_histograms(table: Table, folder: Path) -> None:
    result = run_of(table, folder)
    assert result.success
    assert not result.get_asset_check_evaluations(), "drift is checked where it is set"
    (event,) = result.get_asset_materialization_events()
    metadata = {name: value.value for name, value in event.materialization.metadata.items()}
    assert metadata["rows"] == 400
    assert metadata["ndv/id"] == 400
    days = (date(2026, 1, 1) - date(1970, 1, 1)).days
    assert [metadata[f"quantile/price/{name}"] for name in ("p5", "p50", "p95")] == [4.75, 49.75, 94.75]
    assert [metadata[f"quantile/day/{name}"] for name in ("p5", "p50", "p95")] == [days + 2, days + 24, days + 47]
    for column in ("price", "day"):
        picture = str(metadata[f"values of {column}"])
        assert picture.startswith("![the middle 99 % of the values](<data:image/svg+xml,")
        assert len(picture) <= INLINE_CHARACTERS
    summary = str(metadata["summary"])
    assert "* **bytes of values:** country: 720 bytes" in summary
    assert "* **most frequent:** country: at 120, de 120, fr 120" in summary
    assert "* **distinct together:** country, day: 140" in summary


def test_a_picture_of_thirty_bars_is_short_enough_to_be_shown(table: Table) -> None:
    sketched(table)
    (histogram, *_) = icepuffin.read_statistics(table.refresh()).histogram.values()
    assert 300 < len(histogram_bars(histogram)) <= INLINE_CHARACTERS


def drift(table: Table, **thresholds: float) -> dg.AssetCheckResult:
    """The check of the head. `all` stands for `*`."""
    return drift_result(
        table.refresh(), head(table), {"*" if key == "all" else key: it for key, it in thresholds.items()}, STORAGE
    )


def words(result: dg.AssetCheckResult) -> dict[str, str]:
    return {name: str(value.value) for name, value in result.metadata.items()}


def test_drift_names_columns_and_figures_that_moved(table: Table) -> None:
    before = sketched(table)
    table.overwrite(rows(0, 400, factor=2, nulls=4))
    sketched(table)
    result = drift(table, all=0.1)
    assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.WARN)
    shown = words(result)
    assert shown["drifted"].split("; ") == [
        "share of nulls of country: 15.0% (15.0% for certain), allowed are 10.0%",
        "quantiles of price: 50.0% (50.0% for certain), allowed are 10.0%",
    ]
    assert shown["compared with"] == f"snapshot {before}, 4 columns"
    assert drift(table, all=0.51).passed
    assert drift(table, all=0.1, price=0.6, country=0.16).passed, "a column's own threshold comes first"
    assert not drift(table, all=0.1, price=0.6).passed
    assert drift(table, id=0.01).passed


def test_drift_of_distinct_values_is_relative(table: Table) -> None:
    sketched(table)
    table.append(rows(400, 500))
    sketched(table)
    assert words(drift(table, id=0.2))["drifted"].startswith("distinct values of id: 25.0% (25.0% for certain)")
    assert drift(table, id=0.25).passed


def test_deletes_that_delete_nothing_are_no_drift_and_no_bound(table: Table, folder: Path) -> None:
    """Compaction may leave them, and then the summary counts too few live rows."""
    table.overwrite(rows(0, 10_000))
    (task,) = table.scan().plan_files()
    append_position_deletes(table, {task.file.file_path: np.arange(3_000)})
    sketched(table)
    table.overwrite(table.refresh().scan().to_arrow())
    now = sketched(table)
    assert row_counts(find_snapshot(table.refresh(), now))[2] == 4_000, "of 7,000"
    assert words(drift(table, country=1e-9, price=1e-9)).keys() == {"compared with", "not compared"}
    report = icepuffin.write_report(table, folder / "t.html")
    low, high = ndv_bounds(report.distinct["id"][now], report.rows_in_files[now])
    counted = icepuffin.read_statistics(table).ndv["id"]
    assert low <= 7_000 <= high == counted.upper == 7_000
    assert abs(low - counted.lower) <= 1, "by the rounded estimate"
    assert f"snapshot {now}: {counted.ndv:,}, {low:,} to 7,000" in report_page(report)
    table.overwrite(rows(0, 10_000, nulls=2))
    sketched(table)
    assert not drift(table, country=0.1).passed, "10 % to 50 %, of which at least some is certain"


def test_what_sketches_may_be_off_by_is_no_drift(table: Table) -> None:
    """The same rows in another order and other files give other samples: none of the difference is certain."""
    numbers = np.random.default_rng(5).permutation(60_000)
    table.overwrite(rows(0, 60_000).take(numbers))
    before = sketched(table)
    table.overwrite(rows(0, 60_000).take(numbers[::-1]).slice(0, 59_990))
    now = sketched(table)
    ones, others = (icepuffin.read_statistics(table, it).histogram["price"] for it in (before, now))
    assert 2 / 60_000 < ones.distance(others) < 2 * ones.rank_error
    assert drift(table, price=1e-9, id=1e-9).passed


def test_drift_says_what_it_cannot_compare(table: Table) -> None:
    assert words(drift(table, all=0.1)) == {"not compared": "no snapshot before has sketches"}
    before = sketched(table, histogram="off", frequent="off")
    table.append(rows(400, 401))
    sketched(table)
    shown = words(drift(table, price=0.1, none=0.1))
    assert shown["drifted"] == "settings name none, which the table lacks", "a slip of the pen is no pass"
    assert not drift(table, none=0.1).passed
    assert shown["not compared"].split("; ") == [
        "quantiles of price",
        "share of nulls of price",
        "distinct values of none",
        "quantiles of none",
        "share of nulls of none",
    ]
    assert words(drift(table, all=0.1))["not compared"] == "day", "it has a histogram now, and had nothing before"
    entry = find_statistics(table, before)
    assert entry is not None
    Path(entry.statistics_path.removeprefix("file://")).unlink()
    lost = drift(table, all=0.1)
    assert lost.passed
    assert f"the statistics file of snapshot {before} is lost" in words(lost)["not compared"]


def test_statistics_of_an_ancestor_are_not_taken_for_the_snapshots_own(table: Table) -> None:
    sketched(table)
    table.overwrite(rows(0, 400, factor=9))
    result = drift(table, price=0.01)
    assert result.passed
    assert words(result)["not compared"].startswith("distinct values of price; quantiles of price")


def test_a_run_checks_drift_where_it_is_set(table: Table, folder: Path) -> None:
    (first,) = run_of(table, folder, drift={"price": 0.1}).get_asset_check_evaluations()
    assert (first.check_name, first.passed) == ("drift", True)
    assert "no snapshot before" in str(first.metadata["not compared"].value)
    table.overwrite(rows(0, 400, factor=2))
    (second,) = run_of(table, folder, drift={"price": 0.1}).get_asset_check_evaluations()
    assert (second.passed, second.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert str(second.description).startswith("quantiles of price: 50.0%")
    assert second.partition == str(head(table))


def test_the_report_draws_histograms_and_lists_each_kind(table: Table) -> None:
    sketched(table)
    report = icepuffin.write_report(table, "report.html")
    page = report_page(report)
    part = page.partition('aria-label="Statistics"')[2].partition("</section>")[0]
    assert part.count("<svg") == 2
    assert "The middle 99 % of 400 values; error of a share: exact" in part
    assert "<title>0.25 to " in part
    for text in ("histogram", "720 bytes", "at 120, de 120, fr 120", "country, day"):
        assert text in part
    without = report_page(replace(report, statistics=None))
    assert 'aria-label="Statistics"' not in without


def test_definitions_of_a_project_take_each_key(folder: Path) -> None:
    catalog = {"name": "lake", "type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
    statistics = {**KINDS, "drift": {"price": 0.1, "*": 1}}
    component = icepuffin.IcepuffinTableComponent.from_attributes_dict(
        attributes={"catalog": catalog, "table": "db.t", "statistics": statistics}
    )
    (of_yaml,) = component.table_settings.tables.values()
    assert of_yaml.statistics.requested == RequestedStatistics(
        ndv=("id", "country", "price"),
        histogram=("price", "day"),
        size="*",
        frequent=("country",),
        joint=(("country", "day"),),
    )
    assert of_yaml.statistics.drift == statistics["drift"]
    definitions = icepuffin.build_defs(catalog, "db.t", statistics=statistics)
    checks = {key.name for key in definitions.resolve_asset_graph().asset_check_keys}
    assert checks == {"integrity", "drift"}
    bare = icepuffin.build_defs(catalog, "db.t", statistics=KINDS)
    assert {key.name for key in bare.resolve_asset_graph().asset_check_keys} == {"integrity"}
    with pytest.raises(icepuffin.errors.SettingsError, match=r"statistics\.joint: takes \"off\", or a list of lists"):
        icepuffin.build_defs(catalog, "db.t", statistics={"joint": ["country", "day"]})


def test_stats_counts_the_files_over_the_budget_of_kept_sketches(table: Table, said: Callable[..., str]) -> None:
    assert "the kept sketches leave out" not in said("stats", "db.t")
    table.append(rows(400, 420))
    requested = StatisticsSettings(**KINDS).requested
    run = RunContext(table, STORAGE, LocalRunner(1))
    report = count_theta_sketches(run, head(table), requested=requested, budget_bytes=12_000).publish()
    assert "the sketches of 1 file are over the budget" in report.note
    assert "the kept sketches leave out 1 file: over 256.0 MiB, to be read again where need be" in said("stats", "db.t")
    assert json.loads(said("stats", "db.t", "--json"))["files_over_budget"] == 1
