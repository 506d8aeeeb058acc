"""Metrics are text that Prometheus reads, with the numbers of the table's metadata."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import index_versions, tagged_version
from icepuffin.ops.binding.measurements import Measurement
from icepuffin.ops.cache import process_cache
from icepuffin.ops.errors import CatalogUnavailableError
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.metrics import (
    ABOUT,
    MetricSample,
    cache_samples,
    exposition,
    index_samples,
    metrics,
    table_samples,
)
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.storage.local_storage import to_path
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, index_head

LINE = re.compile(r'[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\["\\n])*"(,[a-z]+="(?:[^"\\\n]|\\["\\n])*")*\})? -?[0-9.e+-]+')
"""A sample as https://prometheus.io/docs/instrumenting/exposition_formats has it, without a time"""


def test_samples_of_one_metric_stand_together_under_its_help_and_type() -> None:
    name = "icepuffin_index_versions"
    reads = "icepuffin_shard_cache_reads_total"
    samples = [
        MetricSample(name, {"index": "a"}, 3),
        MetricSample(reads, {}, 2),
        MetricSample(name, {"index": "b"}, 1.5e12),
    ]
    assert exposition(samples).splitlines() == [
        f"# HELP {name} {ABOUT[name]}",
        f"# TYPE {name} gauge",
        f'{name}{{index="a"}} 3',
        f'{name}{{index="b"}} 1.5e+12',
        f"# HELP {reads} {ABOUT[reads]}",
        f"# TYPE {reads} counter",
        f"{reads} 2",
    ]


def test_names_with_quotes_backslashes_and_line_ends_are_escaped() -> None:
    text = exposition([MetricSample("icepuffin_table_up", {"table": 'a"b\\c\nd'}, 1)])
    line = text.splitlines()[-1]
    assert line == r'icepuffin_table_up{table="a\"b\\c\nd"} 1'
    assert LINE.fullmatch(line)


def test_numbers_of_bytes_and_times_are_whole() -> None:
    numbers = (4_183_337_211, 1_795_997_123.25, 0.9871, float("inf"))
    lines = exposition(MetricSample("icepuffin_index_bytes", {}, number) for number in numbers).splitlines()[2:]
    assert [line.split()[1] for line in lines] == ["4183337211", "1795997123.25", "0.9871", "+Inf"]


def test_the_bytes_of_an_index_are_those_of_its_file_and_of_all_its_packs(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_packs, "PACK_BYTES", 1)
    monkeypatch.setattr(index_packs, "MAX_PACK_BYTES", 1)
    table = table_factory()
    table.append(make_rows(0, 300))
    index_head(table)
    (version,) = index_versions(table.refresh(), "e")
    assert len(version.packs) > 1
    sizes = {
        "file": to_path(version.puffin_path).stat().st_size,
        "packs": sum(to_path(pack.path).stat().st_size for pack in version.packs),
    }
    samples = index_samples(table, DEFINITION, "main", {})
    assert {it.labels["in"]: it.value for it in samples if it.metric == "icepuffin_index_bytes"} == sizes


def test_the_cache_of_a_process_is_counted_by_where_its_shards_came_from() -> None:
    cache = process_cache()
    lines = [line for line in exposition(cache_samples()).splitlines() if not line.startswith("#")]
    assert lines == [
        *(
            f'icepuffin_shard_cache_reads_total{{from="{source}"}} {cache.reads[source]}'
            for source in ("memory", "disk", "store")
        ),
        f"icepuffin_shard_cache_memory_bytes {cache.bytes_in_memory}",
    ]
    assert all(LINE.fullmatch(line) for line in lines)


def test_a_table_is_up_unless_its_samples_cannot_be_taken() -> None:
    labels, told, size = {"table": "a"}, list[str](), MetricSample("icepuffin_index_versions", {}, 3)

    def away() -> list[MetricSample]:
        raise CatalogUnavailableError("a: the catalog does not answer")

    up = [MetricSample("icepuffin_table_up", labels, number) for number in (0, 1)]
    assert [*table_samples(labels, lambda: [size], told.append)] == [up[1], size]
    assert [*table_samples(labels, away, told.append)] == [up[0]]
    assert told == ["a: the catalog does not answer"]


def test_an_index_whose_answers_are_exact_has_no_recall(table_factory: Callable[..., Table]) -> None:
    balls = replace(DEFINITION, method="centroid")
    table = table_factory()
    table.append(make_rows(0, 300))
    index_head(table, balls)
    lines = exposition(index_samples(table.refresh(), balls, "main", {"table": "t"})).splitlines()
    assert any(line.startswith('icepuffin_index_run_seconds{table="t",index="e"} ') for line in lines)
    assert not any("recall" in line for line in lines)


def test_an_index_without_a_version_is_as_far_behind_as_the_first_snapshot(table_factory: Callable[..., Table]) -> None:
    table = table_factory()
    table.append(make_rows(0, 10))
    create_index(table, DEFINITION)
    (snapshot,) = table.refresh().metadata.snapshots
    samples = index_samples(table, DEFINITION, "main", {}, now=snapshot.timestamp_ms / 1000 + 7_260)
    behind = {sample.metric: sample.value for sample in samples}
    assert behind["icepuffin_index_versions"] == 0
    assert behind["icepuffin_index_versions_behind"] == 1
    assert round(behind["icepuffin_index_seconds_behind"]) == 7_260


def test_samples_of_an_index_are_of_its_versions_and_of_the_ref_that_it_follows(
    table_factory: Callable[..., Table],
) -> None:
    table = table_factory()
    create_index(table, DEFINITION)
    for first in (0, 300):
        table.refresh().append(make_rows(first, first + 300))
        index_head(table)
    table.manage_snapshots().create_branch(table.metadata.current_snapshot_id or 0, "audit").commit()
    table.append(make_rows(600, 610))
    for ref, behind in (("audit", "0"), ("main", "1"), ("gone", "+Inf")):
        lines = metrics(table.refresh(), ref=ref).splitlines()
        samples = {line.partition("{")[0]: line.rsplit(" ", 1)[1] for line in lines if not line.startswith("#")}
        assert samples["icepuffin_index_versions_behind"] == behind
        assert (samples["icepuffin_index_seconds_behind"] == "+Inf") == (ref == "gone")
        assert samples["icepuffin_index_versions"] == "2"
    assert open_index(table, DEFINITION, storage=STORAGE).row_count == 610
    assert f"icepuffin_shard_cache_memory_bytes {process_cache().bytes_in_memory:.12g}\n" in metrics()
    assert process_cache().bytes_in_memory > 0
    version = tagged_version(table, "e")
    assert version is not None
    measured = Measurement.parse(version.measurement)
    assert measured is not None
    values = {sample.metric: sample.value for sample in index_samples(table, DEFINITION, "main", {})}
    assert values["icepuffin_index_published_timestamp_seconds"] == version.timestamp_ms / 1000
    assert values["icepuffin_index_run_seconds"] == measured.seconds
    assert values["icepuffin_index_recall"] == measured.recall
