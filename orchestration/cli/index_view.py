"""What `icepuffin index show` draws on a terminal: the shards of a version, its coverage, recall over cost, routing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from icepuffin.ops.messages import plural
from icepuffin.ops.model import MIB
from icepuffin.ops.presentation import Grid
from icepuffin.orchestration.cli.output import print_grid

if TYPE_CHECKING:
    from rich.console import Console

    from icepuffin.ops.recall.curves import Width
    from icepuffin.ops.recall.measured_points import MeasuredPoint
    from icepuffin.ops.search.overview import Overview

_BAR_CELLS = 30


@dataclass(frozen=True, slots=True)
class Marks:
    """The letters that bars are made of."""

    eighths: str
    """A cell of a bar by its eighths, from an empty one to a whole one"""
    rest: str
    """A cell of tombstones, or of rows that are not covered"""

    @classmethod
    def from_console(cls, console: "Console") -> "Marks":
        """Blocks, or letters of ASCII where the terminal's encoding has no blocks."""
        return cls("    #####", "-") if console.options.ascii_only else cls(" ▏▎▍▌▋▊▉█", "░")

    def bar(self, share: float) -> str:
        """A bar, to an eighth of a cell. `share` is 0 to 1."""
        eighths = round(max(0.0, min(1.0, share)) * _BAR_CELLS * 8)
        return self.eighths[8] * (eighths // 8) + self.eighths[eighths % 8].strip()


def draw(console: "Console", overview: "Overview") -> None:
    """Draw shards, and the curves of recall over cost."""
    marks = Marks.from_console(console)
    for part in (
        _shards(overview, marks),
        _curve(overview.curve, marks),
        _curve(overview.wide_curve, marks),
        _routing(overview, marks),
    ):
        if part is not None:
            print_grid(console, part)


def summary(console: "Console", overview: "Overview") -> dict[str, str]:
    """What a version has and takes, by a short name, in words."""
    from icepuffin.ops.recall.shard_recall import mean_recall

    recall = mean_recall((shard.recall, shard.live) for shard in overview.shards)
    fields = {
        "recall@10": "" if recall is None else f"{recall:.4f}, {overview.tombstone_ratio:.1%} of the nodes tombstones",
        "covers": _coverage(overview, Marks.from_console(console)),
        "takes": _storage(overview),
        "stores": _included(overview),
    }
    return {name: text for name, text in fields.items() if text}


def points_grid(points: "Sequence[MeasuredPoint]", k: int) -> Grid:
    """Recall and cost that queries of a user's measured, by distances."""
    rows = [
        (point.search_list, point.oversample, f"{point.shards:.1f}", f"{point.recall:.4f}",
         "{:.4f} to {:.4f}".format(*point.interval), f"{point.distances:,.0f}")
        for point in points
    ]  # fmt: skip
    title = f"recall@{k} and distances per query; no other parameters gave more for less"
    return Grid(title, rows, ("L", "oversample", "shards", f"recall@{k}", "95 % interval", "distances"))


def _shards(overview: "Overview", marks: Marks) -> Grid:
    title = f"shards of the version of snapshot {overview.base_snapshot_id}; {marks.rest} tombstones"
    if overview.without_graphs:
        return Grid(f"version of snapshot {overview.base_snapshot_id}: {overview.without_graphs}", [])
    outdated = "; * before it lost rows" if any(shard.changed for shard in overview.shards) else ""
    largest = max((shard.nodes for shard in overview.shards), default=1) or 1
    rows = []
    for shard in overview.shards:
        tombstones = marks.rest * round(_BAR_CELLS * shard.tombstones / largest)
        later = "" if shard.routed else "  later rows, always probed"
        rows.append((
            shard.shard, f"{shard.nodes:,}", f"{shard.live:,}",
            f"{shard.tombstones / shard.nodes if shard.nodes else 0.0:.1%}",
            f"{shard.recall:.4f}" + "*" * bool(shard.changed), f"{shard.bytes / 1024:,.0f}",
            marks.bar(shard.live / largest) + tombstones + later,
        ))  # fmt: skip
    return Grid(title + outdated, rows, ("shard", "nodes", "live", "tombstones", "recall@10", "KiB", ""))


def _storage(overview: "Overview") -> str:
    alone = f"{overview.bytes_alone / MIB:,.1f} MiB by itself"
    if addresses := sum(shard.addresses_bytes for shard in overview.shards):
        alone += f" ({addresses / MIB:,.1f} for new addresses)"
    if not overview.bytes_shared:
        return alone
    packs = plural(sum(pack.versions > 1 for pack in overview.packs), "pack")
    return f"{alone}, and {overview.bytes_shared / MIB:,.1f} MiB in {packs} that other versions use, too"


def _included(overview: "Overview") -> str:
    columns = ", ".join(
        f"{own.column} {own.bytes / MIB:,.1f} MiB"
        + (f" ({own.files_left_out} of {own.files} files left out)" if own.files_left_out else "")
        for own in overview.included
    )
    return f"{columns}: rows of answers have these without a read of data files" if columns else ""


def _coverage(overview: "Overview", marks: Marks) -> str:
    head = overview.head_snapshot_id
    behind = "" if overview.base_snapshot_id == head else f"; the head is snapshot {head}"
    filled = marks.bar(overview.coverage)
    return (
        f"{overview.coverage:.1%} {filled}{marks.rest * (_BAR_CELLS - len(filled))} "
        f"{overview.rows_covered:,} of {overview.rows:,} rows in files of the head, deleted ones included{behind}"
    )


def _curve(points: "Sequence[Width]", marks: Marks) -> Grid | None:
    if not points:
        return None
    recall = f"recall@{points[0].k}"
    floor = min(0.9, *(point.recall for point in points))
    rows = []
    for point in points:
        bar = marks.bar((point.recall - floor) / (1 - floor) if floor < 1 else 1.0)
        rows.append((point.search_list, point.oversample, f"{point.distances:,.0f}", f"{point.recall:.4f}", bar))
    title = f"{recall} by the width of the search, measured when shards were built; bars from {floor:.2f} to 1"
    return Grid(title, rows, ("L", "oversample", "distances", recall, ""))


def _routing(overview: "Overview", marks: Marks) -> Grid | None:
    rows = [
        (f"{point.probe_slack:.0%}", f"{point.shards:.1f}", f"{point.recall:.4f}", marks.bar(point.recall))
        for point in overview.routing
    ]
    title = "share of the nearest rows in the shards that are probed"
    return Grid(title, rows, ("farther by", "shards per query", "share", "")) if rows else None
