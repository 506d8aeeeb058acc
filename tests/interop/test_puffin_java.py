"""Puffin files between this project and Iceberg Java, both ways, and what PyIceberg's reader makes of ours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasketches
import numpy as np
import pytest
from pyiceberg.table import Table
from pyiceberg.table.puffin import PuffinFile

from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.puffin import BytesSource, PuffinReader, PuffinWriter
from icepuffin.puffin.blobs import centroid_blob, deletion_vector_blob, routing_blob, shard_blob
from icepuffin.puffin.types import BlobType
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, index_head
from tests.puffin import samples

pytestmark = pytest.mark.jvm


def test_java_reads_every_blob_that_is_written(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "ours.puffin"
    blobs = {
        BlobType.ROUTING: (routing_blob.encode(samples.routing()), "zstd"),
        BlobType.CENTROID: (centroid_blob.encode(samples.centroid()), "zstd"),
        BlobType.SHARD: (b"".join(shard_blob.encode(samples.shard())), None),
        BlobType.DELETION_VECTOR: (deletion_vector_blob.encode(np.array([0, 5, 70_000, 2**33])), None),
    }
    with path.open("xb") as stream:
        writer = PuffinWriter(stream)
        for kind, (data, codec) in blobs.items():
            writer.add_blob(
                kind,
                fields=[3],
                snapshot_id=2**62,
                sequence_number=7,
                data=data,
                codec=codec,
                properties={"ключ": "ü"},
                align=64,
            )
        footer_size = writer.finish({"created-by": "icepuffin"}).footer_size
    iceberg = spark._jvm.org.apache.iceberg
    source = iceberg.Files.localInput(str(path))
    java = iceberg.puffin.Puffin.read(source).withFooterSize(footer_size).build()
    metadata = java.fileMetadata()
    assert dict(metadata.properties()) == {"created-by": "icepuffin"}
    read = {}
    lists = iceberg.relocated.com.google.common.collect.Lists  # py4j cannot iterate a Java lambda itself
    for pair in lists.newArrayList(java.readAll(metadata.blobs())):
        blob = pair.first()
        assert (list(blob.inputFields()), blob.snapshotId(), blob.sequenceNumber()) == ([3], 2**62, 7)
        assert dict(blob.properties()) == {"ключ": "ü"}
        read[blob.type()] = bytes(iceberg.util.ByteBuffers.toByteArray(pair.second()))
    java.close()
    assert read == {kind: data for kind, (data, _) in blobs.items()}


def test_java_and_pyiceberg_read_the_files_of_an_index_and_of_its_table_s_sketches(
    spark: Any, table_factory: Callable[..., Table], tmp_path: Path
) -> None:
    """Of an index they see its public footer: NDVs, in blobs of no bytes. What is before that they read, too."""
    table = table_factory()
    table.append(make_rows(0, 200))
    head = table.refresh().metadata.current_snapshot_id or pytest.fail("empty")
    sketches = count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), head).publish()
    index = index_head(table, DEFINITION)
    assert index.puffin_path is not None
    data = to_path(index.puffin_path).read_bytes()
    own = int(PuffinFile(data).footer.properties["icepuffin.own-bytes"])
    (tmp_path / "own.puffin").write_bytes(data[:own])
    iceberg = spark._jvm.org.apache.iceberg
    lists = iceberg.relocated.com.google.common.collect.Lists
    for location, kinds in (
        (index.puffin_path, set()),
        (str(tmp_path / "own.puffin"), {BlobType.ROUTING, BlobType.CENTROID, BlobType.SHARD}),
        (sketches.statistics_path, {BlobType.THETA}),
    ):
        assert location is not None
        path = to_path(location)
        reader = PuffinReader(BytesSource(path.read_bytes()))
        expected = [(blob.type, blob.fields, reader.read_blob(blob)) for blob in reader.footer.blobs]
        if location == index.puffin_path:
            expected = [(BlobType.THETA, (field_id,), b"") for field_id in (1, 2, 3)]
        assert {kind for kind, _, _ in expected} >= kinds
        java = iceberg.puffin.Puffin.read(iceberg.Files.localInput(str(path))).build()
        read = [
            (pair.first().type(), tuple(pair.first().inputFields()), bytes(iceberg.util.ByteBuffers.toByteArray(data)))
            for pair in lists.newArrayList(java.readAll(java.fileMetadata().blobs()))
            for data in [pair.second()]
        ]
        java.close()
        assert read == expected
        file = PuffinFile(path.read_bytes())
        assert [(blob.type, tuple(blob.fields), file.get_blob_payload(blob)) for blob in file.footer.blobs] == expected
    values = {
        fields: datasketches.compact_theta_sketch.deserialize(image).get_estimate() for _, fields, image in expected
    }
    assert values == {(1,): 200, (2,): 200, (3,): 5}


@pytest.mark.parametrize("codec", ["NONE", "ZSTD"])
def test_what_java_writes_is_read(spark: Any, tmp_path: Path, codec: str) -> None:
    path = tmp_path / "java.puffin"
    iceberg = spark._jvm.org.apache.iceberg
    target = iceberg.Files.localOutput(str(path))
    java = iceberg.puffin.Puffin.write(target).createdBy("Java").build()
    fields, properties = spark._jvm.java.util.ArrayList(), spark._jvm.java.util.HashMap()
    fields.add(3)
    properties.put("a", "b")
    payload = spark._jvm.java.nio.ByteBuffer.wrap(bytearray(b"payload " * 100))
    compression = getattr(iceberg.puffin.PuffinCompressionCodec, codec)
    java.write(iceberg.puffin.Blob("some-type", fields, 2**62, 7, payload, compression, properties))
    java.finish()
    java.close()
    assert path.stat().st_size == java.fileSize()
    reader = PuffinReader(BytesSource(path.read_bytes()))
    (blob,) = reader.footer.blobs
    assert reader.read_blob(blob) == b"payload " * 100
    assert (blob.type, blob.fields, blob.snapshot_id, blob.sequence_number) == ("some-type", (3,), 2**62, 7)
    assert (dict(blob.properties), reader.footer.properties["created-by"]) == ({"a": "b"}, "Java")
