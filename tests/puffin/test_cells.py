import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from icepuffin.puffin import BytesSource
from icepuffin.puffin.blobs import cells_blob, shard_blob
from icepuffin.puffin.blobs.cells_blob import Cell, CellDirectory, ShardCells
from icepuffin.puffin.blobs.shard_blob import Shard, ShardReader
from icepuffin.puffin.blobs.shard_header import read_header
from icepuffin.puffin.errors import BadBlobError, ChecksumError, LaterFormatError
from tests.puffin import samples


def read(value: Shard) -> Shard:
    return shard_blob.decode(b"".join(shard_blob.encode(value)), samples.ApartVectors(value))


def equal(one: ShardCells, two: ShardCells) -> bool:
    return one.directory.to_bytes() == two.directory.to_bytes() and bytes(one.cells) == bytes(two.cells)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dims", [7, 8])
@pytest.mark.parametrize("count", [1, 50])
def test_cells_are_read_as_written(bits: int, dims: int, count: int) -> None:
    value = samples.shard_of_cells(count, dims=dims, bits=bits)
    again = read(value)
    assert value.cells is not None
    assert again.cells is not None
    assert equal(value.cells, again.cells)
    directory = again.cells.directory
    assert (directory.bits, directory.recall, directory.probes) == (bits, 0.75, 16)


def test_a_shard_of_cells_has_their_feature_bit() -> None:
    data = b"".join(shard_blob.encode(samples.shard_of_cells()))
    assert (data[4], data[52]) == (5, 3)
    assert b"".join(shard_blob.encode(replace(samples.shard_of_cells(), cells=None)))[52] == 1
    with pytest.raises(LaterFormatError):
        shard_blob.decode(data[:4] + b"\x06" + data[5:])


@pytest.mark.parametrize("vectors", [None, "f4", "f2"])
def test_cells_stand_beside_whatever_a_shard_holds(vectors: str | None) -> None:
    value = samples.shard_of_cells(vectors=vectors)
    again = read(value)
    assert (again.vectors is None) == (vectors is None)
    assert again.cells is not None


def test_one_cell_is_read_alone() -> None:
    value = samples.shard_of_cells(count=50)
    reader = ShardReader(BytesSource(b"".join(shard_blob.encode(value))), vectors=samples.ApartVectors(value))
    directory = reader.read_directory()
    assert directory is not None
    assert value.cells is not None
    start, end = directory.offsets[1:3].tolist()
    cell = directory.cell(1, bytes(value.cells.cells[start:end]))
    assert cell.row_positions.tolist() == value.row_positions[cell.nodes].tolist()
    with pytest.raises(BadBlobError, match="cut off"):
        directory.cell(1, bytes(value.cells.cells[start : end - 1]))
    for place in range(0, end - start, 7):
        broken = bytearray(value.cells.cells[start:end])
        broken[place] ^= 1
        with pytest.raises(ChecksumError):
            directory.cell(1, broken)


def damaged(change: Callable[[list[Cell]], None]) -> Shard:
    value = samples.shard_of_cells(count=50)
    assert value.cells is not None
    own = [value.cells.cell(number) for number in range(len(value.cells.directory.counts))]
    change(own)
    directory = value.cells.directory
    changed = cells_blob.encode(
        own, counts=[len(cell.nodes) for cell in own],
        bits=8, recall=1.0, probes=8, origin=directory.origin, scales=directory.scales[: len(own)],
        centers=directory.centers[: len(own)],
    )  # fmt: skip
    return replace(value, cells=changed)


def twice(own: list[Cell]) -> None:
    own[0].nodes[0] = own[1].nodes[0]
    own[0].file_slots[0], own[0].row_positions[0] = own[1].file_slots[0], own[1].row_positions[0]


def elsewhere(own: list[Cell]) -> None:
    own[0].row_positions[0] += 1


def in_another_file(own: list[Cell]) -> None:
    own[0].file_slots[0] += 1


def unbounded(own: list[Cell]) -> None:
    own[0].steps[0] = np.inf


def no_node(own: list[Cell]) -> None:
    own[0].nodes[0] = 50


def fewer(own: list[Cell]) -> None:
    del own[-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (twice, "is not in one cell"),
        (elsewhere, "other addresses"),
        (in_another_file, "other addresses"),
        (unbounded, "not finite"),
        (no_node, "no node"),
        (fewer, "do not have the 50 nodes"),
    ],
)
def test_cells_that_are_not_those_of_the_shard_are_refused(change: Callable[[list[Cell]], None], message: str) -> None:
    with pytest.raises(BadBlobError, match=message):
        read(damaged(change))


@pytest.mark.parametrize("place", [0, 4, 12])
def test_a_directory_with_other_numbers_is_refused(place: int) -> None:
    value = samples.shard_of_cells(count=50)
    assert value.cells is not None
    data = bytearray(value.cells.directory.to_bytes())
    data[place] ^= 16
    with pytest.raises(BadBlobError, match="bytes are no directory"):
        CellDirectory.parse(data, 8, 50, len(value.cells.cells))


def test_a_directory_has_its_checksum_a_head_and_cells_with_nodes_that_fill_their_section() -> None:
    value = samples.shard_of_cells(count=50)
    assert value.cells is not None
    directory, length = value.cells.directory, len(value.cells.cells)
    data = directory.to_bytes()
    CellDirectory.checked(data, zlib.crc32(data), 8, 50, length)
    with pytest.raises(ChecksumError, match="the directory does not have its checksum 00000001"):
        CellDirectory.checked(data, 1, 8, 50, length)
    with pytest.raises(BadBlobError, match="a directory of 15 bytes has no header"):
        CellDirectory.parse(data[:15], 8, 50, length)
    with pytest.raises(BadBlobError, match="do not have the 50 nodes"):
        CellDirectory.parse(data, 8, 50, length + 1)
    directory.counts[:2] = 0, directory.counts[:2].sum()
    with pytest.raises(BadBlobError, match="do not have the 50 nodes"):
        CellDirectory.parse(directory.to_bytes(), 8, 50, length)


@pytest.mark.parametrize("scale", [np.nan, -1.0])
def test_a_directory_of_impossible_steps_is_refused(scale: float) -> None:
    value = samples.shard_of_cells(count=50)
    assert value.cells is not None
    value.cells.directory.scales[1] = scale
    with pytest.raises(BadBlobError, match="not finite, or negative"):
        read(value)


def test_cells_come_with_their_directory() -> None:
    value = samples.shard_of_cells(count=50)
    data = bytearray(b"".join(shard_blob.encode(value)))
    sections = int.from_bytes(data[48:52], "little")
    last = read_header(BytesSource(bytes(data))).sections[-2]
    del data[last.offset + last.stored_length :]
    data[48:52] = (sections - 1).to_bytes(4, "little")
    table = bytes(data[128 : 128 + 48 * (sections - 1)])
    data[56:60] = zlib.crc32(bytes(data[:56]) + bytes(72) + table).to_bytes(4, "little")
    with pytest.raises(BadBlobError, match="without their directory"):
        read_header(BytesSource(bytes(data)))


def test_cells_are_written_in_the_memory_of_their_section() -> None:
    """For a million rows of 768 dimensions that is .8 GB."""
    rows, dims, count = 256, 64, 400
    cell = drawn_cell(rows, dims)
    tracemalloc.start()
    written = cells_blob.encode(
        (cell for _ in range(count)), counts=[rows] * count, bits=8, recall=1.0, probes=8,
        origin=np.zeros(dims, np.float32), scales=np.ones(count, np.float32), centers=np.zeros((count, dims), np.int8),
    )  # fmt: skip
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.1 * len(written.cells)
    assert np.array_equal(written.cell(count - 1).codes, cell.codes)


def test_fewer_or_other_cells_than_were_counted_are_refused() -> None:
    dims = 8
    form = {"bits": 8, "recall": 1.0, "probes": 8, "origin": np.zeros(dims, np.float32)}
    form |= {"scales": np.ones(2, np.float32), "centers": np.zeros((2, dims), np.int8)}
    for rows in ([3], [3, 4, 4], [4, 3]):
        with pytest.raises(ValueError, match=r"zip|different structures"):
            cells_blob.encode([drawn_cell(number, dims) for number in rows], counts=[3, 4], **form)  # type: ignore[arg-type]


def drawn_cell(rows: int, dims: int) -> Cell:
    rng = np.random.default_rng(rows)
    return Cell(
        lows=rng.standard_normal(dims).astype(np.float32),
        steps=rng.random(dims).astype(np.float32),
        nodes=np.arange(rows, dtype=np.uint32),
        file_slots=np.zeros(rows, np.uint32),
        row_positions=np.arange(rows),
        codes=rng.integers(0, 256, (rows, dims)).astype(np.uint8),
    )
