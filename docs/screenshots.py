"""Take the pictures of docs/ from a running Dagster UI: the asset graph, a partition of each derived asset.

    python docs/screenshots.py http://127.0.0.1:3000 docs/images

Needs `pip install playwright` and Debian's `chromium`; downloads no browser. Meant for the demo: `icepuffin demo --dir
demo-data`, then `icepuffin ui --start --dir demo-data`.
"""

import re
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
TABLE = "demo/demo/packages"
GROUP = "demo_demo_packages"
SNAPSHOT_ID = re.compile(r"^\d{15,19}$")


def main(url: str, folder: Path) -> None:
    """Write asset-graph.png, index-partition.png and theta-partition.png."""
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 1080}, device_scale_factor=1)
        page.set_default_timeout(60_000)
        graph(page, url, folder / "asset-graph.png")
        partition(page, url, f"{TABLE}/ann_index/embedding", folder / "index-partition.png")
        partition(page, url, f"{TABLE}/theta_sketches", folder / "theta-partition.png")
        browser.close()


def graph(page: Page, url: str, path: Path) -> None:
    shot(page, f"{url}/asset-groups?asset-selection=group%3A{GROUP}", path)


def partition(page: Page, url: str, asset: str, path: Path) -> None:
    """The newest partition of an asset, with its metadata."""
    page.goto(f"{url}/assets/{asset}?view=partitions")
    keys = page.get_by_text(SNAPSHOT_ID)
    keys.first.wait_for()
    newest = keys.last.inner_text()
    shot(page, f"{url}/assets/{asset}?view=partitions&partition={newest}", path)


def shot(page: Page, address: str, path: Path) -> None:
    page.goto(address)
    settle(page)
    page.screenshot(path=path)


def settle(page: Page) -> None:
    """The UI goes on polling, so the network is never idle: wait for the spinners, then for the layout."""
    page.wait_for_load_state("load")
    page.wait_for_timeout(6_000)


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), Path(sys.argv[2]))
