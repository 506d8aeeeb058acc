import struct
from typing import Any

import datasketches
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ann_kernels.sketches.kll import DEFAULT_K, KllAccumulator, KllSketch
from icepuffin.puffin.blobs.kll_blob import decode, encode
from icepuffin.puffin.errors import BadBlobError

SHARES = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99]
COUNTS = [0, 1, 2, 512, 513, 16_384, 16_385, 300_000]
LONGS = datasketches.PyLongsSerDe()


def sketch_of(values: np.ndarray, k: int = DEFAULT_K) -> KllSketch:
    accumulator = KllAccumulator(values.dtype, k)
    accumulator.update(values)
    return accumulator.result()


def values_of(count: int, is_float: bool) -> np.ndarray:
    values = np.random.default_rng(count).permutation(count) - count // 2
    return values / 4 if is_float else values.astype(np.int64)


def read_by_datasketches(image: bytes, is_float: bool) -> Any:
    if is_float:
        return datasketches.kll_doubles_sketch.deserialize(image)
    return datasketches.kll_items_sketch.deserialize(image, LONGS)


def written_by_datasketches(sketch: Any, is_float: bool) -> bytes:
    return bytes(sketch.serialize() if is_float else sketch.serialize(LONGS))


@pytest.mark.parametrize("is_float", [True, False])
@pytest.mark.parametrize("count", COUNTS)
def test_datasketches_reads_what_is_written_and_writes_the_same_bytes(count: int, is_float: bool) -> None:
    sketch = sketch_of(values_of(count, is_float))
    image = encode(sketch)
    read = read_by_datasketches(image, is_float)
    assert (read.n, read.k, read.is_empty()) == (count, DEFAULT_K, count == 0)
    if count:
        assert (read.get_min_value(), read.get_max_value()) == (sketch.minimum, sketch.maximum)
        assert read.get_quantiles(SHARES, True) == sketch.quantiles(SHARES).tolist()
        some = sketch.quantiles(SHARES)
        assert [read.get_rank(x, True) for x in some.tolist()] == pytest.approx(sketch.ranks(some).tolist())
    assert written_by_datasketches(read, is_float) == image
    assert encode(decode(image, is_float)) == image


@pytest.mark.parametrize("is_float", [True, False])
@pytest.mark.parametrize("count", [0, 1, 2, 200, 201, 5_000])
def test_what_datasketches_writes_is_read_and_merged(count: int, is_float: bool) -> None:
    other = datasketches.kll_doubles_sketch(200) if is_float else datasketches.kll_items_sketch(200)
    for value in values_of(count, is_float).tolist():
        other.update(value)
    read = decode(written_by_datasketches(other, is_float), is_float)
    assert (read.k, read.count) == (200, count)
    if count:
        assert (read.minimum, read.maximum) == (other.get_min_value(), other.get_max_value())
        assert read.quantiles(SHARES).tolist() == other.get_quantiles(SHARES, True)
    both = KllAccumulator(read.levels[0].dtype, 200)
    both.merge(read)
    both.merge(sketch_of(values_of(9_000, is_float), 200))
    other.merge(read_by_datasketches(encode(sketch_of(values_of(9_000, is_float), 200)), is_float))
    assert both.result().count == other.n == count + 9_000
    assert both.result().ranks([0])[0] == pytest.approx(other.get_rank(0, True), abs=0.05)


def test_an_image_is_the_documented_bytes() -> None:
    head = struct.pack("<HBB", 512, 8, 0)
    assert encode(sketch_of(np.empty(0))) == b"\x02\x01\x0f\x01" + head
    assert encode(sketch_of(np.array([-3]))) == b"\x02\x02\x0f\x06" + head + struct.pack("<q", -3)
    sketch = KllSketch(8, 5, -1.5, 9.0, (np.array([2.0]), np.array([-1.5, 4.0])))
    assert encode(sketch) == b"\x05\x01\x0f\x02" + struct.pack("<HBBqHBBIId", 8, 8, 0, 5, 8, 2, 0, 13, 14, -1.5) + (
        struct.pack("<dddd", 9, 2, -1.5, 4)
    )


def test_the_longest_image_of_a_column_is_of_13_kib() -> None:
    sizes = [len(encode(sketch_of(np.arange(count)))) for count in range(1_000, 2_000_000, 37_000)]
    assert 11_000 < max(sizes) <= 13 << 10


def test_an_unordered_level_0_is_read_where_the_image_says_so() -> None:
    image = FULL[:3] + b"\0" + FULL[4:]
    swapped = image[:44] + image[52:60] + image[44:52] + image[60:]
    assert encode(decode(swapped, False)) == FULL
    with pytest.raises(match="level 0 does not ascend"):
        decode(FULL[:3] + b"\2" + swapped[4:], False)


FULL = encode(KllSketch(8, 8, 1, 9, (np.array([2, 3]), np.array([1, 4, 9]))))
DOUBLES = encode(sketch_of(np.arange(60) / 2, 8))
SINGLE = encode(sketch_of(np.array([7.0])))
EMPTY = encode(sketch_of(np.empty(0)))
NAN = struct.pack("<d", np.nan)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (b"", "at least 8 bytes"),
        (EMPTY[:7], "at least 8 bytes"),
        (EMPTY + b"\0", "0 values from byte 8 on"),
        (SINGLE[:-1], "1 values from byte 8 on need 16 bytes, these are 15"),
        (SINGLE[:8] + NAN, "level 0 does not ascend"),
        (FULL[:19], "at least 20 bytes"),
        (FULL[:-1], "need 84 bytes, these are 83"),
        (FULL + b"\0", "need 84 bytes, these are 85"),
        (FULL[:2] + b"\x03" + FULL[3:], "byte 2: family 3"),
        (FULL[:1] + b"\x03" + FULL[2:], "serial version 3 are not read"),
        (b"\x02" + FULL[1:], "flags 0x2 in an image whose form is empty"),
        (FULL[:3] + b"\x03" + FULL[4:], "flags 0x3 in an image whose form is full"),
        (FULL[:4] + b"\x07\0" + FULL[6:], "k 7, m 8"),
        (FULL[:6] + b"\x04" + FULL[7:], "k 8, m 4"),
        (FULL[:8] + b"\x09" + FULL[9:], "stand for 8 values, the image says 9"),
        (FULL[:15] + b"\x80" + FULL[16:], "the image says -"),
        (FULL[:16] + b"\x09" + FULL[17:], "one of k 9 was merged"),
        (FULL[:18] + b"\0" + FULL[19:], "0 levels"),
        (FULL[:18] + b"\x3e" + FULL[19:], "62 levels"),
        (FULL[:18] + b"\x3d" + FULL[19:], "61 levels in 84 bytes"),
        (FULL[:20] + b"\xff\xff\xff\xff" + FULL[24:], "do not ascend"),
        (FULL[:24] + b"\x11" + FULL[25:], "do not ascend"),
        (FULL[:20] + b"\0\0\0\0" + FULL[24:], "18 values from byte 28"),
        (FULL[:28] + b"\x02" + FULL[29:], "level 1 does not ascend from the smallest"),
        (FULL[:36] + b"\x08" + FULL[37:], "level 1 does not ascend from the smallest"),
        (FULL[:60] + b"\x0a" + FULL[61:], "level 1 does not ascend"),
    ],
)
def test_bytes_that_are_no_sketch_are_refused_with_a_reason(image: bytes, reason: str) -> None:
    with pytest.raises(match=reason):
        decode(image, image[:8] == SINGLE[:8])


def test_no_values_in_the_form_of_many_are_refused() -> None:
    with pytest.raises(match="the image says 0"):
        decode(FULL[:8] + bytes(8) + FULL[16:18] + b"\1\0" + struct.pack("<Iqq", 8, 1, 1), False)


def test_nan_is_refused_wherever_it_stands() -> None:
    starts = range(len(DOUBLES) - 8 * (2 + decode(DOUBLES, True).levels[-1].size), len(DOUBLES), 8)
    for start in starts:
        with pytest.raises(match="does not ascend"):
            decode(DOUBLES[:start] + NAN + DOUBLES[start + 8 :], True)


@given(
    image=st.sampled_from([FULL, DOUBLES, SINGLE, EMPTY]),
    at=st.integers(0, 80),
    octet=st.integers(0, 255),
    cut=st.integers(0, 200),
)
def test_mutilated_images_give_a_sound_sketch_or_the_typed_error(image: bytes, at: int, octet: int, cut: int) -> None:
    at %= len(image)
    for bad in (image[:at] + bytes([octet]) + image[at + 1 :], image[: cut % len(image)], image[cut % len(image) :]):
        for is_float in (True, False):
            try:
                sketch = decode(bad, is_float)
            except BadBlobError:
                continue
            assert encode(decode(encode(sketch), is_float)) == encode(sketch)
            accumulator = KllAccumulator(sketch.levels[0].dtype, sketch.k)
            accumulator.merge(sketch)
            assert accumulator.result().count == sketch.count
