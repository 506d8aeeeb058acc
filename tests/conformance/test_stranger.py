"""A version that this project built is opened and searched by a reader made from docs/formats.md alone."""

import ast
import io
import json
import re
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.model import Action, SnapshotId
from icepuffin.ops.recall.curves import widths
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.snapshots import is_derived
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.file_sketches import FileKey, FileSketches, write_file_sketches
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.puffin import BytesSource, PuffinReader
from icepuffin.puffin.blobs.theta_blob import ThetaSketch
from tests.conformance import reader, stranger
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, index_head
from tests.ops.search.clusters import CENTERS, clustered
from tests.repository import REPOSITORY
from tests.selection import some

TableFactory = Callable[..., Table]
HERE = Path(__file__).parent


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    """Files, a deleted part, and rows that came after the first version: a delta shard and tombstones."""
    new_table = table_factory()
    new_table.append(make_rows(0, 300))
    new_table.append(make_rows(300, 500))
    return new_table


def change(table: Table) -> None:
    file = live_files(table.refresh(), table.metadata.current_snapshot_id or 0).files[0]
    append_position_deletes(table, {file.path: np.arange(0, 40)})
    table.refresh().append(make_rows(500, 540))


@pytest.mark.parametrize("name", ["reader.py", "stranger.py"])
def test_the_stranger_knows_nothing_of_this_project(name: str) -> None:
    tree = ast.parse((HERE / name).read_text(encoding="utf-8"))
    modules = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    ours = {"icepuffin", "puffin", "ops", "ann_kernels", "assets", "orchestration", "pyiceberg"}
    assert not {module.split(".")[0] for module in modules} & ours
    assert {module for module in modules if module.startswith("tests")} <= {"tests.conformance"}


@pytest.fixture(params=[False, True], ids=["one file", "packs"])
def packed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the built shards lie in a pack, and the delta in the version's own file."""
    if request.param:
        monkeypatch.setattr(index_packs, "PACK_BYTES", 20_000)
        monkeypatch.setattr(index_packs, "WORTH_SHARE", 1)
    return bool(request.param)


@pytest.mark.parametrize(
    ("vectors", "metric"), some(list(product(["f32", "f16", "rq4", "rq5", "rq8", "none"], ["l2", "cosine", "ip"])), 7)
)
def test_a_stranger_finds_the_rows_that_we_find(table: Table, metric: str, vectors: str, packed: bool) -> None:
    definition = replace(DEFINITION, metric=metric, vectors=vectors, target_recall=0.3)
    index_head(table, definition)
    change(table)
    index_head(table, definition)
    metadata = json.loads(to_path(table.refresh().metadata_location).read_text(encoding="utf-8"))
    version = stranger.Version(metadata, "e")
    ours = open_index(table, definition, storage=STORAGE)
    query_vectors = queries(4)
    reads = {"rerank": False} if definition.code_bits else {"oversample": 20}
    result = ours.search(query_vectors, 5, search_list=100, columns=["id"], **reads).rows.to_pylist()
    same = 0
    for number, query in enumerate(query_vectors):
        other_rows = version.nearest(query, 5, 100)
        own_rows = [row for row in result if row["query"] == number]
        ids = [pq.read_table(path, columns=["id"])["id"][row].as_py() for _, path, row in other_rows]
        same += len({row["id"] for row in own_rows} & set(ids))
        if vectors != "none":
            assert ids == [row["id"] for row in own_rows]
            # ours are of the table's vectors, the stranger's of what the shard holds
            np.testing.assert_allclose(
                [far for far, _, _ in other_rows],
                [row["distance"] for row in own_rows],
                rtol=2e-3 if vectors == "f16" else 1e-4,
                atol=1e-5,
            )
    assert same >= 18
    assert (version.routing["packs"][0][0] == 1) is packed
    assert version.routing["packs"][-1] == (0, 0)


@pytest.mark.usefixtures("packed")
@pytest.mark.parametrize("vectors", ["f32", "none"])
def test_a_stranger_finds_rows_that_have_moved(table: Table, vectors: str) -> None:
    """Twice to new files, and then another version copies the addresses. Lean shards have codes of 4 bits."""
    definition = replace(DEFINITION, vectors=vectors, pq_nbits=4, target_recall=0.3)
    index_head(table, definition)
    change(table)
    for _ in range(2):
        index_head(table, definition)
        table.overwrite(table.scan().to_arrow().sort_by([("id", "descending")]))
    index_head(table, definition)
    table.append(make_rows(600, 610))
    index_head(table, definition)
    version = stranger.Version(json.loads(to_path(table.refresh().metadata_location).read_text(encoding="utf-8")), "e")
    assert [length > 0 for length, _ in version.routing["addresses"]] == [True] * 4 + [False]
    rows = table.scan().to_arrow()
    for number in range(0, len(rows), 50):
        distance, path, row = version.nearest(np.array(rows["embedding"][number].as_py(), np.float32), 1, 100)[0]
        assert distance < 1e-4
        assert pq.read_table(path, columns=["id"])["id"][row] == rows["id"][number]


def test_a_stranger_prunes_files_as_we_do(table: Table) -> None:
    index_head(table)
    metadata = json.loads(to_path(table.refresh().metadata_location).read_text(encoding="utf-8"))
    version = stranger.Version(metadata, "e")
    everything = set(version.centroid["files"])
    assert version.files_within(queries(1)[0], 100.0) == everything
    assert version.files_within(np.full(16, 1000.0), 10.0) == set()
    for query in queries(5):
        result = open_index(table, DEFINITION, storage=STORAGE).within(query, 2.6, columns=["id"])
        files = {task.file.file_path for task in table.scan().plan_files()}
        assert result.profile.pruning is not None
        assert len(files) - result.profile.pruning.files_pruned == len(version.files_within(query, 2.6))


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_a_stranger_searches_a_version_without_graphs(table_factory: TableFactory, metric: str) -> None:
    definition = replace(DEFINITION, metric=metric, method="centroid")
    table = table_factory()
    for number, center in enumerate(CENTERS[:4]):
        table.append(clustered(100 * number, 40, center.tolist()))
    index_head(table, definition)
    metadata = json.loads(to_path(table.refresh().metadata_location).read_text(encoding="utf-8"))
    version = stranger.Version(metadata, "e")
    assert version.advice == []
    query = np.asarray(CENTERS[2] + 0.05)
    result = open_index(table, definition, storage=STORAGE).search(query, 5, columns=["id"])
    others, read = version.scan(query, 5)
    assert [row["id"] for row in result] == [
        pq.read_table(path, columns=["id"])["id"][row].as_py() for _, path, row in others
    ]
    np.testing.assert_allclose([far for far, _, _ in others], result.rows["distance"].to_pylist(), rtol=1e-9)
    assert result.profile.pruning is not None
    assert read == 4 - result.profile.pruning.files_pruned < 4


@pytest.mark.parametrize(("element_type", "metric"), [("bit", "hamming"), ("f16", "l2")])
def test_a_stranger_reads_vectors_out_of_bytes(table_factory: TableFactory, element_type: str, metric: str) -> None:
    numbers = np.concatenate([np.asarray(make_rows(first, first + 60)["embedding"].to_pylist()) for first in (0, 60)])
    stored = np.packbits(numbers > 0, axis=1) if metric == "hamming" else numbers.astype("<f2")
    rows = pa.table({"id": range(120), "embedding": [vector.tobytes() for vector in stored]})
    table = table_factory().catalog.create_table("db.octets", rows.schema)
    for first in (0, 60):
        table.append(rows.slice(first, 60))
    definition = replace(DEFINITION, element_type=element_type, metric=metric, vectors="none", target_recall=0.3)
    balls = replace(definition, name="balls", method="centroid")
    query = (numbers[7] > 0 if metric == "hamming" else numbers[7]).astype(np.float64)
    for one in (definition, balls):
        index_head(table, one)
        metadata = json.loads(to_path(table.refresh().metadata_location).read_text(encoding="utf-8"))
        version = stranger.Version(metadata, one.name)
        others = version.nearest(query, 5, 120) if one.has_graphs else version.scan(query, 5)[0]
        reader = open_index(table, one, storage=STORAGE)
        result = reader.search(query, 5, search_list=120, oversample=20).rows
        np.testing.assert_allclose([far for far, _, _ in others], result["distance"].to_pylist(), rtol=1e-6)


def with_community_names(path: Path) -> None:
    """Rewrite the own footer of a file, with the other names of its blobs' types; without the public one."""
    data = path.read_bytes()
    (size,) = struct.unpack("<i", data[-12:-8])
    data = data[: int(json.loads(data[-12 - size : -12])["properties"]["icepuffin.own-bytes"])]
    (size,) = struct.unpack("<i", data[-12:-8])
    start = len(data) - 12 - size
    footer = json.loads(data[start:-12])
    names = {name: other for other, name in stranger.ALSO_READ.items()}
    for blob in footer["blobs"]:
        blob["type"] = names.get(blob["type"], blob["type"])
    payload = json.dumps(footer).encode()
    path.write_bytes(data[:start] + payload + struct.pack("<iI", len(payload), 0) + b"PFA1")


def test_a_version_is_read_by_the_other_names_of_its_blobs(table: Table) -> None:
    index_head(table)
    before = open_index(table.refresh(), DEFINITION, storage=STORAGE).search(queries(2), 5, columns=["id"]).rows
    (version,) = index_versions(table, "e")
    with_community_names(to_path(version.puffin_path))
    assert b"flockdb" not in to_path(version.puffin_path).read_bytes()
    reader = open_index(table, DEFINITION, storage=STORAGE)
    assert reader.coverage is Coverage.EXACT_VERSION
    assert reader.search(queries(2), 5, columns=["id"]).rows == before
    assert reader.within(queries(1)[0], 2.6, columns=["id"]).profile.pruning is not None
    report = check_integrity(RunContext(table, STORAGE), version)
    assert (report.faults, report.rows) == ((), table.scan().count())
    metadata = json.loads(to_path(table.metadata_location).read_text(encoding="utf-8"))
    assert len(stranger.Version(metadata, "e").nearest(queries(1)[0], 5, 50)) == 5
    table.append(make_rows(600, 610))
    assert index_head(table).action is Action.REFRESHED


@pytest.mark.parametrize("method", ["diskann", "centroid"])
@pytest.mark.usefixtures("packed")
def test_blobs_are_written_under_the_names_that_the_index_has(table: Table, method: str) -> None:
    """In packs, too. The next version has the names that the index has by then, beside shards that it shares."""
    community = replace(DEFINITION, method=method, blob_names="community")
    for definition in (community, replace(community, blob_names="flockdb")):
        report = index_head(table, definition)
        assert report.action is (Action.BUILT if definition is community else Action.REFRESHED)
        version = index_versions(table.refresh(), "e")[-1]
        types = {blob["type"] for blob, _ in reader.puffin(to_path(version.puffin_path).read_bytes())[0]}
        for pack in version.packs if definition is community else ():
            types |= {blob["type"] for blob, _ in reader.puffin(to_path(pack.path).read_bytes())[0]}
        own, other = {*stranger.ALSO_READ.values()}, {*stranger.ALSO_READ}
        shards = {"flockdb-ann-index-v1", "ann-vamana-graph-v1"} if method == "centroid" else set()
        assert types & (own | other) == (other if definition is community else own) - shards
        assert check_integrity(RunContext(table, STORAGE), version).faults == ()
        metadata = json.loads(to_path(table.metadata_location).read_text(encoding="utf-8"))
        found = stranger.Version(metadata, "e")
        assert method == "centroid" or len(found.nearest(queries(1)[0], 5, 50)) == 5
        result = open_index(table, definition, storage=STORAGE).search(queries(2), 5, columns=["id"])
        assert (result.coverage, len(result)) == (Coverage.EXACT_VERSION, 10)
        change(table)


def test_the_properties_of_blobs_are_those_of_the_text(table: Table) -> None:
    index_head(table)
    change(table)
    index_head(table)
    version = index_versions(table.refresh(), "e")[-1]
    blobs, _ = reader.puffin(to_path(version.puffin_path).read_bytes())
    named = {blob["type"]: blob["properties"] for blob, _ in blobs}
    routing = stranger.Version(json.loads(to_path(table.metadata_location).read_text(encoding="utf-8")), "e").routing
    ratios = [f"{len(entry[-1]) / entry[0]:.6f}" for entry in routing["shards"]]
    properties = named["flockdb-ann-routing-v1"]
    assert [properties[f"ann.shard_{number}.tombstone_ratio"] for number in range(len(ratios))] == ratios
    assert any(float(ratio) > 0 for ratio in ratios)
    centroid = reader.centroid(next(data for blob, data in blobs if blob["type"] == "flockdb-ann-centroid-v1"))
    expected = {"dimensions": str(centroid["dims"]), "metric": "l2", "entries": str(len(centroid["entries"]))}
    assert expected.items() <= named["flockdb-ann-centroid-v1"].items()


def test_a_stranger_reads_the_attributes(table: Table) -> None:
    definition = replace(DEFINITION, filters=("section", "id"))
    index_head(table, definition)
    change(table)
    index_head(table, definition)
    metadata = json.loads(to_path(table.refresh().metadata_location).read_text(encoding="utf-8"))
    version = stranger.Version(metadata, "e")
    assert [column["field_id"] for column in version.attributes] == [3, 1]
    for column, name in zip(version.attributes, definition.filters, strict=True):
        assert column["files"].keys() == {slot for slot, file in enumerate(version.routing["files"]) if file[0]}
        for slot, values in column["files"].items():
            assert values == pq.read_table(version.path(slot), columns=[name])[name].to_pylist()


@pytest.mark.parametrize("pack_bytes", [1, index_packs.PACK_BYTES])
def test_a_stranger_reads_the_included_columns(table: Table, pack_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_packs, "PACK_BYTES", pack_bytes)
    definition = replace(DEFINITION, include=("section", "id"))
    index_head(table, definition)
    change(table)
    index_head(table, definition)
    metadata = json.loads(to_path(table.refresh().metadata_location).read_text(encoding="utf-8"))
    version = stranger.Version(metadata, "e")
    assert version.included.keys() == {3, 1}
    for field_id, name in ((3, "section"), (1, "id")):
        assert version.included[field_id].keys() == {
            slot for slot, file in enumerate(version.routing["files"]) if file[0]
        }
        for slot, values in version.included[field_id].items():
            assert values == pq.read_table(version.path(slot), columns=[name])[name].to_pylist()


@pytest.mark.usefixtures("packed")
def test_a_stranger_reads_the_advice(table: Table) -> None:
    index_head(table)
    metadata = json.loads(to_path(table.refresh().metadata_location).read_text(encoding="utf-8"))
    advice = stranger.Version(metadata, "e").advice
    assert len(advice) == 3
    assert all(advice)
    for points in advice:
        for k, length in ((10, 4), (100, 5)):
            # a narrow beam that meets too few rows compares all of them, and costs more than a wider one
            own = sorted((tuple(point) for point in points if len(point) == length), key=lambda point: point[3])
            read = widths(json.dumps(points), k)
            assert own
            assert own == [
                (point.search_list, point.oversample, point.recall, point.distances, point.k)[:length] for point in read
            ]


@pytest.mark.usefixtures("packed")
def test_the_text_lists_all_keys_and_properties(table: Table) -> None:
    definition = replace(DEFINITION, filters=("section",), include=("id",))
    index_head(table, definition)
    count_theta_sketches(RunContext(table, STORAGE, LocalRunner()), table.metadata.current_snapshot_id or 0).publish()
    change(table)
    table.overwrite(table.refresh().scan().to_arrow())
    index_head(table, definition)
    text = (REPOSITORY / "docs/formats.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`([\w.<>-]+)`", text.partition("## 11 ")[2] + text.partition("## 7 ")[2]))
    derived = [item for item in table.refresh().metadata.snapshots if is_derived(item)]
    keys = {key for item in derived if item.summary for key in item.summary.additional_properties}
    for item in table.metadata.statistics:
        footer = PuffinReader(BytesSource(to_path(item.statistics_path).read_bytes())).footer
        keys |= footer.properties.keys() | {key for blob in footer.blobs for key in blob.properties}
    named = {key.replace("theta-sketches.", "ann.") for key in keys if not key.startswith("total-")}
    named = {re.sub(r"shard_\d+\.", "shard_<i>.", key) for key in named}
    assert named - listed == set()
    assert named > {"ann.took", "ann.tombstone_ratio", "algorithm", "ndv"}


def test_sketches_by_data_file_are_read_through_the_text() -> None:
    sketches = {
        (3, "string"): ThetaSketch(2**62, np.array([7, 2**50], np.uint64)),
        (1, "long"): ThetaSketch(2**63 - 1, np.array([5], np.uint64)),
    }
    many = {(1, "long"): ThetaSketch(2**63 - 1, np.arange(1, 400, dtype=np.uint64))}
    files = (
        FileSketches(FileKey("data/a.parquet", "ab" * 32), sketches),
        FileSketches(FileKey("data/b.parquet", "", added_by=SnapshotId(7)), many),
    )
    sink = io.BytesIO()
    write_file_sketches(sink, files, snapshot_id=4, sequence_number=2, build_id="b", counts=())
    ((blob, images), (listing, directory)), _ = reader.puffin(sink.getvalue())
    assert (blob["type"], blob["fields"], blob.get("compression-codec")) == ("icepuffin-theta-files-v4", [1, 3], None)
    assert (listing["type"], listing["fields"]) == ("icepuffin-theta-directory-v1", [1, 3])
    first = {(1, "long"): (2**63 - 1, [5]), (3, "string"): (2**62, [7, 2**50])}
    second = {(1, "long"): (2**63 - 1, list(range(1, 400)))}
    assert reader.sketches_by_file(directory, images) == [
        {"path": "data/a.parquet", "deletes": "ab" * 32, "added_by": 0, "sketches": first},
        {"path": "data/b.parquet", "deletes": "", "added_by": 7, "sketches": second},
    ]


@pytest.mark.usefixtures("packed")
def test_a_stranger_reads_the_words_of_texts(table: Table) -> None:
    """Of an analyzer without stems: the text's other steps are in the standard library."""
    definition = create_index(table, replace(DEFINITION, target_recall=0.3, text=("name", "section"), analyzer="none"))
    index_head(table, definition)
    change(table)
    index_head(table, definition)
    metadata = json.loads(to_path(table.refresh().metadata_location).read_text(encoding="utf-8"))
    version = stranger.Version(metadata, "e")
    ids = {field.name: field.field_id for field in table.schema().fields}
    for column in definition.text:
        files = version.words[ids[column]]
        assert len(files) == 3
        for slot, rows in files.items():
            texts = pq.read_table(version.path(slot), columns=[column])[column].to_pylist()
            assert rows == [dict(Counter(text.split())) for text in texts]
