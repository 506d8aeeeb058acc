"""docs/formats.md holds: what this project writes is read by a reader made from that text alone."""

import io

import numpy as np
import pytest

from icepuffin.ann_kernels.codes import cells
from icepuffin.ann_kernels.codes.cells import CodedCell
from icepuffin.puffin import PuffinWriter
from icepuffin.puffin.blobs import (
    addresses_blob,
    attributes_blob,
    centroid_blob,
    deletion_vector_blob,
    included_columns_blob,
    routing_blob,
    shard_blob,
    theta_blob,
)
from icepuffin.puffin.types import BlobType
from tests.conformance import reader
from tests.naive import rotated as naive
from tests.puffin import samples

POSITIONS = np.concatenate([np.arange(70_000), np.arange(70_000, 2**21, 7), [2**33, 2**40 + 5]])


def test_one_file_with_every_blob_is_read_through_the_text() -> None:
    sink = io.BytesIO()
    writer = PuffinWriter(sink)
    sketch = theta_blob.ThetaSketch(2**62, np.array([5, 2**40, 2**61], np.uint64))
    for kind, data, codec in (
        (BlobType.CENTROID, centroid_blob.encode(samples.centroid()), "zstd"),
        (BlobType.ROUTING, routing_blob.encode(samples.routing()), "zstd"),
        (BlobType.SHARD, b"".join(shard_blob.encode(samples.shard())), None),
        (BlobType.ADDRESSES, addresses_blob.encode(np.array([4, 4, 9], np.uint32), np.array([2**35, 0, 7])), None),
        (BlobType.DELETION_VECTOR, deletion_vector_blob.encode(POSITIONS), None),
        (BlobType.THETA, theta_blob.encode(sketch), "lz4"),
    ):
        writer.add_blob(kind, fields=[3], snapshot_id=1, sequence_number=2, data=data, codec=codec, align=64)
    writer.finish({"a": "b"})
    blobs, properties = reader.puffin(sink.getvalue())
    payload = {meta["type"]: data for meta, data in blobs}
    assert properties == {"a": "b"}
    assert reader.theta(payload[BlobType.THETA]) == (2**62, [5, 2**40, 2**61])
    assert reader.deletion_vector(payload[BlobType.DELETION_VECTOR]) == POSITIONS.tolist()
    check_centroid(reader.centroid(payload[BlobType.CENTROID]))
    check_routing(reader.routing(payload[BlobType.ROUTING]))
    assert reader.addresses(payload[BlobType.ADDRESSES]) == ([4, 4, 9], [2**35, 0, 7])
    check_shard(reader.shard(payload[BlobType.SHARD], vectors_of(samples.shard())), samples.shard())


def test_attributes_are_read_through_the_text() -> None:
    read = reader.attributes(attributes_blob.encode(samples.attributes()))
    texts = ["a", None, "bbb", "bbb", "ß"]
    assert read == {"field_id": 5, "files": {0: texts, 2: "too many", 3: [7] * 300}}


def test_lists_are_read_through_the_text() -> None:
    read = reader.attributes(attributes_blob.encode(samples.lists()))
    some = [["a", "b"], None, ["b", None], [], ["a"]]
    assert read == {"field_id": 5, "files": {0: some, 2: "too many", 3: [[7]] * 4}}


def test_included_columns_are_read_through_the_text() -> None:
    texts = ["a", None, "ß" * 90, ""]
    entry, values = samples.included_values(texts, 2)
    read = reader.included(
        included_columns_blob.encode(
            included_columns_blob.IncludedBlob(5, (entry.moved(2, 7), samples.included().entries[1]))
        )
    )
    assert (read["field_id"], read["files"].keys(), read["files"][2]) == (5, {0, 2}, "too long")
    assert read["files"][0] == ("string", 4, 2, 0, 2, 7, len(values), entry.checksum)
    assert reader.included_values(read["files"][0], bytes(7) + values + bytes(9)) == texts


@pytest.mark.parametrize("vectors", [None, "f4", "f2"])
@pytest.mark.parametrize("pq_bits", [0, 4, 8])
@pytest.mark.parametrize("count", [0, 1, 300])
def test_shards_of_every_form_are_read_through_the_text(count: int, vectors: str | None, pq_bits: int) -> None:
    value = samples.shard(count, vectors=vectors, pq_bits=pq_bits)
    data, stored = b"".join(shard_blob.encode(value)), vectors_of(value)
    check_shard(reader.shard(data, stored), value)
    if stored:
        with pytest.raises(reader.RefusedError, match="number of vectors"):
            reader.shard(data, stored[:-8])


def vectors_of(value: shard_blob.Shard) -> bytes:
    """The vectors of a sample, which lie apart from its blob."""
    return b"" if value.vectors is None else bytes(shard_blob.stored_vectors(value.vectors))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("vectors", [None, "f4", "f2"])
def test_cells_are_read_through_the_text(bits: int, vectors: str | None) -> None:
    value = samples.shard_of_cells(50, dims=7, bits=bits, vectors=vectors)
    read = reader.shard(b"".join(shard_blob.encode(value)), vectors_of(value))
    check_shard(read, value)
    assert value.cells is not None
    directory = value.cells.directory
    assert (read["cells"]["bits"], read["cells"]["recall"]) == (bits, 0.75)
    expected = directory.origin + directory.scales[:, None] * directory.centers
    assert np.allclose(read["cells"]["centers"], expected)
    for number in range(len(directory.counts)):
        cell = value.cells.cell(number)
        vectors_of_cell = cells.decode(CodedCell(cell.lows, cell.steps, cell.codes), bits)
        assert all(
            np.allclose(read["cells"]["vectors"][node], own)
            for node, own in zip(cell.nodes.tolist(), vectors_of_cell, strict=True)
        )


@pytest.mark.parametrize("bits", [4, 5, 8])
@pytest.mark.parametrize(("count", "dims"), [(0, 8), (3, 130)])
def test_shards_of_rotated_codes_are_read_through_the_text(bits: int, count: int, dims: int) -> None:
    value = samples.coded_shard(bits, count, dims=dims)
    data = b"".join(shard_blob.encode(value))
    read = reader.shard(data)
    check_shard(read, value)
    assert value.codes is not None
    codes, again = read["rotated"], shard_blob.decode(data).codes
    assert again is not None
    assert (codes["seed"], again.seed, again.bits) == (2**63 + 7, 2**63 + 7, bits)
    for name in ("center", "terms", "high", "low"):
        assert np.array_equal(getattr(again, name), getattr(value.codes, name))
    assert np.array_equal(codes["center"], value.codes.center)
    assert np.array_equal(codes["terms"], value.codes.terms)
    wide = dims + -dims % 128
    own = naive.levels(value.codes.high, value.codes.low, bits, wide)
    assert np.array_equal(codes["levels"], own - (2**bits - 1) / 2)


def test_a_section_of_many_frames_is_read_through_the_text() -> None:
    value = samples.shard(20_000, degree=64, vectors=None, pq_bits=0)
    data = b"".join(shard_blob.encode(value))
    assert reader.shard(data)["neighbors"][-1] == value.neighbors[-1][: value.degrees[-1]].tolist()


def check_centroid(read: dict) -> None:  # type: ignore[type-arg]
    value = samples.centroid()
    assert (read["dims"], read["metric"], tuple(read["files"])) == (5, 0, value.files)
    for entry, vector, file, distance in zip(
        read["entries"], value.centroids, value.file_ordinals, value.max_distances, strict=True
    ):
        assert np.array_equal(entry[0], vector)
        assert entry[1:] == (file, distance)


def check_routing(read: dict) -> None:  # type: ignore[type-arg]
    value = samples.routing()
    assert (read["base"], read["build_id"], read["definition"]) == (
        value.base_snapshot_id,
        value.build_id,
        value.definition,
    )
    assert np.array_equal(read["codebook"], value.codebook)
    assert read["to_shard"].tolist() == [0, 1, 1, 0]
    assert read["shards"][0] == (100, 97, 5, 0.75, 12_345, bytes(range(32)), [1, 50, 99])
    assert read["files"][1] == (0, 3, 0, bytes(32), "data/gone-é.parquet")
    later = reader.routing(routing_blob.encode(samples.moved_routing()))
    assert (read["packs"], read["addresses"]) == ([(0, 0)] * 2, [(0, bytes(32))] * 2)
    of_runs = reader.routing(routing_blob.encode(samples.routing_of_runs()))
    assert (of_runs["packs"], of_runs["addresses"]) == (later["packs"], later["addresses"])
    assert (read["runs"], later["runs"], of_runs["runs"][0]) == ([[], []], [[], []], [])
    assert [run[:4] for run in of_runs["runs"][1]] == [(2, 2**33 + 128, 80, 4), (0, 64, 20, 1), (0, 84, 100, 5)]
    assert [run[4][0] for run in of_runs["runs"][1]] == [1, 2, 3]
    assert (later["packs"], later["addresses"]) == ([(0, 0), (2, 2**33 + 64)], [(0, bytes(32)), (77, bytes([9]) * 32)])


def check_shard(read: dict, value: shard_blob.Shard) -> None:  # type: ignore[type-arg]
    assert (read["dims"], read["degree"], read["search_list"], read["metric"], read["medoid"], read["alpha"]) == (
        value.dims,
        value.max_degree,
        value.search_list,
        value.metric,
        value.medoid,
        value.alpha,
    )
    rows = zip(value.neighbors, value.degrees, strict=True)
    assert read["neighbors"] == [row[:degree].tolist() for row, degree in rows]
    assert read["slots"] == value.file_slots.tolist()
    assert read["rows"] == value.row_positions.tolist()
    assert read["hashes"].tolist() == value.content_hashes.tolist()
    for name, array in (("codebook", value.pq_codebook), ("codes", value.pq_codes), ("vectors", value.vectors)):
        assert (read[name] is None) == (array is None)
        assert array is None or np.array_equal(read[name], array)
