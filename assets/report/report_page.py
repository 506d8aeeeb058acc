"""The page of a report: HTML with its charts, its style and its script in it, and no link to anything else."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from icepuffin.assets.newest_snapshots import SnapshotEntry
from icepuffin.assets.report.index_description import IndexDescription
from icepuffin.assets.report.markup import Child, Markup, element, joined
from icepuffin.assets.report.page_style import GENERATOR, SCRIPT, style_sheet
from icepuffin.assets.report.svg_charts import Axes, Bar, Point, bar_chart, line_chart, recall_chart, shards_chart
from icepuffin.assets.report.table_report import TableReport
from icepuffin.assets.report.value_counts import ValueCounts
from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.binding.measurements import Measurement
from icepuffin.ops.messages import plural, readable_bytes, readable_count, readable_seconds, readable_share
from icepuffin.ops.model import CREATED_BY, Action
from icepuffin.ops.recall.curves import Width
from icepuffin.ops.recall.measured_points import MeasuredPoint
from icepuffin.ops.search.overview import Overview
from icepuffin.ops.tasks.sketches.histogram_values import text_of
from icepuffin.ops.theta.ndv import ndv_bounds
from icepuffin.ops.theta.snapshot_statistics import SnapshotStatistics

MAX_SHARDS = 500
"""Shards in a table, at most: the first ones"""
MAX_COLUMNS = 24
"""Columns whose distinct values are drawn, at most; the table below has all"""
_OPERATIONS = {"append": "a", "overwrite": "b", "replace": "c", "delete": "d"}
"""Class of a bar by the operation of its snapshot"""
_COVERAGE = {"made": ("a", 20), "missing": ("d", 10), "nothing to make": ("e", 3)}
"""Class and height of a cell"""
_RANGES = 60
"""Bars of a histogram, at most"""
_TOP_VALUES = 6
"""Values that are named below their bars"""
_PART_STYLES = "abcdeab"
_STRIP = 1000
"""Units that a strip is wide, which is stretched over its figure"""


@dataclass(frozen=True, slots=True)
class PageCell:
    """A value of a table, or of a tile."""

    text: str
    key: float | str | None = None
    """Value by which rows are sorted, where it is not the text; numbers stand at the right"""
    title: str | None = None
    """Exact value, where the text is rounded"""
    is_list: bool = False
    """Whether the text is words between which a line may end"""


_UNKNOWN = PageCell("-", "")


def report_page(report: TableReport) -> str:
    """The whole page."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        GENERATOR,
        element("meta", name="viewport", content="width=device-width,initial-scale=1"),
        element("title", f"{report.table}: icepuffin report"),
        element("style", style_sheet()),
    )
    parts = (
        _behind(report),
        _time_line(report),
        (_index(index, report) for index in report.indexes),
        _distinct(report),
        _other_statistics(report.statistics) if report.statistics else None,
    )
    footer = element("footer", element("p", f"{CREATED_BY}. A rounded number has its exact value as title."))
    body = element("body", _header(report), element("main", parts), footer, element("script", SCRIPT))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _header(report: TableReport) -> Markup:
    head = report.head
    seconds = (report.made - head.committed).total_seconds() if head else 0.0
    age = f"newest {readable_seconds(max(0.0, seconds))} ago" if head else "no head"  # a writer's clock may be ahead
    tiles = [
        ("rows", _number(head.rows if head else 0), "in the newest snapshot, by its summary"),
        ("snapshots", _number(report.snapshot_count), age),
        *(_recall_tile(index) for index in report.indexes),
        ("bytes of indexes", _bytes(report.index_bytes), "all versions, shared files once"),
    ]
    faults = [shortfall for shortfall in report.shortfalls if shortfall.is_fault]
    state = next((shortfall.headline for shortfall in (*faults, *report.shortfalls)), "Up to date")
    level = "bad" if faults else "late" if report.shortfalls else "good"
    return element(
        "header",
        element("h1", report.table),
        element("p", state, class_=f"state {level}"),
        element("p", f"{report.made:%Y-%m-%d %H:%M} UTC · {report.location}", class_="quiet"),
        _fields(((name, joined(_span(cell), element("small", note))) for name, cell, note in tiles), "tiles"),
    )


def _recall_tile(index: IndexDescription) -> tuple[str, PageCell, str]:
    definition = index.definition
    if not definition.has_graphs:
        return f"recall, {definition.name}", PageCell("exact"), "no graphs: rows in reach are compared"
    note = f"target {definition.target_recall:g}" if index.versions else "no version yet"
    return f"recall@10, {definition.name}", _decimal(index.overview.recall if index.overview else None), note


def _behind(report: TableReport) -> Markup | None:
    """What is behind, by the command that mends it."""
    texts: dict[str, list[Markup]] = {}
    for shortfall in report.shortfalls:
        texts.setdefault(shortfall.command, []).append(element("p", shortfall.text))
    items = [
        element("li", lines, element("code", command) if command else None, class_="card")
        for command, lines in texts.items()
    ]
    return _section("What is behind", element("ul", items)) if items else None


def _time_line(report: TableReport) -> Markup | None:
    entries = report.snapshots
    if not entries:
        return None
    styles = {entry.operation: _OPERATIONS.get(entry.operation, "e") for entry in entries}
    bars = [
        Bar(f"{_when(it)} {it.operation}: {_rows(it.rows)}", ((styles[it.operation], it.rows or 0),)) for it in entries
    ]
    label = f"Rows of {plural(len(entries), 'snapshot')}, {_rows(entries[-1].rows)} at last"
    axes = Axes(label, ends=(_when(entries[0]), _when(entries[-1])))
    names = {"theta sketches": "theta_sketches"} | {
        f"index {it.definition.name}": it.definition.name for it in report.indexes
    }
    figures = (
        _figure("Rows by snapshot", bar_chart(bars, axes), _legend(styles.items())),
        _figure(
            "Coverage: what each snapshot has",
            (_coverage(entries, title, name) for title, name in names.items()),
            _legend((state, style) for state, (style, _) in _COVERAGE.items()),
        ),
    )
    columns, lines = ["committed (UTC)", "snapshot", "operation", "rows", "added", "removed"], []
    by_index = {
        it.definition.name: {version.base_snapshot_id: version for version in it.versions} for it in report.indexes
    }
    for entry in reversed(entries):
        lists = map(_words, (entry.derived, entry.missing, entry.refs))
        counts = map(_number, (entry.rows, entry.rows_added, entry.rows_removed))
        line = [
            PageCell(_when(entry), entry.committed.isoformat(timespec="milliseconds")),
            PageCell(str(entry.snapshot_id)),
            PageCell(entry.operation),
            *counts,
        ]
        for versions in by_index.values():
            version = versions.get(entry.snapshot_id)
            measured = _measured(version) if version else None
            line += [_decimal(measured.recall), _seconds(measured.seconds)] if measured else [_UNKNOWN] * 2
            size = (version.file_size or 0) + sum(pack.size for pack in version.packs) if version else None
            line.append(_bytes(size))
        lines.append([*line, *lists])
    columns += [f"{name}: {what}" for name in by_index for what in ("recall", "time", "bytes")]
    cut = f", the newest {len(entries):,} of {report.snapshot_count:,}" if len(entries) < report.snapshot_count else ""
    table = _table(f"Snapshots{cut}", [*columns, "made", "missing", "refs"], lines)
    return _section("Time line", element("div", figures, class_="grid"), table)


def _coverage(entries: Sequence[SnapshotEntry], title: str, name: str) -> Markup:
    """A cell per snapshot: high where it has what is named."""
    states = [
        "made" if name in it.derived else "missing" if name in it.missing else "nothing to make" for it in entries
    ]
    cells, width = [], _STRIP / len(entries)
    for index, (entry, state) in enumerate(zip(entries, states, strict=True)):
        style, height = _COVERAGE[state]
        size = {"x": f"{index * width:.2f}", "y": 20 - height, "width": f"{width * 0.86:.2f}", "height": height}
        cells.append(element("rect", element("title", f"{_when(entry)}: {state}"), class_=style, **size))
    text = f"{title}: {states.count('made'):,} of {plural(len(entries), 'snapshot')}"
    return joined(element("p", text), _strip(text, cells))


def _index(index: IndexDescription, report: TableReport) -> Markup:
    definition, shown = index.definition, index.overview
    facts = {
        "column": PageCell(definition.column),
        "metric": PageCell(str(definition.metric)),
        "vectors as": PageCell(definition.vectors if definition.has_graphs else "file centroids, no graphs"),
        "target recall": PageCell(f"{definition.target_recall:g}"),
        "versions": _number(len(index.versions)),
    }
    if shown is not None:
        dead = sum(shard.tombstones for shard in shown.shards)
        facts["version of snapshot"] = PageCell(str(shown.base_snapshot_id))
        facts["tombstones"] = PageCell(readable_share(shown.tombstone_ratio), title=f"{dead:,}")
    histograms = map(_histogram, report.values.get(definition.name, ()))
    return _section(
        f"Index {definition.name}",
        _fields(((name, _span(cell)) for name, cell in facts.items()), "facts"),
        (element("p", warning, class_="bad card") for warning in index.warnings),
        element(
            "div", _version_figures(index, shown) if shown else None, _history_figures(index), histograms, class_="grid"
        ),
        (_points_table(index, shown), _shards_table(shown)) if shown else None,
    )


def _version_figures(index: IndexDescription, shown: Overview) -> Iterable[Markup]:
    if shown.curve:
        chart = recall_chart(shown, index.definition.target_recall)
        yield _figure("Recall by cost", chart, _legend(note="dashed: target"))
    if shown.shards:
        styles = (("rows", "a"), ("later rows", "b"), ("tombstones", "e"))
        yield _figure("Rows of each shard", shards_chart(shown), _legend(styles))
    head = [("in the version", "a", shown.rows_covered), ("scanned by searches", "c", index.tail)]
    text = (
        f"{readable_share(shown.coverage)} of {plural(shown.rows, 'row')} in files of the head, deleted ones included"
    )
    files = _shares("Files of the head", text, head, _number)
    sizes = ((name, size) for name, size in shown.bytes_by_part.items() if size)
    parts = [(name, style, size) for (name, size), style in zip(sizes, _PART_STYLES, strict=False)]
    text = (
        f"{readable_bytes(shown.bytes_alone)} its own, {readable_bytes(shown.bytes_shared)} in files that others share"
    )
    yield element("figure", files, _shares("Bytes by part", text, parts, _bytes))


def _shares(title: str, text: str, parts: Sequence[tuple[str, str, int]], cell: Callable[[int], PageCell]) -> Markup:
    """Parts of a whole, side by side."""
    total, x, shapes, items = sum(size for _, _, size in parts) or 1, 0.0, [], []
    for name, style, size in parts:
        width = _STRIP * size / total
        shapes.append(element("rect", class_=style, x=f"{x:.1f}", y=0, width=f"{max(width - 2, 0):.1f}", height=20))
        items.append((joined(_key(style), name), joined(_span(cell(size)), f", {readable_share(size / total, 0)}")))
        x += width
    return joined(element("h3", title), element("p", text), _strip(text, shapes), _fields(items, "parts"))


def _history_figures(index: IndexDescription) -> Iterable[Markup]:
    """Recall and seconds, version by version, in the order of their data snapshots."""
    order = sorted(index.versions, key=lambda it: (it.base_sequence_number, it.sequence_number, it.timestamp_ms))
    pairs = [(f"snapshot {it.base_snapshot_id}", measured) for it in order if (measured := _measured(it))]
    ends = ("oldest snapshot", "newest")
    recalls = [
        Point(number, it.recall, f"{of}: {it.recall:.4f}, {it.action}", is_marked=it.action is Action.BUILT)
        for number, (of, it) in enumerate(pairs)
        if it.recall is not None
    ]
    if recalls:
        label = f"recall@10 of {plural(len(recalls), 'version')}, {recalls[-1].y:.4f} at last"
        axes = Axes(label, ends=ends, floor=index.definition.target_recall)
        yield _figure(
            "Recall of versions", line_chart(recalls, axes), _legend(note="large: built anew; dashed: target")
        )
    if pairs:
        bars = [Bar(f"{of}: {readable_seconds(it.seconds)}", (("a", it.seconds),)) for of, it in pairs]
        axes = Axes(f"Seconds to make each of {plural(len(pairs), 'version')}", ends=ends)
        yield _figure("Seconds to make versions", bar_chart(bars, axes))


def _points_table(index: IndexDescription, shown: Overview) -> Markup | None:
    points: list[tuple[Width | MeasuredPoint, str]] = []
    points += [(point, "rows of the index") for point in (*shown.curve, *shown.wide_curve)]
    points += [(point, index.tuning.origin) for point in index.tuning.points] if index.tuning else []
    lines = [
        (*map(_number, (it.k, it.search_list, it.oversample, it.distances)), _decimal(it.recall), PageCell(by))
        for it, by in points
    ]
    return _table(
        f"Recall by cost of {shown.index}", ("k", "L", "oversample", "distances", "recall@k", "measured by"), lines
    )


def _shards_table(shown: Overview) -> Markup | None:
    lines = [
        (
            *map(_number, (it.shard, it.nodes, it.live, it.tombstones, it.changed)),
            _decimal(it.recall),
            _bytes(it.bytes),
            PageCell("codebook" if it.routed else "later rows, always probed"),
        )
        for it in shown.shards[:MAX_SHARDS]
    ]
    cut = f", the first {MAX_SHARDS:,} of {len(shown.shards):,}" if len(shown.shards) > MAX_SHARDS else ""
    columns = ("shard", "nodes", "live", "tombstones", "changed since", "recall@10", "bytes", "found by")
    return _table(f"Shards of {shown.index}{cut}", columns, lines)


def _distinct(report: TableReport) -> Markup | None:
    rows = {entry.snapshot_id: entry.rows for entry in report.snapshots}
    figures, lines = [], []
    for name, by_snapshot in report.distinct.items():
        points = [
            Point(index, ndv, f"snapshot {at}: {ndv:,}, {_between(*bounds)}", bounds=bounds)
            for index, (at, ndv) in enumerate(by_snapshot.items())
            for bounds in [ndv_bounds(ndv, report.rows_in_files[at])]
        ]
        at, last = list(by_snapshot.items())[-1]
        bounds = ndv_bounds(last, report.rows_in_files[at])
        axes = Axes(
            f"Distinct values of {name}: {last:,} at last", ends=("oldest snapshot", "newest"), is_from_zero=True
        )
        text = element("p", _span(_number(last)), f" ({_between(*bounds)})")
        figures.append(_figure(name, text, line_chart(points, axes)))
        share = _share_of_rows(last, rows[at], is_exact=bounds[0] == bounds[1])
        lines.append((PageCell(name), *map(_number, (last, *bounds)), share, _number(len(points)), PageCell(str(at))))
    if not lines:
        return None
    columns = ("column", "distinct values", "at least", "at most", "of the rows", "snapshots", "counted for snapshot")
    note = "Estimates by theta sketches: exact up to 4,096 values; above that bars are 95 % intervals."
    grid = element("div", figures[:MAX_COLUMNS], class_="grid")
    return _section("Distinct values", element("p", note), grid, _table("Distinct values by column", columns, lines))


def _other_statistics(statistics: SnapshotStatistics) -> Markup:
    """Statistics of the head by kind, and its histograms as bars."""
    figures = []
    for name, values in statistics.histogram.items():
        ranges = values.bars(_RANGES)
        of = plural(values.count, "value")
        bars = [
            Bar(f"{text_of(it.low)} to {text_of(it.high)}: {readable_share(it.share)}", (("a", it.share),))
            for it in ranges
        ]
        if ranges:
            ends = text_of(ranges[0].low), text_of(ranges[-1].high)
            text = element("p", f"The middle 99 % of {of}; error of a share: {values.words()[1]}")
            figures.append(_figure(name, text, bar_chart(bars, Axes(f"Shares of the values of {name}", ends=ends))))
    grid, *notes = statistics.grids()
    lines = [[PageCell(str(cell)) for cell in row] for row in grid.rows]
    texts = (element("p", f"{note.title}: {line}", class_="card") for note in notes for (line,) in note.rows)
    drawn = element("div", figures[:MAX_COLUMNS], class_="grid")
    return _section("Statistics", drawn, _table("Statistics of the newest snapshot", grid.columns, lines), texts)


def _histogram(column: ValueCounts) -> Markup:
    text = f"{plural(column.distinct, 'value')} in {plural(column.rows, 'live row')}"
    if column.nulls:
        text += f", {column.nulls:,} of them without a value"
    if column.not_finite:
        text += f"; {column.not_finite:,} of NaN or infinity are not drawn"
    if column.unread_files:
        text += f"; {plural(column.unread_files, 'data file')} left out, whose values the version lacks"
    bars = [Bar(f"{value or 'no value'}: {_rows(rows)}", (("a", rows),)) for value, rows in column.counts]
    if column.ends:
        chart = bar_chart(bars, Axes(f"Rows of {column.column} in {len(bars)} ranges of values", ends=column.ends))
        return _figure(f"Values of {column.column}", element("p", text), chart)
    chart = bar_chart(bars, Axes(f"Rows of the {plural(len(bars), 'most frequent value')}", ends=("most", "fewest")))
    top = ((value, _span(_number(rows))) for value, rows in column.counts[:_TOP_VALUES])
    return _figure(f"Values of {column.column}", element("p", text), chart, _fields(top, "parts"))


def _share_of_rows(ndv: int, rows: int | None, *, is_exact: bool) -> PageCell:
    """A whole per cent of an estimate, and no more than all rows."""
    if not rows:
        return _UNKNOWN
    share = min(ndv / rows, 1.0)
    text = readable_share(share) if is_exact else f"about {share:.0%}"
    return PageCell(text, share, f"{ndv:,} of {plural(rows, 'row')}")


def _between(low: int, high: int) -> str:
    return "exact" if low == high else f"{readable_count(low)} to {readable_count(high)}"


def _section(title: str, *parts: Child) -> Markup:
    return element("section", element("h2", title), *parts, aria_label=title)


def _figure(title: str, *parts: Child) -> Markup:
    return element("figure", element("h3", title), *parts)


def _fields(fields: Iterable[tuple[str, Markup]], style: str) -> Markup:
    return element(
        "dl", (element("div", element("dt", name), element("dd", value)) for name, value in fields), class_=style
    )


def _legend(entries: Iterable[tuple[str, str]] = (), *, note: str = "") -> Markup:
    return element("figcaption", ((_key(style), name) for name, style in entries), note)


def _key(style: str) -> Markup:
    return element("span", class_=f"key {style}")


def _strip(label: str, shapes: Iterable[Markup]) -> Markup:
    size = {"viewBox": f"0 0 {_STRIP} 20", "preserveAspectRatio": "none"}
    return element("svg", shapes, class_="strip", role="img", aria_label=label, **size)


def _table(title: str, columns: Sequence[str], lines: Sequence[Sequence[PageCell]]) -> Markup | None:
    """Rows under their columns, without those columns that have no value."""
    filled = [
        index for index in range(len(columns)) if any(line[index] not in (_UNKNOWN, PageCell("")) for line in lines)
    ]
    if not filled:
        return None
    columns, lines = [columns[index] for index in filled], [[line[index] for index in filled] for line in lines]
    numeric = (any(isinstance(line[index].key, int | float) for line in lines) for index in range(len(columns)))
    styles = ["number" if is_number else None for is_number in numeric]
    head = [element("th", name, class_=style, scope="col") for name, style in zip(columns, styles, strict=True)]
    body = [
        element("tr", [
            element("td", cell.text, class_="list" if cell.is_list else style, title=cell.title, data_v=cell.key)
            for cell, style in zip(line, styles, strict=True)
        ])
        for line in lines
    ]  # fmt: skip
    parts = (element("thead", element("tr", head)), element("tbody", body))
    table = element("table", element("caption", title), *parts)
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=title)


def _span(cell: PageCell) -> Markup:
    return element("span", cell.text, title=cell.title)


def _rows(count: int | None) -> str:
    return "number of rows unknown" if count is None else plural(count, "row")


def _words(words: Iterable[str]) -> PageCell:
    text = ", ".join(words)
    return PageCell(text, is_list=bool(text))


def _number(number: float | None, *, shown: Callable[[float], str] = readable_count, unit: str = "") -> PageCell:
    return _UNKNOWN if number is None else PageCell(shown(number), number, f"{number:,}{unit}")


_bytes = partial(_number, shown=readable_bytes, unit=" bytes")
_seconds = partial(_number, shown=readable_seconds, unit=" s")
_decimal = partial(_number, shown="{:.4f}".format)


def _when(entry: SnapshotEntry) -> str:
    return f"{entry.committed:%Y-%m-%d %H:%M}"


def _measured(version: DerivedVersion) -> Measurement | None:
    return Measurement.parse(version.measurement)
