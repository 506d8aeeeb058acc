"""What Dagster shows of a table, whole: descriptions, metadata of runs, results of checks, pictures."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import dagster as dg
import pytest
from dagster._core.execution.context.invocation import DirectAssetCheckExecutionContext
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from icepuffin.assets.ann_index import _measured_recall, _recall_in_words, _summary, ann_index_asset, layout_result
from icepuffin.assets.checks import freshness_check, integrity_result, live_recall_check, sketches_check
from icepuffin.assets.glance import time_line_metadata, value_bars, version_glance
from icepuffin.assets.newest_snapshots import TimeLinePoint
from icepuffin.assets.spec import TableSpec
from icepuffin.assets.table_settings import StatisticsSettings, TableSettings
from icepuffin.assets.theta_sketches import theta_sketches_asset
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.planning.index_report import IndexReport, VersionRecall
from icepuffin.ops.index.verify.self_search_proof import SelfSearch
from icepuffin.ops.index.versions.layout_fit import LayoutFit
from icepuffin.ops.model import Action, SnapshotId
from icepuffin.ops.recall.recall_reports import RecallReporter, RecallReports
from icepuffin.ops.resources import Catalogs, Engine
from icepuffin.orchestration.factory import table_definitions
from icepuffin.orchestration.settings import GarbageSettings
from tests.assets.report.test_recorded_pages import FLAT, SEEN, SNAPSHOTS
from tests.conformance.golden_files import INDEX, golden_ids, golden_noon
from tests.conftest import STORAGE, make_rows
from tests.recorded import by_element, by_part, new_ids, recorded

ENGINE = Engine(spark_conf={}, threads=1, driver_only_rows=10**6)
SETTINGS = TableSettings(catalog="golden", name="db.t", max_freshness_lag=0, retries=0)
SPEC = TableSpec(SETTINGS, (INDEX,))


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    with golden_noon(tmp_path) as copied:
        yield copied


@pytest.fixture
def catalogs(tmp_path: Path, table: Table) -> Catalogs:
    return Catalogs({"golden": {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}})


def record(name: str, folder: Path, states: Mapping[str, object]) -> None:
    text = by_part(states)
    recorded(name, text, {str(folder): "FOLDER", **new_ids(text, golden_ids())})


def values(metadata: Mapping[str, Any]) -> dict[str, object]:
    """Each value with its kind; a drawing as its elements."""
    shown = {}
    for name, value in metadata.items():
        text = value.value
        if isinstance(text, str) and "data:image" in text:
            text = by_element(unquote(text))
        shown[f"{name} ({type(value).__name__.removesuffix('MetadataValue')})"] = (
            text.splitlines() if isinstance(text, str) and "\n" in text else text
        )
    return shown


def checked(result: Any) -> dict[str, object]:
    """A result of a check."""
    return {
        "passed": result.passed,
        "severity": result.severity.value,
        "description": result.description,
        "metadata": values(result.metadata),
    }


def told(definitions: dg.Definitions) -> Iterator[tuple[str, object]]:
    """Each part of some definitions with what the UI shows of it."""
    for asset in definitions.assets or ():
        for spec in asset.specs if isinstance(asset, dg.AssetsDefinition) else [asset]:
            assert isinstance(spec, dg.AssetSpec)
            about = {"group": spec.group_name, "kinds": sorted(spec.kinds), "description": spec.description}
            yield f"asset {spec.key.to_user_string()}", about | {"metadata": dict(spec.metadata)}
    for check in definitions.asset_checks or ():
        yield from ((f"check {one.name} of {one.asset_key}", one.description) for one in check.check_specs)
    for asset in definitions.assets or ():
        for one in asset.check_specs if isinstance(asset, dg.AssetsDefinition) else ():
            yield f"check {one.name} of {one.asset_key}", one.description
    for part in (*(definitions.jobs or ()), *(definitions.sensors or ()), *(definitions.schedules or ())):
        yield f"{type(part).__name__} {part.name}", str(part.description)


def test_descriptions() -> None:
    reports = SETTINGS.model_copy(update={"recall_reports": "file:///reports", "max_freshness_minutes": 90.0})
    bare = {"name": "db.it's bare", "statistics": StatisticsSettings(ndv="off"), "watched_refs": ("prod", "main")}
    flat = IndexDefinition(name="flat", column="v", method="centroid")
    states = {
        "with all": TableSpec(reports, (INDEX, flat), note="Beware."),
        "without anything": TableSpec(SETTINGS.model_copy(update=bare)),
        "with a running sensor": TableSpec(SETTINGS.model_copy(update={"sensor_running": True})),
    }
    told_of = {name: dict(told(table_definitions(it, GarbageSettings(), ENGINE))) for name, it in states.items()}
    recorded("dagster_descriptions.txt", by_part(told_of))


def run_of(asset: dg.AssetsDefinition, catalogs: Catalogs, snapshot: int | None) -> dict[str, object]:
    """What a run of an asset shows of one snapshot."""
    with dg.DagsterInstance.ephemeral() as instance:
        assert asset.partitions_def is not None
        instance.add_dynamic_partitions(str(asset.partitions_def.name), [str(snapshot)])  # type: ignore[attr-defined]
        resources = {"icepuffin_catalogs": catalogs, "icepuffin_engine": ENGINE}
        result = dg.materialize([asset], partition_key=str(snapshot), resources=resources, instance=instance)
    (event,) = result.get_asset_materialization_events()
    found = {one.check_name: checked(one) for one in result.get_asset_check_evaluations()}
    return {"metadata": values(event.materialization.metadata), "checks": found}


def test_runs(table: Table, catalogs: Catalogs, tmp_path: Path) -> None:
    sketches, index = theta_sketches_asset(SPEC), ann_index_asset(SPEC, INDEX)
    flat = IndexDefinition(name="flat", column="embedding", method="centroid")
    states: dict[str, object] = {}

    def both(state: str) -> None:
        head = table.refresh().metadata.current_snapshot_id
        states[f"index, {state}"] = run_of(index, catalogs, head)
        states[f"sketches, {state}"] = run_of(sketches, catalogs, head)

    both("that were there")
    create_index(table, flat)
    states["index without graphs"] = run_of(
        ann_index_asset(TableSpec(SETTINGS, (flat,)), flat), catalogs, table.metadata.current_snapshot_id
    )
    table.append(make_rows(150, 160))
    table.delete("id < 20")
    both("of changes")
    table.delete("id >= 0")
    both("of no rows")
    record("dagster_runs.txt", tmp_path, states)


@pytest.mark.parametrize("partitions", [True, False])
def test_partition_statistics_are_a_choice_of_the_settings(table: Table, catalogs: Catalogs, partitions: bool) -> None:
    with table.update_spec() as update:
        update.add_field("section", IdentityTransform())
    table.append(make_rows(150, 160))
    spec = TableSpec(SETTINGS.model_copy(update={"statistics": StatisticsSettings(partitions=partitions)}))
    run_of(theta_sketches_asset(spec), catalogs, table.refresh().metadata.current_snapshot_id)
    assert len(table.refresh().metadata.partition_statistics) == partitions


def result_of(check: dg.AssetChecksDefinition, catalogs: Catalogs) -> dict[str, object]:
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_op_context(resources={"icepuffin_catalogs": catalogs}, instance=instance)
        found: Any = check(DirectAssetCheckExecutionContext(context))
    return checked(found)


def test_checks(table: Table, catalogs: Catalogs, tmp_path: Path) -> None:
    lost = TableSpec(SETTINGS.model_copy(update={"watched_refs": ("prod",)}), (INDEX,))
    folder = f"file://{tmp_path}/recall"
    live = TableSpec(SETTINGS.model_copy(update={"recall_reports": folder}), (INDEX,))
    new = replace(INDEX, name="new")
    running = TableSpec(SETTINGS.model_copy(update={"sensor_running": True}), (INDEX,))
    states: dict[str, object] = {
        "fresh": result_of(freshness_check(SPEC, INDEX), catalogs),
        "late, and the sensor is off": result_of(freshness_check(SPEC, new), catalogs),
        "late, and the sensor is on": result_of(freshness_check(running, new), catalogs),
        "no ref": result_of(freshness_check(lost, INDEX), catalogs),
        "no ref for sketches": result_of(sketches_check(lost), catalogs),
        "whole sketches": result_of(sketches_check(SPEC), catalogs),
        "whole": checked(integrity_result(SPEC, INDEX, catalogs)),
        "never built": checked(integrity_result(SPEC, new, catalogs)),
        "no live query": result_of(live_recall_check(live, INDEX), catalogs),
    }
    version = index_versions(table, "e")[-1]
    reporter = RecallReporter(RecallReports(folder, STORAGE, table.metadata.table_uuid), "e")
    for queries, matched in ((0, 0.0), (20, 9.0), (2_000, 900.0)):
        reporter.report(version.index_snapshot_id, queries=queries, recall_sum=matched, left_out=3)
        states[f"{queries} live queries"] = result_of(live_recall_check(live, INDEX), catalogs)
    broken = live.settings.model_copy(update={"recall_reports": "ftp://host/recall"})
    states["reports out of reach"] = result_of(live_recall_check(TableSpec(broken, (INDEX,)), INDEX), catalogs)
    (sketches,) = (it for it in table.metadata.statistics if it.snapshot_id == version.base_snapshot_id)
    for name, location in (("index", version.puffin_path), ("sketches", sketches.statistics_path)):
        path = Path(location.replace("file:///golden", str(tmp_path)))
        data = bytearray(path.read_bytes())
        data[len(data) // 4] ^= 1
        path.write_bytes(data)
        found = integrity_result(SPEC, INDEX, catalogs) if name == "index" else None
        states[f"damaged {name}"] = checked(found) if found else result_of(sketches_check(SPEC), catalogs)
    made = table.catalog.create_table("db.new", table.schema())
    made.append(make_rows(0, 9))
    states["no sketches"] = result_of(
        sketches_check(TableSpec(SETTINGS.model_copy(update={"name": "db.new"}))), catalogs
    )
    record("dagster_checks.txt", tmp_path, states)


def fits() -> Iterable[LayoutFit | None]:
    far, uneven = {"distance": 9.0, "built_distance": 1.0}, {"balance": 9.0}
    yield from (None, LayoutFit(), LayoutFit(**far), LayoutFit(**uneven), LayoutFit(**far, **uneven))
    yield LayoutFit(balance=9.0, built_balance=2.0, kept_balance=8.0)


def test_words_of_recall_and_layout() -> None:
    proof = SelfSearch(100, 1, 99, 2, 90, 0.98, 0.95, 0.99, 30, 0.97)
    basis = VersionRecall(queries=64, wide=0.93, wide_queries=30, rows_here=7, rows_unchanged=2, rows_outdated=1)
    report = IndexReport(
        table="t", index="e", snapshot_id=SnapshotId(1), action=Action.BUILT, reason="it <is> new", build_id="",
        files=1,
        seconds=1.0, stage_seconds={"read": 0.5}, recall=0.95, recall_basis=basis, index_snapshot_id=SnapshotId(2),
        self_search=proof, puffin_path="p", shards=3, rows=9, tombstones=1,
    )  # fmt: skip
    reports = {
        "measured": report,
        "nearly all": replace(report, recall=0.99999, recall_basis=replace(basis, wide=None), self_search=None),
        "without graphs": replace(report, recall=None, recall_basis=None, shards=0),
        "empty": replace(report, action=Action.EMPTY, index_snapshot_id=None),
    }
    states: dict[str, object] = {
        name: {"words": _recall_in_words(INDEX, it), "metadata": _measured_recall(it), "all": it.fields()}
        for name, it in reports.items()
    }
    states |= {f"summary after {it:+}": _summary(INDEX, report, it) for it in (0.0, 0.00004, -0.0123, 0.5)}
    states |= {str(fit): checked(layout_result(SimpleNamespace(fit=fit))) for fit in fits()}  # type: ignore[arg-type]
    recorded("dagster_words.txt", by_part(states))


def test_pictures() -> None:
    assert FLAT.overview is not None
    one = replace(SEEN, shards=SEEN.shards[:1], curve=SEEN.curve[:1])
    many = replace(SEEN, shards=SEEN.shards * 9)
    figures = zip(SNAPSHOTS, (0.95, None, 0.5, 1.0, 0.9), (None, 3.0, 1.0, 200.0, 9.0), strict=True)
    points = [
        TimeLinePoint(it, "built" * (it.operation != "replace"), recall, seconds, is_here=it is SNAPSHOTS[0])
        for it, recall, seconds in figures
    ]
    pictures = {
        "whole": version_glance(SEEN),
        "one shard": version_glance(one),
        "many shards": version_glance(many),
        "without graphs": version_glance(replace(FLAT.overview, balls=5, files=1)),
        "not measured": version_glance(replace(SEEN, curve=())),
        "values": value_bars("distinct values", {"id": 60_000, "<a> & its name": 7, "none": 0}),
        "one value": value_bars("one", {"x": 1}),
        "many values": value_bars("many", {f"column {number}": 10.0 + number for number in range(62)})[:400],
    }
    lines = {
        "time line": time_line_metadata(points),
        "of all": time_line_metadata([replace(it, is_here=False) for it in points]),
        "long": time_line_metadata(points * 9),
        "none": time_line_metadata([]),
    }
    texts = [f"{name}\n{by_element(unquote(str(picture)))}" for name, picture in pictures.items()]
    texts += [f"{name}\n{metadata['time line'].value if metadata else ''}" for name, metadata in lines.items()]
    recorded("dagster_pictures.txt", "\n\n".join(texts))
