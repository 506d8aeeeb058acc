"""Metrics are text that Prometheus reads, with the numbers of the table's metadata."""

import re

from icepuffin.ops.cache import process_cache
from icepuffin.ops.metrics import ABOUT, MetricSample, cache_samples, exposition

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
