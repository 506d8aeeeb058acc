"""Makes the golden files: `python -m tests.conformance.golden_files` writes `tests/conformance/golden/0.1.0`.

One file per type of blob, small tables with an index and sketches, and the answers that reading them gives. Ids, names
and times follow from the code alone, so a second run writes the same bytes. A table's location is `file:///golden/` and
its name, wherever its files lie.
"""

import dataclasses
import hashlib
import itertools
import json
import random
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import icepuffin
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.theta.file_sketches import SKETCH_DIRECTORY
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
from icepuffin.puffin.blobs.sketch_directory_blob import DirectoryEntry, SketchDirectory
from icepuffin.puffin.blobs.theta_blob import ThetaSketch
from tests.conftest import ROWS, STORAGE, make_rows, queries
from tests.puffin import samples
from tests.repeatable import LOCATION, START, lying_in, repeatable

GOLDEN = Path(__file__).parent / "golden" / "0.1.0"
TABLES = {"t": ("2", 64 << 20), "packs": ("2", 2_000), "v1": ("1", 64 << 20)}
"""Format version of each table, and the bytes from which its shards go to packs"""
INDEX = icepuffin.IndexDefinition(
    name="e",
    column="embedding",
    metric="l2",
    max_degree=8,
    search_list=40,
    shards=2,
    target_recall=0.5,
    filters=("section",),
    include=("name",),
    cells="sq8",
)
NOON = START + 43_200
_SHORT = 16
"""Numbers of an array that are written out"""

_CODED, _CELLS, _PLAIN = samples.coded_shard(5, 12), samples.shard_of_cells(12), samples.shard(12)
_SKETCH = ThetaSketch(2**62, np.array([7, 2**50, 2**61], np.uint64))
_DIRECTORY = SketchDirectory(
    ((1, "long"), (3, 'string ["a"]')),
    (DirectoryEntry("data/ü.parquet", "ab" * 32, 7, 40, 56, sketch_directory_blob.layout_of([(0, 32), (1, 24)])),),
)


def shard_of(vectors: shard_blob.Shard) -> Callable[[bytes], Any]:
    return lambda data: shard_blob.decode(data, samples.ApartVectors(vectors))


BLOBS: dict[str, tuple[Callable[[], bytes], Callable[[bytes], Any]]] = {
    "addresses": (
        lambda: addresses_blob.encode(np.array([4, 4, 9], np.uint32), np.array([2**35, 0, 7])),
        lambda data: addresses_blob.decode(data, 3),
    ),
    "attributes": (lambda: attributes_blob.encode(samples.attributes()), attributes_blob.decode),
    "tokens": (lambda: attributes_blob.encode(samples.lists()), attributes_blob.decode),
    "centroid": (lambda: centroid_blob.encode(samples.centroid()), centroid_blob.decode),
    "deletion-vector": (
        lambda: deletion_vector_blob.encode(np.array([0, 3, 70_000, 2**33], np.int64)),
        deletion_vector_blob.decode,
    ),
    "included": (lambda: included_columns_blob.encode(samples.included()), included_columns_blob.decode),
    "routing": (lambda: routing_blob.encode(samples.routing_of_runs()), routing_blob.decode),
    "shard": (lambda: b"".join(shard_blob.encode(_PLAIN)), shard_of(_PLAIN)),
    "shard-of-cells": (lambda: b"".join(shard_blob.encode(_CELLS)), shard_of(_CELLS)),
    "shard-of-codes": (lambda: b"".join(shard_blob.encode(_CODED)), shard_of(_CODED)),
    "sketch-directory": (lambda: sketch_directory_blob.encode(_DIRECTORY), sketch_directory_blob.decode),
    "theta": (lambda: theta_blob.encode(_SKETCH), theta_blob.decode),
}
"""How each blob is made, and read"""


def plain(value: Any) -> Any:
    """A value of a blob as JSON has it; of long arrays and bytes the type, the shape and a digest."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, bytes | memoryview):
        value = np.frombuffer(value, np.uint8)
    if isinstance(value, np.ndarray):
        if value.size <= _SHORT:
            return value.tolist()
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"{value.dtype.str}{list(value.shape)} {digest[:32]}"
    if isinstance(value, tuple | list):
        return [plain(entry) for entry in value]
    return value.item() if isinstance(value, np.generic) else value


def catalog_in(folder: Path) -> Catalog:
    """A new catalog with an empty namespace `db`."""
    catalog = SqlCatalog("golden", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace("db")
    return catalog


def golden_table(scratch: Path, name: str, files: Path = GOLDEN) -> Table:
    """A table of golden files, registered in a new catalog; `lying_in` those files it can be read."""
    newest = metadata_file(files / name).name
    return catalog_in(scratch).register_table(f"db.{name}", f"{LOCATION}/{name}/metadata/{newest}")


@contextmanager
def golden_noon(folder: Path) -> Iterator[Table]:
    """A copy of the golden table `t`, at noon of the day on which it was written: clocks stand still. Of new files the
    names, by which those of a snapshot are in order, follow from how many there are.
    """
    shutil.copytree(GOLDEN / "t", folder / "t")
    names = random.Random("golden")
    with lying_in(folder), repeatable(lambda: NOON), pytest.MonkeyPatch.context() as patch:
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128), version=4))
        patch.setattr(time, "time_ns", lambda: int(NOON) * 10**9)
        patch.setattr(time, "perf_counter", lambda: 0.0)
        yield golden_table(folder, "t", folder)


def golden_ids() -> str:
    """A text that has all ids of the golden table `t`, and of its files."""
    names = " ".join(path.name for path in (GOLDEN / "t").rglob("*"))
    return names + metadata_file(GOLDEN / "t").read_text(encoding="utf-8")


def make_table(catalog: Catalog, name: str) -> Table:
    """Three commits, the last of which deletes rows, and a version after each."""
    format_version, pack_bytes = TABLES[name]
    properties = {"format-version": format_version}
    table = catalog.create_table(f"db.{name}", ROWS, location=f"{LOCATION}/{name}", properties=properties)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_packs, "PACK_BYTES", pack_bytes)
        for change in (
            lambda: table.append(make_rows(0, 120)),
            lambda: table.append(make_rows(120, 150)),
            lambda: table.delete("id >= 140"),
        ):
            change()
            icepuffin.refresh(table, INDEX, sketches=True, storage=STORAGE, threads=1)
            table.refresh()
    return table


def answers_of(table: Table) -> list[dict[str, Any]]:
    """What each snapshot answers: nearest rows with and without a condition, and numbers of distinct values."""
    out = []
    snapshots = [entry.snapshot_id for entry in table.history()]
    for snapshot in snapshots:
        reader = icepuffin.open_index(table, "e", snapshot=snapshot, storage=STORAGE)
        counts = icepuffin.read_ndv(table, snapshot).entries
        answer: dict[str, Any] = {"ndv": {name: entry.ndv for name, entry in counts.items()}}
        for name, condition in (("nearest", None), ("in section 3", "section = 'section 3'")):
            rows = reader.search(queries(1), 5, columns=["id", "name"], where=condition).rows
            answer[name] = [[row["id"], row["name"], round(row["distance"], 5)] for row in rows.to_pylist()]
        out.append(answer)
    return out


def metadata_file(folder: Path) -> Path:
    """The table's newest metadata."""
    return max((folder / "metadata").glob("*.metadata.json"))


def blob_types(folder: Path) -> set[str]:
    """Types of the blobs in the Puffin files of a table."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"PFA1"]
    return {blob.type for path in files for blob in PuffinReader(BytesSource(path.read_bytes())).footer.blobs}


def make(target: Path) -> None:
    """Write all golden files into a folder, in place of what it has."""
    shutil.rmtree(target, ignore_errors=True)
    (target / "blobs").mkdir(parents=True)
    answers: dict[str, Any] = {"blobs": {}, "tables": {}}
    for name, (encode, decode) in BLOBS.items():
        data = bytes(encode())
        (target / "blobs" / f"{name}.bin").write_bytes(data)
        answers["blobs"][name] = plain(decode(data))
    for name in TABLES:
        folder = target / name
        ticks = itertools.count()
        with (
            tempfile.TemporaryDirectory() as scratch,
            lying_in(target),
            repeatable(lambda ticks=ticks: START + next(ticks) / 1000),  # type: ignore[misc]
        ):
            answers["tables"][name] = answers_of(make_table(catalog_in(Path(scratch)), name))
        for path in set((folder / "metadata").glob("*.metadata.json")) - {metadata_file(folder)}:
            path.unlink()
        if SKETCH_DIRECTORY not in blob_types(folder):
            raise RuntimeError(f"the table {name} has no kept sketches")
    text = json.dumps(answers, indent=1, ensure_ascii=False)
    (target / "answers.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    make(GOLDEN)
