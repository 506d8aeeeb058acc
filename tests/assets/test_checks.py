"""Checks over real versions: lag counts snapshots, integrity sees one flipped bit."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.checks import freshness_check, integrity_check
from assets.spec import TableSpec
from ops.catalog.vended import storage_of
from ops.catalog.versions import versions
from ops.graphs.versions import index_snapshot
from ops.resources import Catalogs, Engine
from orchestration.discovery import table_spec
from orchestration.engines import catalogs_of
from orchestration.settings import load
from tests.orchestration.lake import Lake, make_lake

ENGINE = Engine(spark_conf={}, threads=2, driver_only_rows=1)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(tmp_path, snapshots=2)


@pytest.fixture
def catalogs(lake: Lake) -> Catalogs:
    return catalogs_of(load(lake.settings_file))


@pytest.fixture
def spec(lake: Lake, catalogs: Catalogs) -> TableSpec:
    return table_spec(load(lake.settings_file).tables["packages"], catalogs)


def indexed(lake: Lake, spec: TableSpec) -> Path:
    """Index the head; -> the file of the version."""
    index_snapshot(lake.table, spec.indexes[0], lake.head(), engine=ENGINE, storage=storage_of(lake.table))
    return Path(versions(lake.table, "ann", "embedding")[-1].puffin_path.removeprefix("file://"))


def result(check: dg.AssetChecksDefinition, catalogs: Catalogs) -> dg.AssetCheckResult:
    found: Any = check(catalogs=catalogs)
    assert isinstance(found, dg.AssetCheckResult)
    return found


def number(found: dg.AssetCheckResult, key: str) -> Any:
    return found.metadata[key].value


def test_lag_is_counted_in_snapshots(lake: Lake, catalogs: Catalogs, spec: TableSpec) -> None:
    check = freshness_check(spec, spec.indexes[0])
    before = result(check, catalogs)
    assert (before.passed, number(before, "lag (snapshots)"), number(before, "coverage")) == (False, 2, 0.0)
    indexed(lake, spec)
    at_head = result(check, catalogs)
    assert (at_head.passed, number(at_head, "lag (snapshots)"), number(at_head, "coverage")) == (True, 0, 0.5)
    lake.append()
    assert result(check, catalogs).passed, "one snapshot behind is allowed"
    lake.append()
    late = result(check, catalogs)
    assert (late.passed, late.severity, number(late, "lag (snapshots)")) == (False, dg.AssetCheckSeverity.WARN, 2)


def test_a_whole_file_passes(lake: Lake, catalogs: Catalogs, spec: TableSpec) -> None:
    path = indexed(lake, spec)
    found = result(integrity_check(spec, spec.indexes[0]), catalogs)
    assert found.passed, number(found, "faults")
    assert 0 < number(found, "bytes read") < path.stat().st_size


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_one_flipped_bit_is_found(lake: Lake, catalogs: Catalogs, spec: TableSpec, share: float) -> None:
    path = indexed(lake, spec)
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 1
    path.write_bytes(data)
    found = result(integrity_check(spec, spec.indexes[0]), catalogs)
    assert not found.passed
    assert "icepuffin refresh" in number(found, "what to do")


def test_a_broken_file_is_deleted_and_made_again(lake: Lake, catalogs: Catalogs, spec: TableSpec) -> None:
    """As docs/operations.md tells who is on call."""
    path = indexed(lake, spec)
    published = path.read_bytes()
    path.unlink()
    again = indexed(lake, spec)
    assert again.read_bytes() == published
    assert result(integrity_check(spec, spec.indexes[0]), catalogs).passed


def test_a_file_that_is_gone_is_a_fault_and_no_crash(lake: Lake, catalogs: Catalogs, spec: TableSpec) -> None:
    path = indexed(lake, spec)
    path.unlink()
    found = result(integrity_check(spec, spec.indexes[0]), catalogs)
    assert not found.passed
    assert path.name in number(found, "faults")


def test_an_index_that_was_never_built_says_so(catalogs: Catalogs, spec: TableSpec) -> None:
    found = result(integrity_check(spec, spec.indexes[0]), catalogs)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "no version" in number(found, "why")
