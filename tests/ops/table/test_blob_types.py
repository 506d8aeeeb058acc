"""Tables whose statistics list blobs of types that PyIceberg does not know."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyiceberg.catalog.rest
import pytest
from pydantic import BaseModel
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.typedef import IcebergBaseModel, IcebergRootModel

from icepuffin.ops.binding import bindings
from icepuffin.ops.resources import Catalogs, UnreadableTableError
from icepuffin.ops.table.blob_types import admit_foreign_blobs
from tests.conftest import make_rows
from tests.ops.catalog.bindings import binding

PRESTO = ("presto-sum-data-size-bytes-v1", "presto-kll-sketch-bytes-v1")


def listed(snapshot_id: int, *types: object) -> dict[str, object]:
    """A statistics entry that lists blobs of these types."""
    blob = {"snapshot-id": snapshot_id, "sequence-number": 1, "fields": [1], "properties": {"data_size": "400"}}
    return {
        "snapshot-id": snapshot_id,
        "statistics-path": "s3://nowhere/presto.stats",
        "file-size-in-bytes": 100,
        "file-footer-size-in-bytes": 50,
        "blob-metadata": [{"type": type_, **blob} for type_ in types],
    }


def stored(table: Table) -> Path:
    return Path(table.metadata_location.removeprefix("file://"))


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    made = table_factory()
    made.append(make_rows(0, 10))
    return made


def with_entry(table: Table, *types: object) -> dict[str, object]:
    metadata = json.loads(stored(table).read_text(encoding="utf-8"))
    entry = listed(metadata["current-snapshot-id"], *types)
    stored(table).write_text(json.dumps({**metadata, "statistics": [entry]}), encoding="utf-8")
    return entry


def test_a_table_with_blobs_of_presto_is_read_and_they_are_written_back(sql_catalog: Catalog, table: Table) -> None:
    entry = with_entry(
        table, "apache-datasketches-theta-v1", "presto-sum-data-size-bytes-v1", "presto-kll-sketch-bytes-v1"
    )
    read = sql_catalog.load_table("db.t")
    assert [blob.type for blob in read.metadata.statistics[0].blob_metadata][1:] == [*PRESTO]
    version = bindings.publish(read, binding(read))
    entries = json.loads(stored(read).read_text(encoding="utf-8"))["statistics"]
    assert [item["snapshot-id"] for item in entries] == [entry["snapshot-id"], version.index_snapshot_id]
    assert entries[0] == entry


def models(*bases: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for base in bases:
        for model in base.__subclasses__():
            yield model
            yield from models(model)


def test_no_model_of_pyiceberg_names_the_types_that_it_knows() -> None:
    admit_foreign_blobs()
    assert pyiceberg.catalog.rest.TableResponse in set(models(IcebergBaseModel))
    for model in models(IcebergBaseModel, IcebergRootModel):
        assert "deletion-vector-v1" not in str(model.__dict__.get("__pydantic_core_schema__")), model


def test_the_place_of_what_is_invalid_in_a_tables_metadata_is_named(tmp_path: Path, table: Table) -> None:
    with_entry(table, 7)
    catalogs = Catalogs({"test": {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}})
    with pytest.raises(UnreadableTableError) as caught:
        catalogs.table("test", "db.t")
    assert (
        "db.t, and its metadata is invalid: statistics.0.blob-metadata.0.type: Input should be a valid string"
        in str(caught.value)
    )
    assert "rights" not in str(caught.value)
