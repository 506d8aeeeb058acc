"""Index metadata for other engines, against a schema made from Iceberg's draft."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pyiceberg.table import Table

from icepuffin.ops.binding.bindings import publish
from icepuffin.ops.binding.bound_versions import tagged_version
from icepuffin.ops.binding.derived_snapshots import NewPack
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.index.versions.exported_metadata import SUFFIX, export_metadata, index_metadata
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.snapshots import UnknownSnapshotError
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from tests.conftest import STORAGE, make_rows
from tests.ops.catalog.bindings import binding
from tests.repository import REPOSITORY

SCHEMA: dict[str, Any] = json.loads((REPOSITORY / "tests/ops/index/index-spec.schema.json").read_text(encoding="utf-8"))


def test_a_version_is_described_as_the_draft_has_it(table_factory: Callable[..., Table]) -> None:
    table = table_factory()
    table.append(make_rows(0, 60))
    definition = IndexDefinition(name="e", column="embedding", metric="l2", target_recall=0.5)
    head = table.metadata.current_snapshot_id or 0
    report = materialize_index(RunContext(table, STORAGE, LocalRunner(1)), definition, head)
    version = tagged_version(table.refresh(), "e")
    assert version is not None
    path, content = export_metadata(table, definition, version, STORAGE)
    assert path == f"{report.puffin_path}{SUFFIX}"
    store = open_storage(path, STORAGE)
    assert json.loads(store.read_range(path, 0, store.size(path))) == content
    jsonschema.validate(content, SCHEMA)
    (snapshot,) = content["snapshots"]
    assert (snapshot["snapshot-id"], snapshot["source-table-snapshot-id"]) == (version.index_snapshot_id, head)
    assert (content["type"], content["table-uuid"]) == ("VECTOR", str(table.metadata.table_uuid))
    assert snapshot["index-data"] == version.puffin_path
    vector = content["index-values"]["result-type"]["fields"][0]
    assert (vector["name"], vector["type"]["type"]) == ("embedding", "list")
    assert export_metadata(table, definition, version, STORAGE) == (path, content), "again: the same"
    assert not path.endswith(".metadata.json"), "DuckDB and ClickHouse take such a name for the table's own metadata"
    assert collect_garbage(table, storage=STORAGE, grace=timedelta(0)).deleted == (), "it stays with its version"
    stale = Path(path.removeprefix("file://"))
    stale.rename(stale.with_name(f"ann-e-snap-1.puffin{SUFFIX}"))
    assert len(collect_garbage(table, storage=STORAGE, grace=timedelta(0)).deleted) == 1


def test_each_part_names_its_column_its_version_and_its_packs(table_factory: Callable[..., Table]) -> None:
    """Keys are a file and a position, by Iceberg's reserved ids; values are a vector, with the same two."""
    table = table_factory()
    table.append(make_rows(0, 3))
    pack = NewPack(path="s3://nowhere/pack.puffin", size=4, footer_size=2)
    version = publish(table, replace(binding(table), new_packs=(pack,)))
    field = table.schema().find_field("embedding")
    definition = IndexDefinition(name="e", column="embedding", field_id=field.field_id)
    with table.update_schema() as change:
        change.rename_column("embedding", "vector")
    table.append(make_rows(3, 6).rename_columns(["id", "name", "section", "vector"]))
    content = index_metadata(table, definition, version)
    struct = {"type": "apply", "function": {"catalog": "iceberg_functions", "identifier": ["struct"]}}
    file, position = ({"type": "reference", "id": number} for number in (2147483646, 2147483645))
    assert content["index-keys"] == {**struct, "arguments": [file, position]}
    vector = {"type": "reference", "id": field.field_id}
    assert content["index-values"]["arguments"] == [vector, file, position]
    named, *source = content["index-values"]["result-type"]["fields"]
    assert (named["id"], named["name"]) == (field.field_id, "embedding"), "as its snapshot has it"
    assert [(one["id"], one["name"]) for one in source] == [
        (2147483538, "source_file_path"),
        (2147483537, "source_file_pos"),
    ]
    assert content["snapshots"] == [
        {
            "snapshot-id": version.index_snapshot_id,
            "source-table-snapshot-id": version.base_snapshot_id,
            "timestamp-ms": version.timestamp_ms,
            "index-data": version.puffin_path,
            "properties": {"icepuffin.build-id": version.build_id, "icepuffin.packs": json.dumps([pack.path])},
        }
    ]
    assert content["location"] == f"{table.location()}/metadata"
    assert content["properties"] == {"icepuffin.index": "e", "icepuffin.metric": "cosine"}
    assert index_metadata(table, replace(definition, column="vector"), version) == content, "by its id"
    other = index_metadata(table, replace(definition, name="f"), version)
    assert other["uuid"] != content["uuid"] == index_metadata(table, definition, version)["uuid"]
    with pytest.raises(UnknownSnapshotError, match=rf"snapshot {version.base_snapshot_id} has no column none"):
        index_metadata(table, IndexDefinition(name="e", column="none"), version)


@pytest.mark.parametrize("change", ["type", "snapshots", "index-keys", "table-uuid", "location"])
def test_the_schema_refuses_what_the_draft_does(change: str) -> None:
    complete = {
        "format-version": 1,
        "uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "table-uuid": "fb072c92-a02b-11e9-ae9c-1bb7bc9eca94",
        "location": "s3://b/e",
        "type": "SCALAR",
        "index-values": {"type": "reference", "id": 1},
        "index-keys": {"type": "reference", "id": 1},
        "snapshots": [],
    }
    jsonschema.validate(complete, SCHEMA)
    del complete[change]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(complete, SCHEMA)
