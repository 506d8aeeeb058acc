"""Metrics in the text format of Prometheus (https://prometheus.io/docs/instrumenting/exposition_formats): how far each
index is behind, its recall, bytes and seconds, and what the shard cache of a process answered.

They are read from the table's metadata: no file of the index is opened.
"""

import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import tagged_version
from icepuffin.ops.binding.measurements import Measurement
from icepuffin.ops.cache import process_cache
from icepuffin.ops.catalog.read_restrictions import pyiceberg_table, require_unrestricted
from icepuffin.ops.errors import IcepuffinError, faults_of
from icepuffin.ops.index.definitions.ddl import list_definitions, refused_definitions
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.planning.current_versions import versions_of
from icepuffin.ops.index.upkeep.freshness import index_lag, missing_ref
from icepuffin.ops.table.snapshots import table_name

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPED = {"\\": r"\\", '"': r"\"", "\n": r"\n"}
_TO_ESCAPE = re.compile(r'[\\"\n]')
_log = logging.getLogger(__name__)

ABOUT = {
    "icepuffin_table_up": "1 where the table could be read, 0 where it could not.",
    "icepuffin_index_versions": "Versions of the index in the table's metadata.",
    "icepuffin_index_versions_behind": "Data snapshots newer than the newest with a version; +Inf: unknown.",
    "icepuffin_index_seconds_behind": "Age of the oldest snapshot without a version; 0: none is, +Inf: unknown.",
    "icepuffin_index_recall": "recall@10 of the version at the index tag, measured before it was published.",
    "icepuffin_index_bytes": "Bytes of the version at the index tag: its own file, and the packs that it names.",
    "icepuffin_index_run_seconds": "Seconds that the run took which made the version at the index tag.",
    "icepuffin_index_published_timestamp_seconds": "When the version at the index tag was published.",
    "icepuffin_shard_cache_reads_total": "Shards that this process opened, by where they came from.",
    "icepuffin_shard_cache_memory_bytes": "Bytes of the shards in this process's memory; mapped files count in full.",
}
"""What each metric is, by its name"""


def metrics(*tables: Table, ref: str = "main") -> str:
    """Metrics of this process's shard cache, and of the indexes of tables, as Prometheus reads them.

    Reads the metadata that the tables were loaded with, and no file but the manifest list of a newest snapshot that is
    said to have no rows. A table whose metadata is broken, or that a REST catalog restricts or does not give any more,
    has `icepuffin_table_up` 0 and nothing else, and the log says why.

    Parameters
    ----------
    tables : pyiceberg.table.Table
        Tables, loaded from their catalogs. Without any, the shard cache alone.
    ref : str
        Branch that their indexes follow.

    Returns
    -------
    str
        Lines in the text format 0.0.4. Bytes, seconds and shares from 0 to 1; each metric has a line that says what it
        is.

    Examples
    --------
    >>> print(icepuffin.metrics(table))
    # HELP icepuffin_shard_cache_reads_total Shards that this process opened, by where they came from.
    ...
    icepuffin_index_versions_behind{catalog="...",table="demo.packages",index="embedding"} 0
    ...
    """
    samples = [*cache_samples()]
    names = [table_name(pyiceberg_table(table, "metrics")) for table in tables]
    for table, name in zip(tables, names, strict=True):
        labels = {"catalog": table.catalog.name, "table": name}
        samples += table_samples(labels, partial(_of_indexes, table, ref, labels), _log.warning)
    return exposition(samples)


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of a metric."""

    metric: str
    labels: Mapping[str, str]
    value: float


def exposition(samples: Iterable[MetricSample]) -> str:
    """The samples as text, those of one metric together."""
    lines: list[str] = []
    by_metric: dict[str, list[MetricSample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, []).append(sample)
    for metric, group in by_metric.items():
        kind = "counter" if metric.endswith("_total") else "gauge"
        lines += [f"# HELP {metric} {ABOUT[metric]}", f"# TYPE {metric} {kind}"]
        lines += [f"{metric}{_labels(sample.labels)} {_number(sample.value)}" for sample in group]
    return "".join(f"{line}\n" for line in lines)


def _of_indexes(table: Table, ref: str, labels: Mapping[str, str]) -> Iterator[MetricSample]:
    require_unrestricted(table)
    for definition in list_definitions(table):
        yield from index_samples(table, definition, ref, labels)
    yield from refused_samples(refused_definitions(table), labels)


def refused_samples(names: Iterable[str], labels: Mapping[str, str]) -> Iterator[MetricSample]:
    """Those of indexes whose definition this release does not understand: an alert on either has to fire."""
    for name in names:
        yield MetricSample("icepuffin_index_versions_behind", {**labels, "index": name}, math.inf)
        yield MetricSample("icepuffin_index_seconds_behind", {**labels, "index": name}, math.inf)


def table_samples(
    labels: Mapping[str, str], of_indexes: Callable[[], Iterable[MetricSample]], report: Callable[[str], object]
) -> Iterator[MetricSample]:
    """`icepuffin_table_up` and the samples of a table's indexes; where these raise, it is 0 and there are none.

    labels: of the table.
    report: called with the message of an error, which names the table.
    """
    try:
        with faults_of(labels["table"]):
            samples = [*of_indexes()]
    except IcepuffinError as error:
        report(str(error))
        yield MetricSample("icepuffin_table_up", labels, 0)
        return
    yield MetricSample("icepuffin_table_up", labels, 1)
    yield from samples


def index_samples(
    table: Table, index: IndexDefinition, ref: str, labels: Mapping[str, str], *, now: float | None = None
) -> Iterator[MetricSample]:
    """MetricSamples of one index of a loaded table. Those of a version are left out where there is none.

    ref: the branch or tag that is watched.
    labels: of the table; `index` is added.
    now: seconds since the epoch.
    """
    labels = {**labels, "index": index.name}
    lag = index_lag(table, index, ref, now=time.time() if now is None else now)
    # where nothing is indexed for lack of the ref, an alert on either has to fire
    behind = (math.inf, math.inf) if missing_ref(table, ref) else (lag.snapshots, lag.minutes * 60)
    yield MetricSample("icepuffin_index_versions", labels, len(versions_of(table, index)))
    yield MetricSample("icepuffin_index_versions_behind", labels, behind[0])
    yield MetricSample("icepuffin_index_seconds_behind", labels, behind[1])
    version = tagged_version(table, index.name)
    if version is None:
        return
    yield MetricSample("icepuffin_index_published_timestamp_seconds", labels, version.timestamp_ms / 1000)
    if version.file_size is not None:
        yield MetricSample("icepuffin_index_bytes", {**labels, "in": "file"}, version.file_size)
    yield MetricSample("icepuffin_index_bytes", {**labels, "in": "packs"}, sum(pack.size for pack in version.packs))
    measured = Measurement.parse(version.measurement)
    if measured is not None:
        yield MetricSample("icepuffin_index_run_seconds", labels, measured.seconds)
        if measured.recall is not None:
            yield MetricSample("icepuffin_index_recall", labels, measured.recall)


def cache_samples() -> Iterator[MetricSample]:
    """MetricSamples of this process's shard cache, for a service that searches."""
    cache = process_cache()
    for source, count in cache.reads.items():
        yield MetricSample("icepuffin_shard_cache_reads_total", {"from": source}, count)
    yield MetricSample("icepuffin_shard_cache_memory_bytes", {}, cache.bytes_in_memory)


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else f"{value:.12g}"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_TO_ESCAPE.sub(lambda match: _ESCAPED[match[0]], text)}"' for name, text in labels.items())
    return "{" + ",".join(pairs) + "}"
