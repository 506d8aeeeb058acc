"""Lineage, and a backfill by clicks, in a real browser on the real UI.

Opt-in: `ICEPUFFIN_BROWSER=/usr/bin/chromium pytest -m browser`, after `pip install playwright`.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from icepuffin.orchestration.instance import open_instance
from tests.orchestration.deployment import Deployment, deployed
from tests.orchestration.lake import Lake, make_lake

CHROMIUM = os.environ.get("ICEPUFFIN_BROWSER", "")
TABLE = dg.AssetKey(["demo", "demo", "packages"])
DERIVED = ("embedding", "theta_sketches")
"""Names of the assets that are derived from it, as lineage shows them."""
THETA = dg.AssetKey(["demo", "demo", "packages", "theta_sketches"])

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not CHROMIUM, reason="set ICEPUFFIN_BROWSER to a Chromium to drive the UI"),
]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Three snapshots as partitions; the sensor is stopped, so nothing is materialised."""
    lake = make_lake(tmp_path, snapshots=3)
    with open_instance(tmp_path / "dagster_home") as instance:
        ids = [str(snapshot.snapshot_id) for snapshot in lake.table.metadata.snapshots]
        instance.add_dynamic_partitions("snapshots/demo/demo/packages", ids)
    return lake


@pytest.fixture
def deployment(lake: Lake) -> Iterator[Deployment]:
    with deployed(lake.settings_file, lake.directory) as running:
        yield running


@pytest.fixture
def page() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, headless=True, args=["--no-sandbox"])
        yield browser.new_page(viewport={"width": 1440, "height": 1080})
        browser.close()


def test_lineage_leads_from_the_table_to_what_is_derived_from_it(deployment: Deployment, page: Any) -> None:
    page.goto(f"http://127.0.0.1:{deployment.port}/assets/{'/'.join(TABLE.path)}?view=lineage")
    names = [page.locator("foreignObject").get_by_text(name, exact=True).first for name in (TABLE.path[-1], *DERIVED)]
    for name in names:
        name.wait_for()
    table, *derived = [name.bounding_box()["x"] for name in names]
    assert min(derived) > table
    assert page.locator("svg path[marker-end]").count() == len(DERIVED), "an arrow to each"
    names[1].click()
    page.wait_for_url(lambda url: "/".join((*TABLE.path, "ann_index", DERIVED[0])) in url)


def test_a_backfill_of_every_partition_by_clicks(lake: Lake, deployment: Deployment, page: Any) -> None:
    page.goto(f"http://127.0.0.1:{deployment.port}/assets/{'/'.join(THETA.path)}?view=partitions")
    page.get_by_role("button", name="Materialize").first.click()
    page.get_by_role("button", name="All", exact=True).click()
    page.get_by_role("button", name="Launch backfill").click()
    partitions = {str(snapshot.snapshot_id) for snapshot in lake.table.metadata.snapshots}

    def done() -> bool:
        with open_instance(deployment.home) as instance:
            return instance.get_materialized_partitions(THETA) == partitions

    deployment.wait_for("the backfill", done)
