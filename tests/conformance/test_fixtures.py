"""Files made by others are read; ours are read by PyIceberg."""

import io
from pathlib import Path

import numpy as np
import pytest
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile

from icepuffin.puffin import BytesSource, PuffinReader, PuffinWriter
from icepuffin.puffin.blobs import deletion_vector_blob, theta_blob
from icepuffin.puffin.errors import BadBlobError
from icepuffin.puffin.types import BlobType
from tests.conformance import reader

FIXTURES = Path(__file__).parent / "fixtures"
SAMPLES = sorted((FIXTURES / "puffin" / "v1").glob("sample*.bin"))
SKETCHES = sorted((FIXTURES / "puffin" / "extra").iterdir())
VECTORS = sorted((FIXTURES / "dv").glob("*position-index.bin"))
BITMAPS = sorted((FIXTURES / "dv").rglob("64map*.bin"))


def name(path: Path) -> str:
    return path.name


def test_the_fixtures_are_there() -> None:
    assert (len(SAMPLES), len(SKETCHES), len(VECTORS), len(BITMAPS)) == (2, 2, 4, 8)


def test_the_empty_reference_file_is_read_and_written_byte_for_byte() -> None:
    path = FIXTURES / "puffin" / "v1" / "empty-puffin-uncompressed.bin"
    assert PuffinReader(BytesSource(path.read_bytes())).footer.blobs == ()
    sink = io.BytesIO()
    PuffinWriter(sink).finish()
    assert sink.getvalue() == path.read_bytes()


@pytest.mark.parametrize("path", SAMPLES, ids=name)
def test_the_reference_samples_are_read_and_written_byte_for_byte(path: Path) -> None:
    puffin = PuffinReader(BytesSource(path.read_bytes()))
    first, second = puffin.footer.blobs
    assert puffin.footer.properties == {"created-by": "Test 1234"}
    assert (first.type, second.type) == ("some-blob", "some-other-blob")
    assert puffin.read_blob(first) == b"abcdefghi"
    assert puffin.read_blob(second).startswith(b"some blob \x00 binary data ")
    assert [data for _, data in reader.puffin(path.read_bytes())[0]] == [puffin.read_blob(b) for b in (first, second)]
    sink = io.BytesIO()
    writer = PuffinWriter(sink)
    for blob in (first, second):
        writer.add_blob(
            blob.type,
            fields=blob.fields,
            snapshot_id=blob.snapshot_id,
            sequence_number=blob.sequence_number,
            data=puffin.read_blob(blob),
            codec=blob.compression_codec,
        )
    writer.finish(puffin.footer.properties)
    assert sink.getvalue() == path.read_bytes()


@pytest.mark.parametrize("path", SKETCHES, ids=name)
def test_theta_files_of_others_are_read(path: Path) -> None:
    puffin = PuffinReader(BytesSource(path.read_bytes()))
    assert puffin.footer.blobs
    for blob in puffin.footer.blobs:
        sketch = theta_blob.decode(puffin.read_blob(blob))
        rate = sketch.theta / 2**63
        assert int(len(sketch.hashes) / rate) == pytest.approx(int(blob.properties["ndv"]), abs=1)


@pytest.mark.parametrize("path", VECTORS, ids=name)
def test_deletion_vectors_of_iceberg_java_are_read_and_written_byte_for_byte(path: Path) -> None:
    positions = deletion_vector_blob.decode(path.read_bytes())
    assert positions.tolist() == reader.deletion_vector(path.read_bytes())
    assert deletion_vector_blob.encode(positions) == path.read_bytes()


@pytest.mark.parametrize(
    "path", [path for path in BITMAPS if "high" not in path.name], ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_bare_64_bit_bitmaps_are_read(path: Path) -> None:
    values = deletion_vector_blob.decode_roaring64(path.read_bytes())
    assert (values[1:] > values[:-1]).all()
    assert (len(values) == 0) == ("empty" in path.name)


@pytest.mark.parametrize("path", [path for path in BITMAPS if "high" in path.name])
def test_a_bitmap_mangled_as_text_is_refused(path: Path) -> None:
    """This fixture came through a text decoder upstream (EF BF BD everywhere); PyIceberg's tests refuse it too."""
    assert b"\xef\xbf\xbd" in path.read_bytes()
    with pytest.raises(BadBlobError, match="cookie 0xbfefbdbf"):
        deletion_vector_blob.decode_roaring64(path.read_bytes())


def test_pyiceberg_reads_a_deletion_vector_file() -> None:
    positions = np.array([0, 5, 70_000, 2**33], np.int64)
    sink = io.BytesIO()
    writer = PuffinWriter(sink)
    writer.add_blob(
        BlobType.DELETION_VECTOR,
        fields=[2147483645],
        snapshot_id=-1,
        sequence_number=-1,
        data=deletion_vector_blob.encode(positions),
        properties={"referenced-data-file": "file:/a.parquet", "cardinality": "4"},
    )
    writer.finish({"created-by": "icepuffin"})
    by_pyiceberg = PuffinFile(sink.getvalue())
    assert by_pyiceberg.footer.properties["created-by"] == "icepuffin"
    (vector,) = deletion_vectors_from_puffin_file(by_pyiceberg)
    assert vector.referenced_data_file == "file:/a.parquet"
    assert vector.to_vector().to_pylist() == positions.tolist()
