"""The statistics of all kinds that a snapshot's file has, each with its error, and whether it may be used."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.statistics import StatisticsFile

from icepuffin.ann_kernels.sketches.kll import KllSketch
from icepuffin.ann_kernels.sketches.theta_estimates import MAX_THETA, estimate
from icepuffin.ops.catalog.read_restrictions import require_table
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.messages import readable_bytes, readable_share
from icepuffin.ops.model import SnapshotId, StorageConfig
from icepuffin.ops.presentation import Grid, Presentation, printable
from icepuffin.ops.storage import ObjectMissingError, open_storage
from icepuffin.ops.storage.base import ObjectSource
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.table.snapshots import SnapshotName, find_snapshot, resolve_snapshot, schema_at, table_name
from icepuffin.ops.table.summaries import snapshot_count
from icepuffin.ops.tasks.sketches.frequent_values import FrequentValue, frequent_values
from icepuffin.ops.tasks.sketches.histogram_values import ValueHistogram, text_of
from icepuffin.ops.tasks.sketches.images import Sketch
from icepuffin.ops.tasks.sketches.statistic import Kind, StatisticKey, fields_of, kind_of
from icepuffin.ops.theta.build_id import others_id, sealed_as
from icepuffin.ops.theta.errors import LostStatisticsError
from icepuffin.ops.theta.ndv import LONG, freshness, ndv_bounds, ndv_property, nearest_statistics
from icepuffin.ops.theta.statistics_slot import OtherSketch, listed_thetas, others_in, others_of, sketch_in
from icepuffin.puffin import BlobMetadata, PuffinReader
from icepuffin.puffin.blobs import frequent_items_blob
from icepuffin.puffin.errors import BadBlobError, PuffinError
from icepuffin.puffin.types import BlobType

if TYPE_CHECKING:
    import pandas as pd

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Ranks of the quantiles that are listed of each histogram"""
_SHOWN_VALUES = 3
_WIDTH = 20
"""Letters of a name or value in a line on a statistic, at most"""
_LISTS = {
    "quantiles": pa.list_(pa.struct([("rank", pa.float64()), ("value", pa.string())])),
    "frequent": pa.list_(pa.struct([("text", pa.string()), ("lower", pa.int64()), ("upper", pa.int64())])),
}
SCHEMA = pa.schema(
    {"kind": pa.string(), "columns": pa.list_(pa.string()), "fresh": pa.bool_(), "why": pa.string()}
    | {**dict.fromkeys(("value", "lower", "upper"), pa.int64()), "error": pa.float64()}
    | {"minimum": pa.string(), "maximum": pa.string(), **_LISTS}
)
"""Columns of `SnapshotStatistics.to_arrow`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStatistic:
    """One statistic of a column, or of several."""

    fresh: bool
    """Whether icepuffin counted it for this very snapshot"""
    why: str

    def cells(self) -> Mapping[str, Any]:
        """Its values by the columns of `SCHEMA`."""
        raise NotImplementedError

    def words(self) -> tuple[str, str]:
        """(value, error)"""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class NdvStatistic(ColumnStatistic):
    """The number of distinct values of a column, or of distinct tuples of several."""

    ndv: int
    lower: int
    """Least number at 95 %, `ndv` where that is exact"""
    upper: int
    """Greatest number at 95 %, `ndv` where that is exact"""
    error: float
    """Relative standard error; 0 where it is exact"""

    def cells(self) -> Mapping[str, Any]:
        return {"value": self.ndv, "lower": self.lower, "upper": self.upper, "error": self.error}

    def words(self) -> tuple[str, str]:
        return f"{self.ndv:,}", f"{self.lower:,} to {self.upper:,}" if self.error else "exact"


@dataclass(frozen=True, kw_only=True, eq=False)
class HistogramStatistic(ValueHistogram, ColumnStatistic):
    """The values of a column."""

    def cells(self) -> Mapping[str, Any]:
        listed = zip(QUANTILES, self.quantiles(QUANTILES), strict=True) if self.count else ()
        quantiles = [{"rank": rank, "value": text_of(value)} for rank, value in listed]
        ends = {"minimum": text_of(self.minimum), "maximum": text_of(self.maximum)} if self.count else {}
        return {"value": self.count, "error": self.rank_error, "quantiles": quantiles, **ends}

    def words(self) -> tuple[str, str]:
        if not self.count:
            return "no values", "exact"
        low, median, high = map(text_of, self.quantiles([0, 0.5, 1]))
        return f"{low} to {high}, median {median}", f"{readable_share(self.rank_error)}" if self.rank_error else "exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeStatistic(ColumnStatistic):
    """Bytes of all values of a column: exact."""

    bytes: int

    def cells(self) -> Mapping[str, Any]:
        return {"value": self.bytes, "error": 0.0}

    def words(self) -> tuple[str, str]:
        return readable_bytes(self.bytes), "exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequentStatistic(ColumnStatistic):
    """The most frequent values of a column, in their text form."""

    values: tuple[FrequentValue, ...]
    """Texts, each with the least and the greatest number of its rows; the most frequent first"""
    total: int
    """Number of values, nulls left out"""
    offset: int
    """Most rows that a value has which is left out, and that `upper` is above `lower`"""

    def cells(self) -> Mapping[str, Any]:
        values = [{"text": it.text, "lower": it.lower, "upper": it.upper} for it in self.values]
        return {"value": self.total, "error": self.offset / max(1, self.total), "frequent": values}

    def words(self) -> tuple[str, str]:
        shown = (f"{printable(it.text, _WIDTH)} {it.lower:,}" for it in self.values[:_SHOWN_VALUES])
        return ", ".join(shown) or "no values", f"up to {self.offset:,} more" if self.offset else "exact"


@dataclass(frozen=True, slots=True, repr=False)
class SnapshotStatistics(Presentation):
    """The statistics of one snapshot: by kind, whose names are the keys of the settings, and by column."""

    table: str
    snapshot_id: SnapshotId
    statistics_path: str | None
    """The file that has them; None where there is none"""
    left_out: tuple[str, ...]
    """What could not be used, each with the reason"""
    ndv: Mapping[str, NdvStatistic]
    histogram: Mapping[str, HistogramStatistic]
    size: Mapping[str, SizeStatistic]
    frequent: Mapping[str, FrequentStatistic]
    joint: Mapping[tuple[str, ...], NdvStatistic]

    def rows(self) -> Iterator[tuple[Kind, tuple[str, ...], ColumnStatistic]]:
        """(kind, names of columns, statistic)"""
        for kind in Kind:
            for columns, statistic in getattr(self, kind).items():
                yield kind, (columns,) if isinstance(columns, str) else columns, statistic

    def to_arrow(self) -> pa.Table:
        """pyarrow.Table: one row per statistic.

        `kind`, `columns`, `fresh`, `why`; `value`: distinct values or tuples, values that a histogram or frequent ones
        are of, bytes; `lower`, `upper` of NDVs and joint ones; `error`: relative standard error of these, of ranks, of
        frequent ones the share of all values; `minimum`, `maximum`, `quantiles` (rank, value) as texts; `frequent`
        (text, lower, upper). Null where the kind has no such thing.
        """
        rows = [
            {"kind": str(kind), "columns": list(columns), "fresh": it.fresh, "why": it.why, **it.cells()}
            for kind, columns, it in self.rows()
        ]
        return pa.Table.from_pylist(rows, schema=SCHEMA)

    def to_pandas(self) -> "pd.DataFrame":
        """pandas.DataFrame: the rows of `to_arrow`. Raises ModuleNotFoundError where pandas is not installed."""
        try:
            return self.to_arrow().to_pandas()
        except ModuleNotFoundError as error:
            error.msg = "to_pandas needs pandas: pip install pandas, or use to_arrow"
            raise

    def headline(self) -> str:
        counts = {str(kind): len(getattr(self, kind)) for kind in Kind} | {"left out": len(self.left_out)}
        there = ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "no statistics"
        return f"{self.table!r}, snapshot {self.snapshot_id}, {there}"

    def grids(self) -> Iterator[Grid]:
        rows = [
            (printable(", ".join(columns), 2 * _WIDTH), str(kind), *it.words(), "yes" if it.fresh else "no")
            for kind, columns, it in self.rows()
        ]
        title = f"{self.table} at snapshot {self.snapshot_id}"
        yield Grid(title, rows, ("column", "statistic", "value", "error", "fresh"))
        reasons = dict.fromkeys(it.why for _, _, it in self.rows() if not it.fresh)
        for title, lines in (("not fresh", reasons), ("left out", self.left_out)):
            if lines:
                yield Grid(title, [(line,) for line in lines])


def read_statistics(table: Table, snapshot: SnapshotName = None) -> SnapshotStatistics:
    """The statistics of all kinds that a snapshot has, with their errors. Reads the snapshot's statistics file.

    They are of the snapshot's own file, or else of its nearest ancestor's that has any. One is fresh where icepuffin
    counted it for this very snapshot, as `read_ndv` has it: a planner should use these only. What cannot be used (a
    sketch that is damaged or of other parameters, an unknown type of blob, an entry whose snapshot is gone) is left
    out, and named.

    Parameters
    ----------
    table : pyiceberg.table.Table
        The table, loaded from its catalog.
    snapshot : int, str or datetime, optional
        Snapshot id, branch, tag or time. Default: the head of `main`.

    Returns
    -------
    SnapshotStatistics
        By column: `ndv` (ndv; lower and upper at 95 %; error, its relative standard error), `histogram` (count,
        minimum, maximum; rank_error, which 99 of 100 shares keep; in values of the column's own type quantiles(ranks),
        ranks(values): shares up to each, fraction_between(low, high), None for no bound), `size` (bytes), `frequent`
        (values: text, lower, upper, which are certain). By tuple of columns: `joint`, as `ndv`. Each has `fresh` and
        `why`; `left_out` has reasons. `to_arrow` and `to_pandas` give one row per statistic.

    Raises
    ------
    UnknownSnapshotError
        The snapshot is not in the table's metadata.
    FileDamageError
        The statistics file is lost.

    Examples
    --------
    >>> statistics = icepuffin.read_statistics(table)
    >>> statistics.ndv["section"].ndv, statistics.ndv["section"].error
    (17, 0.0)
    >>> statistics.to_arrow().column_names[:4]
    ['kind', 'columns', 'fresh', 'why']
    """
    require_table(table, "read_statistics")
    return statistics_at(table, resolve_snapshot(table, snapshot).snapshot_id, schema_at(table, snapshot))


def statistics_beside_ndvs(
    table: Table, snapshot_id: SnapshotId, schema: Schema, storage: StorageConfig
) -> SnapshotStatistics | None:
    """`statistics_at`, where the entry that counts names statistics beside NDVs; else None, from metadata alone."""
    entry = nearest_statistics(table, find_snapshot(table, snapshot_id))
    if entry is None or not others_of(entry, find_snapshot(table, SnapshotId(entry.snapshot_id))):
        return None
    return statistics_at(table, snapshot_id, schema, storage)


def statistics_at(
    table: Table, snapshot_id: SnapshotId, schema: Schema, storage: StorageConfig | None = None
) -> SnapshotStatistics:
    """`read_statistics` of a snapshot id, with the columns' names in `schema`; those that it lacks are left out."""
    known, data = snapshots_by_id(table.metadata), find_snapshot(table, snapshot_id)
    entry, name = nearest_statistics(table, data), table_name(table)
    gone = [it.snapshot_id for it in table.metadata.statistics if it.snapshot_id not in known]
    found = _FoundStatistics(schema, [f"the entry of snapshot {it}: the table has no such snapshot" for it in gone])
    path = entry.statistics_path if entry else None
    if entry and path:
        source = ObjectSource(open_storage(path, storage or storage_of(table)), path)
        try:
            found.read(source, entry, data, known[SnapshotId(entry.snapshot_id)])
        except ObjectMissingError as error:
            raise LostStatisticsError(
                f"{name}: the statistics file of snapshot {entry.snapshot_id} is lost, {path}; make it anew: "
                f"icepuffin refresh {quote(name)} --snapshot {entry.snapshot_id}"
            ) from error
        except PuffinError as error:
            found.left_out.append(f"{path}: {error}")
    return SnapshotStatistics(name, SnapshotId(data.snapshot_id), path, tuple(found.left_out), **found.by_kind)


class _FoundStatistics:
    """Statistics by kind and columns, as they are read from a file."""

    def __init__(self, schema: Schema, left_out: list[str]) -> None:
        self._schema, self.left_out, self._rows = schema, left_out, 0
        self.by_kind: dict[str, dict[Any, Any]] = {str(kind): {} for kind in Kind}

    def read(self, source: ObjectSource, entry: StatisticsFile, data: Snapshot, origin: Snapshot) -> None:
        """Read the file of an entry, that of `origin`, for `data`. Raises PuffinError, and what the store raises."""
        reader, listed = PuffinReader(source), listed_thetas(entry)
        self._rows = snapshot_count(origin, "total-records")
        thetas = {it.fields[0]: it for it in reversed(reader.footer.of_type(BlobType.THETA)) if len(it.fields) == 1}
        others: Mapping[StatisticKey, OtherSketch] = {}
        try:
            others = others_in(reader.footer)
        except BadBlobError as error:
            self.left_out.append(f"all statistics but NDVs: {error}")
        blobs = [*(thetas.get(i) for i in listed), *(other.blob for other in others.values())]
        self.left_out += [
            f"{it.type} of {', '.join(map(self._name, it.fields))}: neither listed in the table's entry, nor ours"
            for it in reader.footer.blobs
            if it not in blobs
        ]
        source.fetch([(it.offset, it.length) for it in blobs if it and it.length])
        for i in sorted(listed):
            theta = thetas.get(i)
            if theta is None or sealed_as(theta.properties) != sealed_as(listed[i].properties):
                self.left_out.append(f"ndv of {self._name(i)}: the file lacks the sketch that the table's entry lists")
            else:
                self._add(reader, (i, ""), theta, ndv_property(listed[i]), *freshness(listed[i], data))
        fresh, why = _freshness_of_others(entry, data, origin, others)
        for key, other in others.items():
            ndv = ndv_property(other.blob) if other.blob else None
            self._add(reader, key, other.blob, ndv, fresh, why)

    def _add(
        self, reader: PuffinReader, key: StatisticKey, blob: BlobMetadata | None, ndv: int | None, fresh: bool, why: str
    ) -> None:
        """Add a statistic, unless one of its columns was dropped since."""
        kind = kind_of(key)
        ids = key[:1] if kind is Kind.NDV else tuple(fields_of(key))
        columns = tuple(filter(None, map(self._schema.find_column_name, ids)))
        if len(columns) < len(ids):
            return
        if ndv is not None and ndv >= LONG:
            self.left_out.append(f"{kind} of {', '.join(columns)}: no count is {ndv}")
            return
        try:
            sketch, type_ = sketch_in(reader, key, blob), str(self._schema.find_type(ids[0]))
        except PuffinError as error:
            self.left_out.append(f"{kind} of {', '.join(columns)}: {error}")
        else:
            made = _statistic(sketch, columns[0], type_, ndv, self._rows, fresh, why)
            self.by_kind[kind][columns if kind is Kind.JOINT else columns[0]] = made

    def _name(self, field_id: int) -> str:
        return self._schema.find_column_name(field_id) or f"field {field_id}"


def _statistic(
    sketch: Sketch, column: str, type_: str, ndv: int | None, rows: int, fresh: bool, why: str
) -> ColumnStatistic:
    """What a sketch says. `rows`: those of the data files that it counts; 0: not known."""
    if isinstance(sketch, KllSketch):
        return HistogramStatistic(column=column, type=type_, sketch=sketch, fresh=fresh, why=why)
    if isinstance(sketch, int):
        return SizeStatistic(bytes=sketch, fresh=fresh, why=why)
    if isinstance(sketch, bytes):
        items, values = frequent_items_blob.decode(sketch), tuple(frequent_values(sketch))
        return FrequentStatistic(values=values, total=items.total, offset=items.offset, fresh=fresh, why=why)
    count, share = len(sketch.hashes), sketch.theta / 2**63
    ndv = int(estimate(sketch.theta, count)) if ndv is None else ndv
    lower, upper = ndv_bounds(ndv, rows, sketch.theta, count)
    error = 0.0 if sketch.theta == MAX_THETA else math.sqrt((1 - share) / max(1, count))
    return NdvStatistic(ndv=ndv, lower=lower, upper=upper, error=error, fresh=fresh, why=why)


def _freshness_of_others(
    entry: StatisticsFile, data: Snapshot, origin: Snapshot, others: Mapping[StatisticKey, OtherSketch]
) -> tuple[bool, str]:
    if others_of(entry, origin) != others_id({key: other.build_id for key, other in others.items()}):
        return False, "the table's entry names other statistics; materialise the sketches again"
    if origin.snapshot_id == data.snapshot_id:
        return True, f"counted for snapshot {data.snapshot_id}"
    return False, f"counted for snapshot {origin.snapshot_id}, not for {data.snapshot_id}; materialise the sketches"
