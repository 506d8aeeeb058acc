"""A measurement is read as it was written; another text in its place is ignored."""

from dataclasses import replace

import pytest

from icepuffin.ops.catalog.measurements import Measurement
from icepuffin.ops.model import Action


def test_a_measurement_is_read_as_it_was_written() -> None:
    measurement = Measurement("LocalRunner", 2, 1.25, {"read": 30, "dims": 8}, Action.BUILT, 0.98765)
    assert Measurement.parse(measurement.text()) == measurement
    on_spark = Measurement("SparkRunner", 4, 0.5, {"values": 9})
    assert Measurement.parse(on_spark.text()) == on_spark


def test_seconds_of_an_action_that_a_later_release_has_are_read() -> None:
    measurement = Measurement("LocalRunner", 2, 1.25, {"read": 30}, Action.BUILT)
    assert Measurement.parse(measurement.text().replace("built", "grown")) == replace(measurement, action=None)


@pytest.mark.parametrize(
    "text",
    ["", "quick", "[]", "7", "{}", '{"runner": "LocalRunner", "threads": 2}',
     '{"runner": "LocalRunner", "threads": 2, "seconds": "long"}',
     '{"runner": "LocalRunner", "threads": 2, "seconds": 1, "read": {}}'],
)  # fmt: skip
def test_text_of_another_form_is_no_measurement(text: str) -> None:
    assert Measurement.parse(text) is None
