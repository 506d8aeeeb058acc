"""Random bytes for every parser of `icepuffin.puffin`, guided by coverage: `make fuzz SECONDS=600`.

A value or a PuffinError, never another error, within ten seconds and 64 MiB + 8 times the input of memory. The
fuzzer is Atheris (https://github.com/google/atheris) with libFuzzer. Checksums are put right before an input is
parsed, or no change would come further than they.
"""

import argparse
import contextlib
import os
import random
import resource
import struct
import sys
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import atheris
import numpy as np

with atheris.instrument_imports(
    include=["icepuffin.puffin"], exclude=["icepuffin.puffin.varint"]
):  # numba compiles that
    from icepuffin.puffin import BytesSource, PuffinReader
    from icepuffin.puffin.blobs import (
        addresses_blob,
        attributes_blob,
        centroid_blob,
        deletion_vector_blob,
        included_columns_blob,
        routing_blob,
        shard_blob,
        sketch_directory_blob,
        theta_blob,
    )
    from icepuffin.puffin.blobs.cells_blob import CellDirectory, directory_bytes
    from icepuffin.puffin.blobs.shard_header import MAX_SECTIONS, start_of_sections
    from icepuffin.puffin.errors import PuffinError
    from icepuffin.puffin.footer import decode_footer

from tests.puffin import samples
from tests.puffin.test_ann_blobs import resealed, shard_bytes
from tests.puffin.test_files import blob_json, written

_LARGEST = 1 << 16
_ALWAYS = 64 << 20
_PER_BYTE = 8
_ROUTING_CHECKSUM = 36
_ADDRESSES_CHECKSUM = 12
_INCLUDED_CHECKSUM = 16
_TABLE_CHECKSUM = 20
_DIRECTORY_CHECKSUM = 16
_BODY = struct.Struct("<HIB")
"""Rows of a file, bytes of a body before compression, and whether it is compressed: before a body of attributes"""
_CELLS = samples.shard_of_cells(20).cells
_VECTOR_FORMAT = 44
_NODES = 20
"""Nodes of the shards, and of the one that addresses are for"""
_CLEAR_REFS = os.open("/proc/self/clear_refs", os.O_WRONLY)
_PEAK_IS_NOW = b"5"
"""What sets the peak of a process to the memory that it has now (proc(5))"""


def _file(data: bytes) -> Any:
    reader = PuffinReader(BytesSource(data))
    return [reader.read_blob(blob) for blob in reader.footer.blobs]


def _footer(data: bytes) -> Any:
    return decode_footer(data, blob_area_end=104)


def _sealed(data: bytes, at: int, end: int | None = None) -> bytes:
    """The data with the CRC-32 of itself, up to `end`, at a position."""
    changed = bytearray(data)
    if len(changed) >= at + 4:
        struct.pack_into("<I", changed, at, 0)
        struct.pack_into("<I", changed, at, zlib.crc32(changed[:end]))
    return bytes(changed)


def _routing(data: bytes) -> Any:
    return routing_blob.decode(_sealed(data, _ROUTING_CHECKSUM))


def _shard(data: bytes) -> Any:
    kind = "f2" if data[_VECTOR_FORMAT : _VECTOR_FORMAT + 1] == b"\x02" else "f4"
    vectors = samples.ApartVectors(samples.shard(_NODES, vectors=kind, pq_bits=0))
    return shard_blob.decode(
        resealed(bytearray(data)) if len(data) >= start_of_sections(MAX_SECTIONS) else data, vectors
    )


def _addresses(data: bytes) -> Any:
    return addresses_blob.decode(_sealed(data, _ADDRESSES_CHECKSUM), _NODES)


def _included(data: bytes) -> Any:
    return included_columns_blob.decode(_sealed(data, _INCLUDED_CHECKSUM))


def _attributes(data: bytes) -> Any:
    length = int.from_bytes(data[_TABLE_CHECKSUM - 4 : _TABLE_CHECKSUM], "little")
    return attributes_blob.decode(_sealed(data, _TABLE_CHECKSUM, _TABLE_CHECKSUM + 4 + length))


def _attribute_body(data: bytes) -> attributes_blob.AttributeEntry:
    rows, raw_length, packed = _BODY.unpack_from(data.ljust(_BODY.size, b"\0"))
    body, is_packed = data[_BODY.size :], bool(packed & 1)
    return attributes_blob.AttributeEntry(
        0, rows, "string", "{}", "", body, raw_length if is_packed else len(body), is_packed
    )


def _values(data: bytes) -> Any:
    return attributes_blob.values_of(_attribute_body(data))


def _lists(data: bytes) -> Any:
    return attributes_blob.lists_of(_attribute_body(data))


def _directory(data: bytes) -> Any:
    return sketch_directory_blob.decode(_sealed(data, _DIRECTORY_CHECKSUM))


def _cells(data: bytes) -> Any:
    """A directory as long as the sample's, and its cells."""
    assert _CELLS is not None
    end = directory_bytes(len(_CELLS.directory.counts), _CELLS.directory.dims)
    directory = CellDirectory.parse(data[:end], _CELLS.directory.dims, _NODES, len(data) - end)
    out = []
    for number, (start, stop) in enumerate(pairwise(directory.offsets.tolist())):
        piece = data[end + start : end + stop]
        directory.checksums[number] = zlib.crc32(piece)
        out.append(directory.cell(number, piece))
    return out


PARSERS: tuple[Callable[[bytes], Any], ...] = (
    _file,
    _footer,
    _shard,
    _routing,
    _addresses,
    _included,
    _attributes,
    _values,
    _lists,
    _directory,
    _cells,
    centroid_blob.decode,
    theta_blob.decode,
    deletion_vector_blob.decode,
    deletion_vector_blob.decode_roaring64,
)
"""Decoders, chosen by the first byte of an input"""


def parse(data: bytes) -> None:
    """Parse one input, of which the first byte chooses the parser. Raises what no parser may raise."""
    os.write(_CLEAR_REFS, _PEAK_IS_NOW)  # else no input would count that takes less than the largest so far
    before = _peak_bytes()
    with contextlib.suppress(PuffinError):
        PARSERS[data[0] % len(PARSERS) if data else 0](data[1:])
    taken = _peak_bytes() - before
    if taken > _ALWAYS + _PER_BYTE * len(data):
        raise MemoryError(f"{len(data)} bytes took {taken:,}")


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _body_input(entry: attributes_blob.AttributeEntry) -> bytes:
    return _BODY.pack(entry.rows, entry.raw_length, entry.packed) + bytes(entry.stored)


def _sound_inputs() -> list[bytes]:
    sketch = theta_blob.ThetaSketch(1 << 60, np.arange(1, 40, dtype=np.uint64))
    rows = np.concatenate([np.arange(100), [2**33, 2**40]])
    layout = sketch_directory_blob.layout_of([(0, 32), (1, 24)])
    file = sketch_directory_blob.DirectoryEntry("data/a.parquet", "ab" * 32, 7, 40, 56, layout)
    directory = sketch_directory_blob.SketchDirectory(((1, "long"), (3, "string")), (file,))
    assert _CELLS is not None
    inputs = [
        (_file, written(b"plain", b"lz4 " * 30, b"zstd" * 30)),
        (_footer, blob_json()),
        (_shard, shard_bytes(samples.shard(_NODES))),
        (_shard, shard_bytes(samples.shard(_NODES, vectors="f2", pq_bits=0))),
        (_routing, routing_blob.encode(samples.routing())),
        (_routing, routing_blob.encode(samples.packed_routing())),
        (_routing, routing_blob.encode(samples.moved_routing())),
        (_addresses, addresses_blob.encode(np.arange(_NODES, dtype=np.uint32) // 7, np.arange(_NODES)[::-1] * 300)),
        (_included, included_columns_blob.encode(samples.included())),
        (_attributes, attributes_blob.encode(samples.attributes())),
        (_attributes, attributes_blob.encode(samples.lists())),
        *((_values, _body_input(entry)) for entry in samples.attributes().entries),
        *((_lists, _body_input(entry)) for entry in samples.lists().entries),
        (_directory, sketch_directory_blob.encode(directory)),
        (_cells, _CELLS.directory.to_bytes() + bytes(_CELLS.cells)),
        (centroid_blob.decode, centroid_blob.encode(samples.centroid())),
        (theta_blob.decode, theta_blob.encode(sketch)),
        (deletion_vector_blob.decode, deletion_vector_blob.encode(rows)),
        (deletion_vector_blob.decode_roaring64, deletion_vector_blob.encode_roaring64(rows.astype(np.uint64))),
    ]
    return [bytes([PARSERS.index(parser)]) + data for parser, data in inputs]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="how long [default: 600]")
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(1, 2**31), help="default: a new one"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(".cache/fuzz/inputs"), help="inputs to start from, and new ones"
    )
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(_sound_inputs()):
        (arguments.folder / f"sound-{number}").write_bytes(data)
    limits = [f"-max_total_time={arguments.seconds}", f"-max_len={_LARGEST}", "-timeout=10", "-rss_limit_mb=2048"]
    output = ["-verbosity=0", "-print_final_stats=1", f"-artifact_prefix={arguments.folder.parent}/"]
    print(f"fuzz, seed {arguments.seed}", flush=True)
    atheris.Setup([sys.argv[0], *limits, *output, f"-seed={arguments.seed}", str(arguments.folder)], parse)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
