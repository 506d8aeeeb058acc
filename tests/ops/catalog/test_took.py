"""What a version took is read as it was noted; what was noted otherwise is passed over."""

import pytest

from icepuffin.ops.catalog.measurements import Took


def test_a_note_is_read_as_it_was_written() -> None:
    note = Took("LocalRunner", 2, 1.25, {"read": 30, "dims": 8}, "built", 0.98765)
    assert Took.parse(note.text()) == note
    assert Took.parse(Took("SparkRunner", 4, 0.5, {"values": 9}).text()) == Took("SparkRunner", 4, 0.5, {"values": 9})


@pytest.mark.parametrize(
    "text",
    ["", "quick", "[]", "7", "{}", '{"runner": "LocalRunner", "threads": 2}',
     '{"runner": "LocalRunner", "threads": 2, "seconds": "long"}',
     '{"runner": "LocalRunner", "threads": 2, "seconds": 1, "read": {}}'],
)  # fmt: skip
def test_a_note_by_hand_or_of_another_release_is_none(text: str) -> None:
    assert Took.parse(text) is None
