"""Reports become metadata that the UI can plot."""

import base64
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import dagster as dg
import pytest
from dagster_shared.serdes import serialize_value

from icepuffin.assets.metadata import MAX_KEYS, bar_chart, readable_bytes, report_metadata


class Way(StrEnum):
    NEW = "new"


@dataclass(frozen=True)
class Part:
    number: int
    how: str
    recall: float


@dataclass(frozen=True)
class ExpectedCost:
    seconds: float = 1.5
    shards: tuple[Part, ...] = (Part(0, Way.NEW, 0.9),)


@dataclass(frozen=True)
class Report:
    snapshot_id: int = 6170229538723520381
    recall: float = 0.97
    rows: int = 12
    bytes_total: int = 5_000_000_000
    fresh: bool = True
    action: Way = Way.NEW
    path: str | None = None
    unmeasured: float = float("nan")
    ndv: Mapping[str, int] = field(default_factory=lambda: {"id": 7, "name": 3})
    shard_reports: tuple[Part, ...] = (Part(0, "built", 0.98), Part(1, "copied", 0.991234))
    estimate: ExpectedCost = field(default_factory=ExpectedCost)


def test_numbers_are_numbers_and_ids_are_text() -> None:
    result = report_metadata(Report())
    assert result["snapshot_id"] == dg.MetadataValue.text("6170229538723520381")
    assert result["recall"] == dg.MetadataValue.float(0.97)
    assert result["rows"] == dg.MetadataValue.int(12)
    assert result["fresh"] == dg.MetadataValue.bool(True)
    assert result["action"] == dg.MetadataValue.text("new")


def test_numbers_past_32_bits_are_floats_which_the_ui_does_not_wrap() -> None:
    assert report_metadata(Report())["bytes_total"] == dg.MetadataValue.float(5e9)


def test_a_mapping_becomes_an_entry_per_key() -> None:
    found = report_metadata(Report())
    assert (found["ndv/id"].value, found["ndv/name"].value) == (7, 3)


def test_what_is_unknown_is_left_out() -> None:
    assert {"path", "unmeasured"}.isdisjoint(report_metadata(Report()))


def test_parts_become_a_table() -> None:
    records = report_metadata(Report())["shards table"].value.records
    assert [record.data for record in records] == [
        {"number": 0, "how": "built", "recall": 0.98},
        {"number": 1, "how": "copied", "recall": 0.9912},
    ]


def test_labels_group_numbers_and_come_first() -> None:
    labels = {"recall": "recall", "bytes_total": "bytes/total", "ndv": "distinct"}
    found = list(report_metadata(Report(), labels))
    assert found[:4] == ["recall", "bytes/total", "distinct/id", "distinct/name"]
    assert set(found) > {"snapshot_id", "rows", "fresh"}


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (1023, "1,023 bytes"), (15_230, "14.9 KiB"), (5_000_000_000, "4.7 GiB")]
)
def test_bytes_are_readable(count: int, text: str) -> None:
    assert readable_bytes(count) == text


def test_the_estimate_stands_beside_what_it_took() -> None:
    found = report_metadata(Report())
    assert found["estimate/seconds"] == dg.MetadataValue.float(1.5)
    assert [record.data["how"] for record in found["estimate/shards"].value.records] == ["new"]


def test_everything_can_be_written_into_the_event_log() -> None:
    assert serialize_value(dict(report_metadata(Report())))


def test_a_wide_table_stays_under_the_limit_of_the_ui() -> None:
    assert len(report_metadata(Report(ndv={f"column {i}": i for i in range(500)}))) == MAX_KEYS


def test_a_chart_is_a_small_inline_png() -> None:
    chart = bar_chart("distinct values", ["id", "name"], [60_000, 7], log=True)
    text = chart.value
    assert text.startswith("![distinct values](data:image/png;base64,")
    image = base64.b64decode(text.split("base64,")[1].rstrip(")"))
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", image[16:24])
    assert (width, height) == (480, 99)
    assert len(image) < 20_000
