"""How `icepuffin index show` draws an index on a terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from icepuffin.ops.search.overview import Overview

_BAR = 30
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def draw(console: "Console", seen: "Overview", milliseconds: Sequence[float] | None) -> None:
    """Shards, coverage, and the curve of recall over cost."""
    for part in (_shards(seen), _coverage(seen), _curve(seen, milliseconds), _routing(seen)):
        if part is not None:
            console.print(part)


def bar(share: float, width: int = _BAR) -> str:
    """A bar of block characters, to an eighth of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _shards(seen: "Overview") -> "Table":
    table = _table(f"shards of the version of snapshot {seen.base_snapshot_id}; ░ tombstones")
    for name in ("shard", "nodes", "live", "tombstones", "recall@10", "KiB", ""):
        table.add_column(name, justify="right" if name else "left")
    largest = max((shard.nodes for shard in seen.shards), default=1) or 1
    for shard in seen.shards:
        dead = shard.tombstones / shard.nodes if shard.nodes else 0.0
        late = "" if shard.led_to else "  later rows, always probed"
        marks = "░" * round(_BAR * shard.tombstones / largest)
        table.add_row(
            str(shard.shard), f"{shard.nodes:,}", f"{shard.live:,}", f"{dead:.1%}", f"{shard.recall:.4f}",
            f"{shard.bytes / 1024:,.0f}", bar(shard.live / largest) + marks + late,
        )  # fmt: skip
    return table


def _coverage(seen: "Overview") -> "Text":
    from rich.text import Text

    behind = "" if seen.base_snapshot_id == seen.head_snapshot_id else f"; the head is snapshot {seen.head_snapshot_id}"
    filled = bar(seen.coverage)
    return Text(
        f"covers {seen.coverage:6.1%} {filled}{'░' * (_BAR - len(filled))} "
        f"{seen.rows_covered:,} of {seen.rows:,} rows in files of the head{behind}\n"
    )


def _curve(seen: "Overview", milliseconds: Sequence[float] | None) -> "Table | None":
    if not seen.curve:
        return None
    table = _table("recall@10 by the width of the search, measured when shards were built")
    timed = ("ms here",) if milliseconds else ()
    for name in ("L", "oversample", "distances", *timed, "recall@10", ""):
        table.add_column(name, justify="right" if name else "left")
    floor = min(0.9, *(point.recall for point in seen.curve))
    for number, point in enumerate(seen.curve):
        shown = (f"{milliseconds[number]:.2f}",) if milliseconds else ()
        share = (point.recall - floor) / (1 - floor) if floor < 1 else 1.0
        table.add_row(
            str(point.search_list), str(point.oversample), f"{point.distances:,.0f}", *shown, f"{point.recall:.4f}",
            bar(share),
        )  # fmt: skip
    table.caption = f"bars from {floor:.2f} to 1"
    return table


def _routing(seen: "Overview") -> "Table | None":
    if not seen.routing:
        return None
    table = _table("share of the nearest rows in the shards that are probed")
    for name in ("farther by", "shards a query", "share", ""):
        table.add_column(name, justify="right" if name else "left")
    for point in seen.routing:
        table.add_row(f"{point.slack:.0%}", f"{point.shards:.1f}", f"{point.recall:.4f}", bar(point.recall))
    return table


def _table(title: str) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, caption_justify="left")
