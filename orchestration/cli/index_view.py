"""What `icepuffin index show` draws on a terminal: the shards of a version, its coverage, recall over cost."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from icepuffin.ops.messages import plural, readable_bytes
from icepuffin.ops.presentation import Grid
from icepuffin.orchestration.cli.output import print_grid

if TYPE_CHECKING:
    from rich.console import Console

    from icepuffin.ops.recall.curves import Width
    from icepuffin.ops.search.overview import Overview

_BAR_CELLS = 30


def draw(console: "Console", overview: "Overview") -> None:
    """Draw shards, and the curves of recall over cost."""
    mark, rest = _marks(console)
    print_grid(console, _shards(overview, mark, rest))
    for grid in (_curve(overview.curve, mark), _curve(overview.wide_curve, mark)):
        if grid is not None:
            print_grid(console, grid)


def summary(console: "Console", overview: "Overview") -> dict[str, str]:
    """What a version has and takes, by a short name, in words."""
    fields = {
        "tombstones": f"{overview.tombstone_ratio:.1%} of the nodes" if overview.shards else "",
        "covers": _coverage(overview, *_marks(console)),
        "takes": _storage(overview),
        "stores": _included(overview),
    }
    return {name: text for name, text in fields.items() if text}


def _marks(console: "Console") -> tuple[str, str]:
    """Cells of bars: (a full one, one of tombstones, or of rows that are not covered). In ASCII where the terminal's
    encoding has no blocks.
    """
    return ("#", "-") if console.options.ascii_only else ("█", "░")


def _bar(mark: str, share: float) -> str:
    return mark * round(share * _BAR_CELLS)


def _shards(overview: "Overview", mark: str, rest: str) -> Grid:
    title = f"shards of the version of snapshot {overview.base_snapshot_id}; {rest} tombstones"
    if overview.without_graphs:
        return Grid(f"version of snapshot {overview.base_snapshot_id}: {overview.without_graphs}", [])
    outdated = "; * before it lost rows" if any(shard.changed for shard in overview.shards) else ""
    largest = max((shard.nodes for shard in overview.shards), default=1) or 1
    rows = []
    for shard in overview.shards:
        later = "" if shard.routed else "  later rows, always probed"
        rows.append((
            shard.shard, f"{shard.nodes:,}", f"{shard.live:,}",
            f"{shard.tombstones / shard.nodes if shard.nodes else 0.0:.1%}",
            f"{shard.recall:.4f}" + "*" * bool(shard.changed), f"{shard.bytes / 1024:,.0f}",
            _bar(mark, shard.live / largest) + _bar(rest, shard.tombstones / largest) + later,
        ))  # fmt: skip
    return Grid(title + outdated, rows, ("shard", "nodes", "live", "tombstones", "recall@10", "KiB", ""))


def _storage(overview: "Overview") -> str:
    alone = f"{readable_bytes(overview.bytes_alone)} by itself"
    if addresses := sum(shard.addresses_bytes for shard in overview.shards):
        alone += f" ({readable_bytes(addresses)} for new addresses)"
    if not overview.bytes_shared:
        return alone
    packs = plural(sum(pack.versions > 1 for pack in overview.packs), "pack")
    return f"{alone}, and {readable_bytes(overview.bytes_shared)} in {packs} that other versions use, too"


def _included(overview: "Overview") -> str:
    columns = ", ".join(
        f"{own.column} {readable_bytes(own.bytes)}"
        + (f" ({own.files_left_out} of {own.files} files left out)" if own.files_left_out else "")
        for own in overview.included
    )
    return f"{columns}: rows of answers have these without a read of data files" if columns else ""


def _coverage(overview: "Overview", mark: str, rest: str) -> str:
    head = overview.head_snapshot_id
    behind = "" if overview.base_snapshot_id == head else f"; the head is snapshot {head}"
    return (
        f"{overview.coverage:.1%} {_bar(mark, overview.coverage).ljust(_BAR_CELLS, rest)} "
        f"{overview.rows_covered:,} of {overview.rows:,} rows in files of the head, deleted ones included{behind}"
    )


def _curve(points: "Sequence[Width]", mark: str) -> Grid | None:
    if not points:
        return None
    recall = f"recall@{points[0].k}"
    floor = min(0.9, *(point.recall for point in points))
    rows = []
    for point in points:
        bar = _bar(mark, (point.recall - floor) / (1 - floor))
        rows.append((point.search_list, point.oversample, f"{point.distances:,.0f}", f"{point.recall:.4f}", bar))
    title = f"{recall} by the width of the search, measured when shards were built; bars from {floor:.2f} to 1"
    return Grid(title, rows, ("L", "oversample", "distances", recall, ""))
