"""A real table with vectors, indexed, for benchmarks: SQLite catalog, local warehouse, and what a step of work cost."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table, TableProperties
from pyiceberg.typedef import Record

from examples.demo.row_deletes import commit_delete_files
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ops.binding import bindings
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.binding.expiration import expire_packs
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.storage import open_storage, relative_to
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.row_deletes import deleted_by_file
from icepuffin.ops.table.snapshots import data_snapshots
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext, TaskRunner

SCHEMA = pa.schema([("id", pa.int64()), ("embedding", pa.list_(pa.float32()))])
STORAGE = StorageConfig({})


class RowSource(Protocol):
    """Vectors f32[N, D] by row number: an array, or what makes rows when they are read."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


class Lake:
    """Table `db.t` of some of the vectors; further rows come from those held back.

    `files`: data files of the table; None: open the one of so many rows that another process made in the folder.
    """

    format_version = "2"
    schema = SCHEMA

    def __init__(
        self,
        folder: Path,
        vectors: RowSource,
        rows: int,
        files: int | None,
        definition: IndexDefinition,
        threads: int,
        tasks: str = "local",
    ) -> None:
        self.properties = self._catalog_properties(folder)
        catalog = open_catalog("bench", self.properties)
        if files is not None:
            catalog.create_namespace("db")
            catalog.create_table("db.t", self.schema, properties={"format-version": self.format_version})
        self.table: Table = catalog.load_table("db.t")
        self.definition = definition
        self.base_rows = rows
        self._vectors = vectors
        self._next = rows if files is None else 0
        self.runner = _runner_of(tasks, threads)
        for number in range(files or 0):
            self.append((number + 1) * rows // files - self._next)

    def _catalog_properties(self, folder: Path) -> dict[str, str]:
        return properties_in(folder)

    @property
    def head(self) -> int:
        head = self.table.metadata.current_snapshot_id
        if head is None:
            raise ValueError("the table has no snapshot")
        return head

    def append(self, count: int) -> None:
        """Append the next rows, as one file."""
        ids = np.arange(self._next, self._next + count)
        self._write(self.rows_of(ids, self._vectors[self._next : self._next + count]))
        self._next += count

    def write_files(self, rows: range) -> list[DataFile]:
        """Data files of some rows, which `commit_files` adds: other processes can write them."""
        written = self.rows_of(np.arange(rows.start, rows.stop), self._vectors[rows.start : rows.stop])
        return list(_dataframe_to_data_files(self.table.metadata, written, self.table.io))

    def commit_files(self, files: Iterable[DataFile]) -> None:
        """Append written data files, in one snapshot."""
        with self.table.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
            for file in files:
                snapshot.append_data_file(file)

    def rows_of(self, ids: npt.NDArray[np.int64], vectors: npt.NDArray[Any]) -> pa.Table:
        """Rows of `schema` by their ids."""
        return arrow_rows(ids, vectors)

    def _write(self, rows: pa.Table) -> None:
        self.table.append(rows)

    def rewrite(self, files: int) -> None:
        """Rewrite the same rows into so many other files."""
        rows = self.table.refresh().scan().to_arrow().cast(self.table.schema().as_arrow())
        size = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES
        self.table.transaction().set_properties({size: str(int(1.01 * rows.nbytes / files))}).commit_transaction()
        self.table.overwrite(rows)
        self.table.transaction().remove_properties(size).commit_transaction()

    def merge_files(self, together: int) -> None:
        """The live rows of each `together` data files as one file, in one snapshot: the memory of one such file."""
        table = self.table.refresh()
        tasks = sorted(table.scan().plan_files(), key=lambda task: task.file.file_path)
        metadata, io = table.metadata, table.io
        scan = ArrowScan(metadata, io, table.schema(), AlwaysTrue())
        with table.transaction() as transaction, transaction.update_snapshot().overwrite() as snapshot:
            for start in range(0, len(tasks), together):
                group = tasks[start : start + together]
                rows = scan.to_table(group).cast(table.schema().as_arrow())
                for file in _dataframe_to_data_files(metadata, rows, io):
                    snapshot.append_data_file(file)
                for task in group:
                    snapshot.delete_data_file(task.file)

    def index(self, definition: IndexDefinition | None = None) -> IndexReport:
        """The head's version."""
        return materialize_index(
            RunContext(self.table.refresh(), STORAGE, self.runner), definition or self.definition, self.head
        )

    def forget(self, index: str) -> None:
        """Drop an index, its versions and their files."""
        table = self.table.refresh()
        own = index_versions(table, index)
        bindings.drop(table, f"ann_{index}")
        table.refresh().maintenance.expire_snapshots().by_ids([item.index_snapshot_id for item in own]).commit()
        self.table.refresh()

    def back_to(self, snapshot_id: int, index_snapshot_id: int) -> None:
        """Undo everything since the table was made: other snapshots and tags go, the files stay."""
        if self.head != snapshot_id:
            self.table.manage_snapshots().rollback_to_snapshot(snapshot_id).commit()
        self._next = self.base_rows
        self.index()
        self.table.refresh()
        before = {item.snapshot_id for item in data_snapshots(self.table)}
        refs = self.table.metadata.refs
        holders = {ref.snapshot_id for name, ref in refs.items() if "-pack-" in name}
        kept = {snapshot_id, index_snapshot_id, *before, *holders}
        bindings.drop(self.table, *(name for name, ref in refs.items() if ref.snapshot_id not in kept))
        newer = [item.snapshot_id for item in self.table.metadata.snapshots if item.snapshot_id not in kept]
        if newer:
            self.table.maintenance.expire_snapshots().by_ids(newer).commit()
        expire_packs(self.table)

    def delete_ids(self, ids: npt.NDArray[np.int64]) -> None:
        """An equality delete, as upserts write them, of one file without bounds: it may be about all data files."""
        field_id = self.table.schema().find_field("id").field_id
        column = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": str(field_id)})
        target = self.table.io.new_output(self.table.location_provider().new_data_location(f"{uuid4()}-ids.parquet"))
        with target.create() as sink:
            pq.write_table(pa.table([ids], schema=pa.schema([column])), sink)
        file = DataFile.from_args(
            content=DataFileContent.EQUALITY_DELETES,
            file_path=target.location,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=len(ids),
            file_size_in_bytes=len(target.to_input_file()),
            equality_ids=[field_id],
        )
        file.spec_id = self.table.spec().spec_id
        commit_delete_files(self.table, [file])
        self.table.refresh()

    def random_rows(self, count: int, seed: int) -> dict[str, npt.NDArray[np.int64]]:
        """By data file: positions of `count` random live rows."""
        live = live_files(self.table.refresh(), self.head)
        deleted = deleted_by_file(lambda path: open_storage(path, STORAGE), live.files)
        alive = [np.setdiff1d(np.arange(file.record_count), deleted[file.path]) for file in live.files]
        owner = np.repeat(np.arange(len(alive)), [len(rows) for rows in alive])
        chosen = np.sort(np.random.default_rng(seed).choice(len(owner), count, replace=False))
        positions, owners = np.concatenate(alive)[chosen], owner[chosen]
        return {live.files[number].path: positions[owners == number] for number in np.unique(owners)}

    def rows_of_shard(self, number: int, share: float) -> dict[str, npt.NDArray[np.int64]]:
        """By data file: positions of some live rows that one shard of the newest version holds."""
        version = index_versions(self.table.refresh(), self.definition.name)[-1]
        opened = open_version(version, STORAGE)
        slots, positions = open_shard(opened.shards[number], STORAGE).read_locations()
        chosen = np.sort(np.random.default_rng(1).choice(len(slots), int(share * len(slots)), replace=False))
        files = opened.routing.files
        root = self.table.location()
        paths = {relative_to(file.path, root): file.path for file in live_files(self.table, self.head).files}
        return {
            paths[files[slot].path]: np.sort(positions[chosen[slots[chosen] == slot]])
            for slot in np.unique(slots[chosen])
        }

    def queries(self, count: int) -> npt.NDArray[np.float32]:
        """f32[count, D] near rows of all ages."""
        rng = np.random.default_rng(3)
        picked = np.sort(rng.choice(self._next, count, replace=False))
        vectors = self._vectors[picked].astype(np.float32)
        return vectors + rng.standard_normal(vectors.shape).astype(np.float32) * vectors.std() * np.float32(0.1)

    def probe_ms(self, count: int = 300, k: int = 10) -> dict[str, float]:
        """Median milliseconds of one query after another, one thread: all of it, and what the graphs take."""
        reader = open_index(self.table.refresh(), self.definition, storage=STORAGE, threads=1)
        query_vectors = self.queries(count)
        reader.search(query_vectors[:20], k, columns=["id"])
        whole, graphs = [], []
        for query in query_vectors:
            begun = time.perf_counter()
            found = reader.search(query, k, columns=["id"])
            whole.append(1000 * (time.perf_counter() - begun))
            graphs.append(found.profile.milliseconds["index"])
        return {"p50_ms": float(np.median(whole)), "graphs_p50_ms": float(np.median(graphs))}

    def recall(self, definition: IndexDefinition, queries: int = 200, k: int = 10) -> float:
        """recall@k of the head's version, of queries near rows that the table has or had."""
        query_vectors = self.queries(queries)
        result = open_index(self.table.refresh(), definition, storage=STORAGE).search(query_vectors, k, columns=["id"])
        metric = definition.metric
        true = open_exact(self.table, "embedding", metric, storage=STORAGE).search(query_vectors, k, columns=["id"])
        ids, true_ids = _by_query(result.rows, queries, k), _by_query(true.rows, queries, k)
        return float(np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(ids, true_ids, strict=True)]))


def _runner_of(name: str, threads: int) -> TaskRunner:
    """`local`: this process; `spark`: workers of `local[threads]`."""
    if name == "local":
        return LocalRunner(threads)
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from icepuffin.ops.spark.spark_runner import SparkRunner  # noqa: PLC0415

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{threads},4]").config("spark.driver.memory", "1g")
    builder = (
        builder.config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    return SparkRunner(builder.getOrCreate())


def properties_in(folder: Path) -> dict[str, str]:
    """Properties of the catalog in a folder."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def held_out(path: Path, count: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(queries f32[count, D], all other vectors f32[N - count, D] in their own order) of an .npy; always the same."""
    vectors = np.load(path, mmap_mode="r")
    order = np.random.default_rng(1).permutation(len(vectors))
    return np.asarray(vectors[order[:count]], np.float32), np.asarray(vectors[np.sort(order[count:])], np.float32)


def arrow_rows(ids: npt.NDArray[np.int64], vectors: npt.NDArray[Any]) -> pa.Table:
    """Rows of `SCHEMA`."""
    flat = np.ascontiguousarray(vectors, np.float32)
    offsets = np.arange(len(flat) + 1, dtype=np.int32) * flat.shape[1]
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat.reshape(-1)))
    return pa.table({"id": ids, "embedding": lists}, schema=SCHEMA)


def _by_query(rows: pa.Table, queries: int, k: int) -> npt.NDArray[np.int64]:
    return np.asarray(rows["id"]).reshape(queries, k)


def measured(work: Callable[[], IndexReport]) -> dict[str, Any]:
    """Seconds, of those in graph kernels and in the store's copying, CPU seconds of this process and bytes that it read
    and wrote.
    """
    before = _io()
    with _kernel_clock() as kernels:
        begun, cpu_begun = time.perf_counter(), time.process_time()
        report = work()
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_begun
    after = _io()
    # what the store reads and writes by itself to join the file is counted as ours by the kernel
    joined = report.bytes_total - report.bytes_shared if "copy" in report.stage_seconds else 0
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "kernel_seconds": sum(kernels),
        "bytes_read": after["rchar"] - before["rchar"] - joined,
        "bytes_written": after["wchar"] - before["wchar"] - joined,
        "bytes_copied": joined,
        "action": str(report.action),
        "inserted": report.inserted,
        "remapped": report.remapped,
        "tombstones": report.tombstones,
        "shards_rebuilt": report.shards_rebuilt,
        "deltas": report.deltas,
        "merged": report.merged,
        "gate_recall": report.recall,
        "recall_basis": asdict(report.recall_basis) if report.recall_basis else None,
        "stage_seconds": dict(report.stage_seconds),
        "copy_seconds": report.stage_seconds.get("copy", 0.0),
        "index_snapshot_id": report.index_snapshot_id,
    }


def _io() -> dict[str, int]:
    lines = Path("/proc/self/io").read_text().splitlines()
    return {line.split(":")[0]: int(line.split(":")[1]) for line in lines}


@contextmanager
def _kernel_clock() -> Iterator[list[float]]:
    """Collects the seconds of graph builds and inserts, which run in this process."""
    spent: list[float] = []
    names = ("build", "insert")
    originals = {name: getattr(vamana, name) for name in names}

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*args, **named)
            finally:
                spent.append(time.perf_counter() - begun)

        return call

    try:
        for name, function in originals.items():
            setattr(vamana, name, timed(function))
        yield spent
    finally:
        for name, function in originals.items():
            setattr(vamana, name, function)


def fresh(definition: IndexDefinition) -> IndexDefinition:
    """The same index under another name, which has no version to start from."""
    return replace(definition, name="fresh")
