"""Small blobs of every type, made of a seed."""

import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from icepuffin.puffin.blobs import cells_blob as cell_blob
from icepuffin.puffin.blobs.attributes_blob import (
    AttributeBlob,
    AttributeEntry,
    FileTokens,
    FileValues,
    entry_of,
    list_entry_of,
)
from icepuffin.puffin.blobs.cells_blob import Cell
from icepuffin.puffin.blobs.centroid_blob import CentroidIndex
from icepuffin.puffin.blobs.included_columns_blob import (
    BlockEncoder,
    IncludedBlob,
    IncludedEntry,
    ValueBlock,
    raw_block,
)
from icepuffin.puffin.blobs.routing_blob import AddressesEntry, CoveredFile, Routing, ShardEntry, VectorRun
from icepuffin.puffin.blobs.shard_blob import Shard, ShardCodes, stored_vectors
from icepuffin.puffin.blobs.shard_header import ALIGNMENT, read_header, start_of_sections
from icepuffin.puffin.blobs.shard_sections import SectionEntry
from icepuffin.puffin.sources import BytesSource


def shard(count: int = 50, *, dims: int = 8, degree: int = 6, vectors: str | None = "f4", pq_bits: int = 8) -> Shard:
    """Without PQ codes where these have no bits, else with codes of four bytes."""
    rng = np.random.default_rng(count)
    parts = pq_bits and 4 * 8 // pq_bits
    neighbors = np.full((count, degree), -1, np.int32)
    degrees = np.zeros(count, np.int32)
    for node in range(count):
        others = np.delete(np.arange(count), node)
        chosen = np.sort(rng.choice(others, min(len(others), int(rng.integers(0, degree + 1))), replace=False))
        neighbors[node, : len(chosen)] = chosen
        degrees[node] = len(chosen)
    return Shard(
        metric=1,
        dims=dims,
        max_degree=degree,
        search_list=100,
        alpha=1.25,
        medoid=count // 2,
        neighbors=neighbors,
        degrees=degrees,
        file_slots=np.sort(rng.integers(0, 3, count)).astype(np.uint32),
        row_positions=rng.integers(0, 2**40, count),
        content_hashes=rng.integers(0, 2**63, count).astype(np.uint64) * np.uint64(2),
        vectors=None if vectors is None else rng.standard_normal((count, dims)).astype(vectors),
        pq_codebook=rng.standard_normal((parts, 1 << pq_bits, dims // parts)).astype(np.float32) if parts else None,
        pq_codes=rng.integers(0, 256, (count, 4)).astype(np.uint8) if parts else None,
    )


def with_section(data: bytes, kind: int, payload: bytes, *, framed: bool = False) -> bytes:
    """A shard blob with one more section behind the others."""
    header = read_header(BytesSource(data))
    stored = [data[entry.offset : entry.offset + entry.stored_length] for entry in header.sections]
    added = SectionEntry(kind, framed, 0, len(payload), len(payload), zlib.crc32(payload))
    position, entries = start_of_sections(len(stored) + 1), []
    for entry in (*header.sections, added):
        position += -position % ALIGNMENT
        entries.append(replace(entry, offset=position))
        position += entry.stored_length
    blob = bytearray(position)
    for entry, part in zip(entries, (*stored, payload), strict=True):
        blob[entry.offset : entry.offset + len(part)] = part
    head = replace(header, sections=tuple(entries)).to_bytes()
    return head + bytes(blob[len(head) :])


def coded_shard(bits: int, count: int = 50, *, dims: int = 8) -> Shard:
    """With rotated codes."""
    rng, width = np.random.default_rng(bits), dims + -dims % 128
    codes = ShardCodes(
        bits=bits,
        seed=2**63 + 7,
        center=rng.standard_normal(dims).astype(np.float32),
        terms=rng.random((count, 4)).astype(np.float32),
        high=rng.integers(0, 256, count * width // 2).astype(np.uint8),
        low=rng.integers(0, 256, count * width * (bits - 4) // 8).astype(np.uint8),
    )
    return replace(shard(count, dims=dims, vectors=None, pq_bits=0), codes=codes)


def shard_of_cells(count: int = 50, *, dims: int = 8, bits: int = 8, vectors: str | None = "f4") -> Shard:
    """With cells of up to 16 nodes, which are drawn."""
    rng = np.random.default_rng(count + bits)
    value = shard(count, dims=dims, vectors=vectors, pq_bits=0)
    parts = [np.sort(part) for part in np.array_split(rng.permutation(count), -(-count // 16))]
    own = [
        Cell(
            lows=rng.standard_normal(dims).astype(np.float32),
            steps=rng.random(dims).astype(np.float32),
            nodes=nodes.astype(np.uint32),
            file_slots=value.file_slots[nodes],
            row_positions=value.row_positions[nodes],
            codes=rng.integers(0, 256, (len(nodes), -(-dims * bits // 8))).astype(np.uint8),
        )
        for nodes in parts
    ]
    all_cells = cell_blob.encode(
        own,
        counts=[len(cell.nodes) for cell in own],
        bits=bits,
        recall=0.75,
        probes=16,
        origin=rng.standard_normal(dims).astype(np.float32),
        scales=rng.random(len(own)).astype(np.float32),
        centers=rng.integers(-127, 128, (len(own), dims)).astype(np.int8),
    )
    return replace(value, cells=all_cells)


def centroid() -> CentroidIndex:
    rng = np.random.default_rng(1)
    return CentroidIndex(
        metric=0,
        dims=5,
        centroids=rng.standard_normal((4, 5)).astype(np.float32),
        file_ordinals=np.array([0, 1, 1, 2], np.uint32),
        max_distances=np.array([0.5, 1.0, 0.0, 7.25], np.float32),
        files=("data/a.parquet", "data/ü=1/b.parquet", "s3://other/c.parquet"),
    )


def lists() -> AttributeBlob:
    """[["a", "b"], None, [None, "b"], [], ["a"]], then four lists of 7."""
    texts = FileValues(2, 0, b"ab", np.array([0, 1, 2], np.uint32), np.empty(0, np.uint8))
    numbers = FileValues(1, 4, b"\x07\x00\x00\x00", None, np.empty(0, np.uint8))
    states = np.array([0, 2, 1, 0, 0], np.uint8)
    tagged = FileTokens(texts, states, np.array([0, 2, 4], np.uint32), np.array([0, 4, 0, 2], np.uint32))
    same = FileTokens(numbers, np.zeros(4, np.uint8), np.array([0, 4], np.uint32), np.arange(4, dtype=np.uint32))
    entries = (
        list_entry_of(0, 5, "list<string>", "{}", tagged),
        AttributeEntry(2, 9, "list<string>", "{}", "too many"),
        list_entry_of(3, 4, "list<int>", "{}", same),
    )
    return AttributeBlob(5, entries, of_lists=True)


def attributes() -> AttributeBlob:
    texts = FileValues(3, 0, "aßbbb".encode(), np.array([0, 1, 3, 6], np.uint32), np.array([0, 3, 2, 2, 1], np.uint8))
    numbers = FileValues(1, 4, b"\x07\x00\x00\x00", None, np.array([0] * 300, np.uint16))
    return AttributeBlob(
        5,
        (
            entry_of(0, 5, "string", "{}", texts),
            AttributeEntry(2, 9, "string", '{"type": "string"}', "too many"),
            entry_of(3, 300, "int", "{}", numbers),
        ),
    )


def routing() -> Routing:
    rng = np.random.default_rng(2)
    return Routing(
        base_snapshot_id=2**62 + 11,
        build_id="ab" * 32,
        definition='{"name":"embedding"}',
        codebook=rng.standard_normal((4, 5)).astype(np.float32),
        partition_to_shard=np.array([0, 1, 1, 0], np.uint32),
        shards=(
            ShardEntry(100, 97, 5, 0.75, 12_345, bytes(range(32)), np.array([1, 50, 99], np.int64)),
            ShardEntry(10, 10, 9, 1.0, 99, bytes(32), np.empty(0, np.int64)),
        ),
        files=(
            CoveredFile("data/a.parquet", 60, 57, bytes([7]) * 32, present=True),
            CoveredFile("data/gone-é.parquet", 3, 0, bytes(32), present=False),
        ),
    )


def packed_routing() -> Routing:
    """The same, with a shard in the second pack."""
    first, second = routing().shards
    return replace(routing(), shards=(first, replace(second, pack=2, offset=2**33 + 64)))


def moved_routing() -> Routing:
    """The same, with new addresses for the rows of that shard."""
    first, second = packed_routing().shards
    return replace(routing(), shards=(first, replace(second, addresses=AddressesEntry(77, bytes([9]) * 32))))


def routing_of_runs() -> Routing:
    """The same, with the vectors of that shard in three runs."""
    first, second = moved_routing().shards
    runs = (
        VectorRun(2, 2**33 + 128, 80, 4, bytes([1]) * 32),
        VectorRun(0, 64, 20, 1, bytes([2]) * 32),
        VectorRun(0, 84, 100, 5, bytes([3]) * 32),
    )
    return replace(routing(), shards=(first, replace(second, runs=runs)))


class ApartVectors:
    """Vectors of a sample shard, apart from its blob."""

    def __init__(self, shard: Shard) -> None:
        self._stored = b"" if shard.vectors is None else bytes(stored_vectors(shard.vectors))
        self.nbytes = len(self._stored)

    def read(self) -> np.ndarray:
        return np.frombuffer(self._stored, np.uint8)


def included_values(texts: Sequence[str | None], block_rows: int) -> tuple[IncludedEntry, bytes]:
    """(the entry of a column of texts in slot 0, its values)."""
    encoder, parts = BlockEncoder(), []
    for start in range(0, len(texts), block_rows):
        rows = texts[start : start + block_rows]
        data = [(text or "").encode() for text in rows]
        offsets = np.cumsum([0, *map(len, data)]).astype(np.uint32)
        present = np.array([text is not None for text in rows])
        parts.append(encoder.add(raw_block(ValueBlock(present, b"".join(data), offsets))))
    index = encoder.index()
    values = b"".join([*parts, index])
    entry = IncludedEntry(0, len(texts), "string", "{}", block_rows=block_rows, length=len(values))
    return replace(entry, checksum=zlib.crc32(index)), values


def included() -> IncludedBlob:
    """The places of a column in three files: in the version's own file, in a pack, and nowhere."""
    entry, _ = included_values(["a", None, "bbb" * 50], 2)
    left_out = IncludedEntry(2, 9, "string", '{"type": "string"}', "too long")
    return IncludedBlob(5, (entry.moved(0, 4), left_out, replace(entry, slot=3, pack=2, offset=2**33 + 1)))
