"""Take the pictures of docs/ from a running Dagster UI, or all that a person sees, to be looked at.

    icepuffin report demo.packages --dir /srv/lake/demo -o report.html
    python docs/screenshots.py http://127.0.0.1:3000 docs/images --page report.html
    python docs/screenshots.py http://127.0.0.1:3000 shots --all [--page index.html ...]

The first two commands take the pictures that the documents show: the asset graph, a partition of each derived asset,
the first screen of a report. No path but those below `LAKE` may stand in them. With `--all` it takes every page, at the
width of a desk and of a phone, and the whole of pages in HTML that commands have written. Pictures have 256 colours.

Needs `pip install playwright pillow` and Debian's `chromium`; downloads no browser. Meant for the demo:
`sh deploy/bootstrap.sh demo /srv/lake/demo`, then `icepuffin ui --start --dir /srv/lake/demo`.
"""

import argparse
import io
import re
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
TABLE = "demo/demo/packages"
INDEX = f"{TABLE}/ann_index/embedding"
SKETCHES = f"{TABLE}/theta_sketches"
GRAPH = "asset-groups?asset-selection=group%3Ademo_demo_packages"
SNAPSHOT_ID = re.compile(r"^\d{15,19}$")
DESK, PHONE = 1440, 390
"""Widths of pages in pixels"""
HEIGHT = 1080
LAKE = "file:///srv/lake/"
"""Folder of the demo whose paths a picture of the documents may show"""
FOREIGN_PATH = re.compile(rf"file:/(?!{LAKE.removeprefix('file:/')})\S*")
ADDRESSES = {
    "table-overview": f"assets/{TABLE}?view=overview",
    "index-overview": f"assets/{INDEX}?view=overview",
    "index-partitions": f"assets/{INDEX}?view=partitions",
    "index-checks": f"assets/{INDEX}?view=checks",
    "sketches-overview": f"assets/{SKETCHES}?view=overview",
    "runs": "runs",
    "jobs": "jobs",
    "automation": "automation",
}
"""Pages that `--all` takes beside those of the documents, by the names of their pictures"""


def main() -> None:
    """Write asset-graph.png, index-partition.png and theta-partition.png; with `--all` a picture of every page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="every page, at both widths")
    parser.add_argument("--page", type=Path, action="append", default=[], help="a page in HTML that a command wrote")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=["--no-sandbox"])
        for width in (DESK, PHONE) if options.all else (DESK,):
            page = browser.new_page(viewport={"width": width, "height": HEIGHT}, device_scale_factor=1)
            page.set_default_timeout(60_000)
            take(page, options.url.rstrip("/"), options.folder, "" if width == DESK else "-phone", options)
            page.close()
        browser.close()


def take(page: Page, url: str, folder: Path, suffix: str, options: argparse.Namespace) -> None:
    """The pictures of one width."""
    texts = [
        shot(page, f"{url}/{GRAPH}", folder / f"asset-graph{suffix}.png"),
        partition(page, f"{url}/assets/{INDEX}", folder / f"index-partition{suffix}.png"),
        partition(page, f"{url}/assets/{SKETCHES}", folder / f"theta-partition{suffix}.png"),
    ]
    for name, address in ADDRESSES.items() if options.all else ():
        shot(page, f"{url}/{address}", folder / f"{name}{suffix}.png")
    if options.all:
        shot(page, f"{url}/{ADDRESSES['index-overview']}", folder / f"index-plots{suffix}.png", button="Plots")
    texts += [
        shot(page, file.resolve().as_uri(), folder / f"{file.stem}{suffix}.png", whole=options.all)
        for file in options.page
    ]
    foreign = FOREIGN_PATH.search("\n".join(texts))
    if foreign and not options.all:
        raise SystemExit(f"{foreign[0]} stands in a picture of the documents: make the demo below {LAKE}")


def partition(page: Page, asset: str, path: Path) -> str:
    """The newest partition of an asset, with its metadata; answers with its text."""
    page.goto(f"{asset}?view=partitions")
    keys = page.get_by_text(SNAPSHOT_ID)
    keys.first.wait_for(state="attached")
    return shot(page, f"{asset}?view=partitions&partition={keys.last.inner_text()}", path)


def shot(page: Page, address: str, path: Path, *, whole: bool = False, button: str = "") -> str:
    """Go there, and take a picture of what the window shows, or of the whole page; after a click, where a button is
    named. On a phone's width the navigation is hidden first, as a person would. Answers with the text of the page.

    The UI goes on polling, so the network is never idle: wait for the spinners, then for the layout.
    """
    page.goto(address)
    page.wait_for_load_state("load")
    page.wait_for_timeout(1_000 if address.startswith("file:") else 6_000)
    navigation = page.get_by_text("Hide navigation", exact=True)
    if (page.viewport_size or {}).get("width") == PHONE and navigation.count():
        navigation.first.click()
        page.wait_for_timeout(1_000)
    if button:
        page.get_by_text(button, exact=True).first.click()
        page.wait_for_timeout(3_000)
    with Image.open(io.BytesIO(page.screenshot(full_page=whole))) as colors:
        colors.convert("RGB").quantize(256).save(path, optimize=True)
    return page.locator("body").inner_text()


if __name__ == "__main__":
    main()
