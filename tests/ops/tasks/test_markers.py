"""Markers of finished tasks: named by all that a result depends on, and read back as they were."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icepuffin.ops.storage import RefusedError
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.tasks.markers import find, name_of, record

STORE = LocalStorage()


@dataclass(frozen=True)
class Made:
    """A result of a task."""

    value: Any


def test_each_change_of_an_input_is_another_name() -> None:
    array = np.arange(6, dtype=np.int32)
    inputs: list[list[Any]] = [
        [array, "ab", 1],
        [array.astype(np.uint32), "ab", 1],
        [array.reshape(2, 3), "ab", 1],
        [array + 1, "ab", 1],
        ["ab", array, 1],
        [array, "ab", "1"],
        [array, "ab", 1.0],
        [array, "ab", None],
        [array, "ab"],
        [array, "a", "b", 1],
        [array, b"ab", 1],
    ]
    names = [name_of("shard", values) for values in inputs]
    assert len(set(names)) == len(inputs)
    assert names[0] == name_of("shard", [array.copy(order="F"), "ab", 1])
    assert names[0] != name_of("part", inputs[0])
    assert all(name.startswith("shard-") and name.endswith(".json") for name in names)


def test_what_was_recorded_first_is_the_result_of_every_attempt(tmp_path: Path) -> None:
    path = f"{tmp_path}/marker.json"
    assert find(STORE, path) is None
    assert record(STORE, path, Made("first")) == {"value": "first"}
    assert record(STORE, path, Made("second")) == {"value": "first"}
    assert find(STORE, path) == {"value": "first"}


def test_a_damaged_marker_is_none_and_what_it_records_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each byte of it, a marker that is cut, and one in place of another."""
    path, other = tmp_path / "marker.json", tmp_path / "other.json"
    for marker, made in ((path, "first"), (other, "other")):
        record(STORE, str(marker), Made(made))
    data = path.read_bytes()
    flipped = [data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :] for place in range(len(data))]
    for damaged in (*flipped, data[:-1], data + b" ", b"", other.read_bytes()):
        path.write_bytes(damaged)
        assert record(STORE, str(path), Made(b"again")) == {"value": b"again"}, "an attempt that was second"
        caplog.clear()
        assert find(STORE, str(path)) is None
        assert caplog.messages == [f"{path} is damaged: what it records is made again"]
        assert record(STORE, str(path), Made(b"again")) == find(STORE, str(path)) == {"value": b"again"}
        path.unlink()


def test_a_damaged_marker_stays_where_nothing_may_be_deleted(tmp_path: Path) -> None:
    class WriteOnly(LocalStorage):
        def delete(self, path: str) -> None:
            raise RefusedError(f"{path} may not be deleted")

    marker = tmp_path / "marker.json"
    marker.write_bytes(b"damaged")
    assert find(WriteOnly(), str(marker)) is None
    assert record(WriteOnly(), str(marker), Made("again")) == {"value": "again"}


@pytest.mark.parametrize("value", [b"\x00\xff", np.int64(-7), np.float32(0.5), None, [1, "a"], {"a": b"b"}], ids=repr)
def test_values_come_back_as_they_were(tmp_path: Path, value: Any) -> None:
    assert record(STORE, f"{tmp_path}/marker.json", Made(value))["value"] == value


@pytest.mark.parametrize("array", [np.arange(6, dtype=">u2").reshape(2, 3), np.empty((0, 4), np.float32)])
def test_arrays_keep_type_and_shape_and_may_be_written(tmp_path: Path, array: np.ndarray) -> None:
    (back,) = record(STORE, f"{tmp_path}/marker.json", Made(array.T)).values()
    np.testing.assert_array_equal(back, array.T)
    assert back.dtype == array.dtype
    assert back.flags.writeable


def test_what_json_cannot_hold_is_refused_and_nothing_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="<class 'set'> cannot be recorded"):
        record(STORE, f"{tmp_path}/marker.json", Made({1}))
    assert find(STORE, f"{tmp_path}/marker.json") is None
