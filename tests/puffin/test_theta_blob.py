import struct
from pathlib import Path

import datasketches
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator, union
from icepuffin.ann_kernels.sketches.theta_estimates import estimate
from icepuffin.puffin import BytesSource, PuffinReader
from icepuffin.puffin.blobs.theta_blob import MAX_THETA, SEED_HASH, ThetaImageError, ThetaSketch, decode, encode
from icepuffin.puffin.types import BlobType

FOREIGN = Path(__file__).parent.parent / "conformance" / "fixtures" / "puffin" / "extra"


def sketch_of(start: int, stop: int) -> ThetaSketch:
    accumulator = ThetaAccumulator()
    accumulator.update_fixed(np.arange(start, stop))
    return ThetaSketch(*accumulator.result())


def sketch_of_datasketches(start: int, stop: int) -> datasketches.update_theta_sketch:
    sketch = datasketches.update_theta_sketch(12)
    for value in range(start, stop):
        sketch.update(value)
    return sketch


@pytest.mark.parametrize("count", [0, 1, 2, 4096, 4097, 50_000])
def test_datasketches_reads_what_is_written(count: int) -> None:
    sketch = sketch_of(0, count)
    read = datasketches.compact_theta_sketch.deserialize(encode(sketch))
    assert read.is_empty() == (count == 0)
    assert read.is_ordered()
    assert read.theta64 == sketch.theta
    assert list(read) == sketch.hashes.tolist()
    assert read.get_estimate() == pytest.approx(estimate(sketch.theta, len(sketch.hashes)))


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("count", [0, 1, 2, 4096, 20_000])
def test_what_datasketches_writes_is_read(count: int, ordered: bool) -> None:
    other_rows = sketch_of_datasketches(0, count)
    read = decode(other_rows.compact(ordered).serialize())
    assert read.theta == other_rows.theta64
    assert read.hashes.tolist() == sorted(other_rows.compact())
    sketch = sketch_of(0, count)
    both = min(read.theta, sketch.theta)
    assert [h for h in read.hashes.tolist() if h < both] == [h for h in sketch.hashes.tolist() if h < both]


def test_theta_union_of_datasketches_unites_its_sketches_with_ours() -> None:
    unite = datasketches.theta_union(12)
    unite.update(sketch_of_datasketches(0, 60_000))
    unite.update(datasketches.compact_theta_sketch.deserialize(encode(sketch_of(40_000, 90_000))))
    result = unite.get_result()
    assert result.get_lower_bound(3) < 90_000 < result.get_upper_bound(3)
    other = decode(sketch_of_datasketches(0, 60_000).compact().serialize())
    sketch = sketch_of(40_000, 90_000)
    ours = union([(other.theta, other.hashes), (sketch.theta, sketch.hashes)])
    assert (ours[0], ours[1].tolist()) == (result.theta64, sorted(result))


@pytest.mark.parametrize("name", ["bodo-nyc_example_puffin.stats", "pyiceberg-pr3574-theta-sketches.puffin"])
def test_images_of_other_engines_are_read_and_written_back_byte_for_byte(name: str) -> None:
    reader = PuffinReader(BytesSource((FOREIGN / name).read_bytes()))
    blobs = reader.footer.of_type(BlobType.THETA)
    assert len(blobs) == 3
    for blob in blobs:
        image = reader.read_blob(blob)
        sketch = decode(image)
        assert len(sketch.hashes) == int(blob.properties["ndv"])
        assert encode(sketch) == image


def test_an_exact_image_is_the_documented_bytes() -> None:
    image = encode(ThetaSketch(MAX_THETA, np.array([5, 7], np.uint64)))
    assert image == struct.pack("<BBBBBBHIfQQ", 2, 3, 3, 0, 0, 0x1A, 0x93CC, 2, 1.0, 5, 7)
    image = encode(ThetaSketch(2**40, np.array([5], np.uint64)))
    assert image == struct.pack("<BBBBBBHIfQQ", 3, 3, 3, 0, 0, 0x1A, 0x93CC, 1, 1.0, 2**40, 5)
    assert (
        encode(ThetaSketch(MAX_THETA, np.array([9], np.uint64))).hex() == "0103030000" + "3acc93" + "0900000000000000"
    )
    assert encode(ThetaSketch(MAX_THETA, np.empty(0, np.uint64))).hex() == "010303" + "00001e0000"


@pytest.mark.parametrize("family", [1, 2])
def test_an_updatable_sketch_is_read_from_its_hash_table(family: int) -> None:
    table = np.zeros(16, np.uint64)
    table[[3, 5, 9]] = [900, 40, 2**50]
    head = struct.pack("<BBBBBBHIfQ", 3 | 3 << 6, 3, family, 3, 4, 0, SEED_HASH, 2, 1.0, 2**50)
    assert decode(head + table.tobytes()) == ThetaSketch(2**50, np.array([40, 900], np.uint64))
    with pytest.raises(ThetaImageError, match="the table holds 2"):
        decode(head[:8] + b"\x07" + head[9:] + table.tobytes())
    with pytest.raises(ThetaImageError, match="a table of"):
        decode(head + table.tobytes()[:-8])


IMAGE = encode(ThetaSketch(2**50, np.arange(1, 9, dtype=np.uint64)))


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (b"", "at least 8 bytes"),
        (IMAGE[:7], "at least 8 bytes"),
        (IMAGE[:-1], "8 hashes from byte 24 on need 88 bytes"),
        (IMAGE + b"\0", "need 88 bytes"),
        (IMAGE[:8] + b"\xff\xff\xff\xff" + IMAGE[12:], "4294967295 hashes"),
        (b"\x07" + IMAGE[1:], "7 preamble longs"),
        (IMAGE[:1] + b"\x04" + IMAGE[2:], "bit-packed"),
        (IMAGE[:1] + b"\x09" + IMAGE[2:], "serial version 9"),
        (IMAGE[:2] + b"\x07" + IMAGE[3:], "family 7"),
        (IMAGE[:5] + b"\x1b" + IMAGE[6:], "big-endian"),
        (IMAGE[:6] + b"\0\0" + IMAGE[8:], "seed hash"),
        (IMAGE[:16] + bytes(8) + IMAGE[24:], "theta 0 is not in"),
        (IMAGE[:16] + bytes(7) + b"\x80" + IMAGE[24:], "theta 9223372036854775808 is not in"),
        (IMAGE[:16] + b"\x05" + bytes(7) + IMAGE[24:], "not below theta 5"),
        (IMAGE[:24] + bytes(8) + IMAGE[32:], "a hash is 0"),
        (IMAGE[:32] + IMAGE[24:32] + IMAGE[40:], "do not ascend"),
    ],
)
def test_bytes_that_are_no_sketch_are_refused_with_a_reason(image: bytes, reason: str) -> None:
    with pytest.raises(ThetaImageError, match=reason):
        decode(image)


@given(at=st.integers(0, len(IMAGE) - 1), octet=st.integers(0, 255), cut=st.integers(0, len(IMAGE)))
def test_mutilated_images_give_a_valid_sketch_or_the_typed_error(at: int, octet: int, cut: int) -> None:
    for image in (IMAGE[:at] + bytes([octet]) + IMAGE[at + 1 :], IMAGE[:cut], IMAGE[cut:]):
        try:
            sketch = decode(image)
        except ThetaImageError:
            continue
        assert decode(encode(sketch)) == sketch


def test_a_sketch_cannot_be_made_of_invalid_hashes() -> None:
    for hashes in (np.array([1.0]), np.array([[1]], np.uint64)):
        with pytest.raises(ThetaImageError, match=r"u64\[N\]"):
            ThetaSketch(MAX_THETA, hashes)
    with pytest.raises(TypeError, match="unhashable"):
        hash(ThetaSketch(MAX_THETA, np.empty(0, np.uint64)))
    assert ThetaSketch(MAX_THETA, np.empty(0, np.uint64)) != "a sketch"


def test_a_hash_is_below_theta_and_the_largest_theta_is_that_of_a_sketch_that_dropped_none() -> None:
    hashes = np.array([4], np.uint64)
    assert ThetaSketch(5, hashes).hashes.tolist() == [4]
    with pytest.raises(ThetaImageError, match="a hash is 0 or not below theta 4"):
        ThetaSketch(4, hashes)
    assert ThetaSketch(MAX_THETA, hashes).exact
    for theta in (0, MAX_THETA + 1):
        with pytest.raises(ThetaImageError, match="is not in 1"):
            ThetaSketch(theta, hashes)
