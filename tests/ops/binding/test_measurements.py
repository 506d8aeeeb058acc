"""A measurement is read as it was written; another text in its place is ignored."""

from dataclasses import replace

import pytest

from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.binding.measurements import Measurement, measured_versions, source_in_words
from icepuffin.ops.model import Action
from icepuffin.ops.table.blob_kind import BlobKind


def test_a_measurement_is_read_as_it_was_written() -> None:
    measurement = Measurement("LocalRunner", 2, 1.25, {"read": 30, "dims": 8}, Action.BUILT, 0.98765)
    assert Measurement.parse(measurement.text()) == measurement
    assert replace(measurement, amounts={**measurement.amounts, "hashed": 0}).text() == measurement.text()
    on_spark = Measurement("SparkRunner", 4, 0.5, {"values": 9})
    assert Measurement.parse(on_spark.text()) == on_spark


def test_the_text_is_short_and_has_the_amounts_behind_the_rest() -> None:
    text = Measurement("LocalRunner", 2, 1.23456, {"read": 30}, Action.BUILT, 0.987654321).text()
    assert text == "action=built runner=LocalRunner threads=2 seconds=1.235 recall=0.98765 read=30"
    without = Measurement.parse(text.replace("threads=2", "threads=0").replace("recall=0.98765 ", ""))
    assert without == Measurement("LocalRunner", 1, 1.235, {"read": 30}, Action.BUILT)


def test_versions_without_a_measurement_are_left_out() -> None:
    measurement = Measurement("LocalRunner", 2, 1.25, {})
    bound = [
        DerivedVersion(BlobKind.INDEX, "e", number, 1, "", "p", 1, 1, 1, (), text)
        for number, text in enumerate(["", measurement.text(), "quick", measurement.text()])
    ]
    assert list(measured_versions(bound)) == [(bound[1], measurement), (bound[3], measurement)]
    assert [source_in_words("version", count) for count in (1, 2)] == ["the last version", "the last 2 versions"]


def test_seconds_of_an_action_that_a_later_release_has_are_read() -> None:
    measurement = Measurement("LocalRunner", 2, 1.25, {"read": 30}, Action.BUILT)
    assert Measurement.parse(measurement.text().replace("built", "grown")) == replace(measurement, action=None)


@pytest.mark.parametrize(
    "text",
    ["", "quick", "[]", "7", "{}", "runner=LocalRunner threads=2", "runner=LocalRunner threads=2 seconds=long",
     "runner=LocalRunner threads=2 seconds=nan", "runner=LocalRunner threads=2.5 seconds=1",
     "runner=LocalRunner threads=2 seconds=1 read=", "runner=LocalRunner threads=2 seconds=1 recall=inf",
     "runner=LocalRunner threads=2 seconds=-1", "runner=LocalRunner threads=2 seconds=1e9",
     "runner=LocalRunner threads=1 seconds=1 copied=-500000000 built=-100000000",
     "runner=LocalRunner threads=2 seconds=1 read=1=2", "runner=LocalRunner threads=2  seconds=1",
     '{"action":"built","runner":"LocalRunner","threads":2,"seconds":1.0,"read":30}'],
)  # fmt: skip
def test_text_of_another_form_is_no_measurement(text: str) -> None:
    assert Measurement.parse(text) is None
