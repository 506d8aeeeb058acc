import struct

import datasketches
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.puffin.blobs.frequent_items_blob import (
    CAPACITY,
    LG_TABLE,
    FrequentItems,
    decode,
    encode,
)
from icepuffin.puffin.errors import BadBlobError

ALL = datasketches.frequent_items_error_type.NO_FALSE_NEGATIVES


@pytest.mark.parametrize("count", [0, 1, 2, 6, 7, 100, CAPACITY])
def test_datasketches_reads_what_is_written(count: int) -> None:
    bounds = {f"värde {i}": i + 1 for i in range(count)}
    total = sum(bounds.values()) + 10 * count
    read = datasketches.frequent_strings_sketch.deserialize(encode(FrequentItems(total, 3 * bool(count), bounds)))
    assert (read.num_active_items, read.total_weight, read.is_empty()) == (count, total, count == 0)
    listed = {text: (low, estimate, up) for text, estimate, low, up in read.get_frequent_items(ALL)}
    assert listed == {text: (low, low + 3, low + 3) for text, low in bounds.items()}
    read.update("another", 1_000)  # its table has room, or makes it
    assert read.get_upper_bound("another") >= 1_000


@pytest.mark.parametrize("distinct", [0, 1, 5, 384, 385, 5_000])
def test_what_datasketches_writes_is_read(distinct: int) -> None:
    sketch = datasketches.frequent_strings_sketch(LG_TABLE)
    for i in range(distinct):
        sketch.update(f"värde {i}", 1 + i % 7)
    read = decode(sketch.serialize())
    assert read.total == sketch.total_weight
    listed = [(text, low, up) for text, _, low, up in sketch.get_frequent_items(ALL, 0)] if distinct else []
    assert sorted(listed) == sorted((text, low, low + read.offset) for text, low in read.lower_bounds.items())
    assert decode(encode(read)) == read


def test_an_image_is_the_documented_bytes() -> None:
    assert encode(FrequentItems(0, 0, {})).hex() == "01010a0903050000"
    image = struct.pack("<BBBBBBHIIqqqq", 4, 1, 10, 9, 3, 0, 0, 2, 0, 12, 1, 7, 3)
    assert encode(FrequentItems(12, 1, {"a": 7, "ü": 3})) == image + b"\1\0\0\0a" + b"\2\0\0\0\xc3\xbc"


IMAGE = encode(FrequentItems(12, 1, {"a": 7, "ü": 3}))
EMPTY = encode(FrequentItems(0, 0, {}))


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (b"", "at least 8 bytes"),
        (IMAGE[:7], "at least 8 bytes"),
        (EMPTY + b"\0", "1 preamble longs"),
        (IMAGE[:31], "in 31 bytes"),
        (IMAGE[:5] + b"\5" + IMAGE[6:], "flags 0x5"),
        (b"\3" + IMAGE[1:], "3 preamble longs"),
        (IMAGE[:1] + b"\2" + IMAGE[2:], "serial version 2"),
        (IMAGE[:2] + b"\3" + IMAGE[3:], "family 3"),
        (IMAGE[:3] + b"\x0a" + IMAGE[4:], r"table 2\^10"),
        (IMAGE[:8] + b"\xff\xff\xff\xff" + IMAGE[12:], "4294967295 items"),
        (IMAGE[:8] + struct.pack("<I", CAPACITY + 1) + IMAGE[12:] + bytes(9_000), "385 items"),
        (IMAGE[:8] + b"\3" + IMAGE[9:], "3 items in 59 bytes"),
        (IMAGE[:16] + bytes(8) + IMAGE[24:], "0 values"),
        (IMAGE[:16] + b"\x0a" + IMAGE[17:], "10 values, offset 1"),
        (IMAGE[:24] + b"\xff" * 8 + IMAGE[32:], "offset -1"),
        (IMAGE[:32] + bytes(8) + IMAGE[40:], "do not fit"),
        (IMAGE[:48] + b"\xff\xff\xff\xff" + IMAGE[52:], "a text of -1 bytes"),
        (IMAGE[:48] + b"\x09" + IMAGE[49:], "a text of 9 bytes"),
        (IMAGE[:-1], "a text of 2 bytes in 58 bytes"),
        (IMAGE + b"\0", "1 bytes are left over"),
        (IMAGE[:-2] + b"\xff\xff", "utf-8"),
        (IMAGE[:53] + IMAGE[48:53], "a text is there twice"),
    ],
)
def test_bytes_that_are_no_sketch_are_refused_with_a_reason(image: bytes, reason: str) -> None:
    with pytest.raises(match=reason):
        decode(image)


@given(at=st.integers(0, len(IMAGE) - 1), octet=st.integers(0, 255), cut=st.integers(0, len(IMAGE)))
def test_mutilated_images_give_a_sound_sketch_or_the_typed_error(at: int, octet: int, cut: int) -> None:
    for image in (IMAGE[:at] + bytes([octet]) + IMAGE[at + 1 :], IMAGE[:cut], IMAGE[cut:]):
        try:
            items = decode(image)
        except BadBlobError:
            continue
        assert decode(encode(items)) == items
