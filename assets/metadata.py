"""Reports as Dagster metadata: numbers that the UI plots, ids as text, and all else behind a link."""

import dataclasses
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from pyiceberg.table.snapshots import Snapshot

from icepuffin.assets.glance import INLINE_CHARACTERS
from icepuffin.assets.newest_snapshots import row_counts
from icepuffin.ops.messages import readable_bytes
from icepuffin.ops.table.summaries import number_of, summary_of

MAX_TABLE_ROWS = 100
"""Rows of a table, at most: each takes some 200 bytes of Dagster's database per materialization"""
_OF_THE_RUN = ("time line", "action", "outcome")
"""Labels of what a run did, made or not, and of what it found"""
_MAX_PLOTTED = 2**31 - 1
_MAX_EXACT = 2**53
_MARKUP = re.compile(r"[\\`*\[\]<>&|~]|(?<![^\W_])_|_(?![^\W_])")
"""What Markdown does not take for text. Between letters or digits `_` is text"""


def details(report: Any) -> dg.MetadataValue[Any]:
    """All of a frozen report as JSON, behind one link. What is unknown or empty is left out, and of a long table
    all but its first `MAX_TABLE_ROWS` rows, which are counted. Of a path it has the file's name: the page shows short
    JSON at once, and a long word there cuts off all that stands above it.
    """
    return dg.MetadataValue.json(_plain(report))


def _plain(value: Any, name: str = "") -> Any:
    """A value of JSON. Whole numbers that JavaScript would round are text."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        parts = {str(key): _plain(part, str(key)) for key, part in value.items()}
        return {key: part for key, part in parts.items() if part not in (None, "", [], {})}
    if isinstance(value, list | tuple):
        rows = [_plain(row) for row in value[:MAX_TABLE_ROWS]]
        return rows + [f"{len(value) - MAX_TABLE_ROWS:,} more"] * (len(value) > MAX_TABLE_ROWS)
    if isinstance(value, float):
        return round(value, 4) if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if name.endswith("_id") or abs(value) > _MAX_EXACT else value
    if isinstance(value, str) and name.endswith("_path"):
        return value.rpartition("/")[2]
    return value if value is None or isinstance(value, bool) else str(value)


def plotted(**numbers: float | None) -> dict[str, dg.MetadataValue[Any]]:
    """Numbers that the UI plots over partitions, by label; those that are unknown or zero are left out. Whole numbers
    beyond 32 bits become floats, which a plot shows as well.
    """
    known = {label: round(number, 4) for label, number in numbers.items() if number and math.isfinite(number)}
    return {
        label: dg.MetadataValue.int(number)
        if isinstance(number, int) and number <= _MAX_PLOTTED
        else dg.MetadataValue.float(float(number))
        for label, number in known.items()
        if number
    }


def kept_metadata(
    context: dg.AssetExecutionContext, key: dg.AssetKey, label: str, now: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Metadata of a run that has made nothing, as all was there: that of the partition's last materialisation, where
    the details of the two are the same at `label`, so that Dagster shows what the work took, and not that of `now`.
    What the run did and found is from `now`.
    """
    partition = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[context.partition_key])
    for record in context.instance.fetch_materializations(partition, limit=1).records:
        event = record.asset_materialization
        if event is not None and _detail(event.metadata, label) == _detail(now, label) is not None:
            return {**now, **event.metadata, **{name: now[name] for name in _OF_THE_RUN if name in now}}
    return now


def _detail(metadata: Mapping[str, Any], label: str) -> Any:
    found = metadata.get("details")
    value = found.value if isinstance(found, dg.JsonMetadataValue) else None
    return value.get(label) if isinstance(value, Mapping) else None


def plain_text(text: str) -> str:
    """Markdown that shows a text as it is, in one line: no link, picture, emphasis or code comes of it. The UI takes
    each description for Markdown.
    """
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def bullet_list(lines: Mapping[str, str]) -> dg.MetadataValue[Any]:
    """Markdown that the UI shows at once: a line per entry that has a text, its name in bold. A text, which may quote
    a path or a name of the table's, shows as it is: it makes no link, picture or line.
    """
    bullets = (f"* **{plain_text(name)}:** {plain_text(text)}" for name, text in lines.items() if text)
    return dg.MetadataValue.md("\n".join(bullets)[:INLINE_CHARACTERS])


def when_and_how(snapshot: Snapshot | None) -> str:
    """Time and operation of a commit in words, as the partition key is only an id."""
    if snapshot is None:
        return "has expired"
    operation = snapshot.summary.operation.value if snapshot.summary else "unknown operation"
    return f"{operation}, committed {datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def total_metadata(snapshot: Snapshot) -> dict[str, dg.MetadataValue[Any]]:
    """The totals of the snapshot's summary: in words, then as numbers, which the UI plots. Empty where it has none."""
    totals = {
        name.removeprefix("total-").replace("-", " "): number
        for name, text in summary_of(snapshot).items()
        if name.startswith("total-") and (number := number_of(text)) is not None and number >= 0
    }
    if not totals:
        return {}
    return {
        "summary": bullet_list(_totals_in_words(totals)),
        **plotted(rows=row_counts(snapshot)[2], bytes=totals.get("files size")),
    }


def _totals_in_words(totals: Mapping[str, int]) -> dict[str, str]:
    """`totals` by the names of Iceberg's summary."""
    words = {"rows in files": f"{totals.get('records', 0):,}; data files: {totals.get('data files', 0):,}"}
    if files := totals.get("delete files", 0):
        rows = {kind: totals.get(f"{kind} deletes", 0) for kind in ("position", "equality")}
        counts = " and ".join(f"{count:,} by {kind}" for kind, count in rows.items() if count)
        words["deletes"] = f"{counts or 'rows not counted'}; delete files: {files:,}"
    if "files size" in totals:
        words["bytes"] = readable_bytes(totals["files size"])
    return words
