"""Random histories of tables that Flink and CDC tools upsert into: equality deletes, committed by Iceberg's Java.

Spark reads such tables, and is what searches are compared with.
"""

import io
import random
import uuid
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, NestedField, PrimitiveType, StringType

from icepuffin.ops.catalog.bound_versions import index_versions
from icepuffin.ops.catalog.snapshots import is_derived
from icepuffin.ops.index import IndexDefinition, create_index, load_definition, materialize_index
from icepuffin.ops.index.integrity import check_integrity
from icepuffin.ops.search import Coverage, exact_search, open_index
from icepuffin.ops.tasks.runner import LocalRunner
from icepuffin.ops.theta import materialize_theta_sketches
from tests.conftest import STORAGE, queries, vectors_of

DIMS = 4
_ARROW = {IntegerType: pa.int32(), LongType: pa.int64(), StringType: pa.string()}
_NAMES = ["", "a", "ab", "abc", "b", "\u00e9", "z" * 20, "z" * 19 + "y", None]
SECTIONS = ["x", "y", "z"]


@dataclass
class UpsertedTable:
    """One table as Spark, Iceberg's Java and PyIceberg see it. `uid` tells rows apart; keys repeat."""

    spark: Any
    catalog: Catalog
    catalog_name: str
    name: str
    rng: random.Random
    next_uid: int = 0
    added: int = 0
    log: list[str] = field(default_factory=list)
    definition: IndexDefinition | None = None

    @property
    def table(self) -> Table:
        return self.catalog.load_table(f"db.{self.name}")

    def sql(self, text: str) -> list[Any]:
        return list(self.spark.sql(text.format(t=f"{self.catalog_name}.db.{self.name}", n=f"db.{self.name}")).collect())

    def java(self) -> Any:
        jvm = self.spark._jvm
        return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self.spark._jsparkSession, f"{self.catalog_name}.db.{self.name}"
        )

    def create(self, version: str) -> None:
        # Spark keeps deleted keys by their file's path, in the type that a column had then: widened ones match no more
        self.spark.conf.set("spark.sql.iceberg.executor-cache.delete-files.enabled", "false")
        partitioned = self.rng.choice(["", "PARTITIONED BY (section)", "PARTITIONED BY (id, section)"])
        self.sql(
            "CREATE TABLE {t} (uid bigint, id int, name string, section string, embedding array<float>) USING iceberg "
            + partitioned
            + f" TBLPROPERTIES ('format-version'='{version}', 'write.delete.mode'='merge-on-read', "
            "'write.metadata.metrics.default'='truncate(3)')"
        )
        self.log.append(f"create v{version} {partitioned}")
        self.append()
        create_index(
            self.table,
            IndexDefinition(
                name="e", column="embedding", metric="l2", max_degree=8, search_list=16, shards=2, target_recall=0.3
            ),
        )
        self.definition = load_definition(self.table, "e")

    # what writers do

    def _fields(self) -> dict[str, NestedField]:
        return {found.name: found for found in self.table.schema().fields}

    def _value(self, name: str) -> Any:
        """A value of a column, one of few, so that keys repeat."""
        found = self._fields()[name].field_type
        if isinstance(found, StringType):
            return self.rng.choice(SECTIONS if name == "section" else _NAMES)
        return self.rng.choice([None, *range(-3, 12)])

    def _rows(self, count: int, **fixed: Any) -> pa.Table:
        uids = np.arange(self.next_uid, self.next_uid + count)
        self.next_uid += count
        columns: dict[str, Any] = {}
        for name in self._fields():
            if name == "uid":
                columns[name] = uids.tolist()
            elif name == "embedding":
                columns[name] = vectors_of(uids, dims=DIMS).tolist() if count else []
            else:
                columns[name] = [fixed[name] if name in fixed else self._value(name) for _ in range(count)]
        return self._arrow(columns)

    def _arrow(self, columns: dict[str, Any]) -> pa.Table:
        fields = self._fields()
        arrays, arrow_fields = [], []
        for name, values in columns.items():
            if name == "embedding":
                list_type = fields[name].field_type
                element = pa.field("element", pa.float32(), metadata={"PARQUET:field_id": str(list_type.element_id)})
                kind: pa.DataType = pa.list_(element)
            else:
                kind = _ARROW[type(fields[name].field_type)]
            arrays.append(pa.array(values, kind))
            arrow_fields.append(pa.field(name, kind, metadata={"PARQUET:field_id": str(fields[name].field_id)}))
        return pa.table(arrays, schema=pa.schema(arrow_fields))

    def append(self) -> None:
        java = self.java()
        append = java.newAppend()
        for _ in range(self.rng.choice([1, 1, 2])):
            rows, file, partition = self._data_file(java)
            append = append.appendFile(file)
            self.log.append(f"append {rows.num_rows} to {partition or 'no partition'}")
        append.commit()

    def _data_file(self, java: Any, chosen: tuple[Any, str, dict[str, Any]] | None = None) -> tuple[pa.Table, Any, str]:
        spec, partition, fixed = chosen or self._partition(java)
        rows = self._rows(self.rng.randint(1, 9), **fixed)
        builder = self.spark._jvm.org.apache.iceberg.DataFiles.builder(spec)
        return rows, self._finish(builder, java, rows, self._write(rows, "data"), partition), partition

    def _write(self, rows: pa.Table, kind: str) -> tuple[str, int]:
        buffer = io.BytesIO()
        pq.write_table(rows, buffer, row_group_size=self.rng.choice([3, 1000]))
        table = self.table
        path = f"{table.location()}/data/{uuid.uuid4()}-{kind}.parquet"
        with table.io.new_output(path).create() as sink:
            sink.write(buffer.getvalue())
        return path, buffer.tell()

    def _metrics(self, java: Any, path: str) -> Any:
        iceberg = self.spark._jvm.org.apache.iceberg
        source = java.io().newInputFile(path)
        return iceberg.parquet.ParquetUtil.fileMetrics(source, iceberg.MetricsConfig.forTable(java))

    def _finish(self, builder: Any, java: Any, rows: pa.Table, written: tuple[str, int], partition: str) -> Any:
        path, size = written
        builder = builder.withPath(path).withFormat("PARQUET").withFileSizeInBytes(size)
        if partition:
            builder = builder.withPartitionPath(partition)
        if self.rng.random() < 0.7:
            return builder.withMetrics(self._metrics(java, path)).build()
        return builder.withRecordCount(rows.num_rows).build()

    def _partition(self, java: Any) -> tuple[Any, str, dict[str, Any]]:
        """(a spec, a partition path of it, values of the columns that have to have one there)."""
        spec = self.rng.choice([*dict(java.specs()).values()])
        if self.rng.random() < 0.6:
            spec = java.spec()
        path, fixed = [], {}
        for one in list(spec.fields()):
            column = java.schema().findColumnName(one.sourceId())
            value = None if str(one.transform()) == "void" else self._value(str(column))
            path.append(f"{one.name()}={'__HIVE_DEFAULT_PARTITION__' if value is None else value}")
            if str(one.transform()) != "void":
                fixed[str(column)] = value
        return spec, "/".join(path), fixed

    def _key_file(self, java: Any, keys: list[str], values: list[dict[str, Any]], where: tuple[Any, str]) -> Any:
        spec, partition = where
        rows = self._arrow({name: [one[name] for one in values] for name in keys})
        if self.rng.random() < 0.3:  # delete files may hold more than the keys
            more = self._arrow({"uid": [-1] * len(values)})
            rows = more.append_column(rows.schema.field(0), rows.column(0)) if len(keys) == 1 else rows
        gateway = self.spark._sc._gateway
        ids = gateway.new_array(gateway.jvm.int, len(keys))
        for place, name in enumerate(keys):
            ids[place] = self._fields()[name].field_id
        builder = self.spark._jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(spec).ofEqualityDeletes(ids)
        return self._finish(builder, java, rows, self._write(rows, "equality"), partition)

    def _keys(self) -> list[str]:
        names = [name for name in self._fields() if name not in ("uid", "embedding")]
        return sorted(self.rng.sample(names, self.rng.choice([1, 1, 2, len(names)])))

    def delete_by_key(self) -> None:
        java = self.java()
        spec, partition, fixed = self._partition(java)
        keys = self._keys()
        values = [{name: fixed.get(name, self._value(name)) for name in keys} for _ in range(self.rng.randint(1, 4))]
        java.newRowDelta().addDeletes(self._key_file(java, keys, values, (spec, partition))).commit()
        self.log.append(f"delete by {keys} {values} in {partition or 'all'}")

    def upsert(self) -> None:
        """Rows, and deletes of the older ones with their keys, in one commit."""
        java = self.java()
        chosen = self._partition(java)
        rows, data_file, partition = self._data_file(java, chosen)
        keys = self._keys()
        values = rows.select(keys).to_pylist()
        deletes = self._key_file(java, keys, values, (chosen[0], partition))
        java.newRowDelta().addRows(data_file).addDeletes(deletes).commit()
        self.log.append(f"upsert {values} in {partition or 'all'}")

    def delete_positions(self) -> None:
        self.sql(f"DELETE FROM {{t}} WHERE uid % 7 = {self.rng.randrange(7)}")
        self.log.append("delete by position")

    def compact(self) -> None:
        option = self.rng.choice(["'rewrite-all', 'true'", "'delete-file-threshold', '1'", "'min-input-files', '2'"])
        self.sql(f"CALL {self.catalog_name}.system.rewrite_data_files(table => '{{n}}', options => map({option}))")
        self.log.append(f"compact {option}")

    def rewrite_manifests(self) -> None:
        self.sql(f"CALL {self.catalog_name}.system.rewrite_manifests('{{n}}')")
        self.log.append("rewrite manifests")

    def roll_back(self) -> None:
        head = self.table.current_snapshot()
        if head is not None and head.parent_snapshot_id is not None:
            self.sql(f"CALL {self.catalog_name}.system.rollback_to_snapshot('{{n}}', {head.parent_snapshot_id})")
            self.log.append("roll back")

    def change_schema(self) -> None:
        fields = self._fields()
        in_specs = {one.source_id for spec in self.table.specs().values() for one in spec.fields}
        free = [
            name
            for name, found in fields.items()
            if name not in ("uid", "embedding", "section") and found.field_id not in in_specs
        ]
        kind = self.rng.choice(["add", "rename", "widen", "drop"])
        if kind == "add" and len(fields) < 8:
            self.added += 1
            column: PrimitiveType = self.rng.choice([IntegerType(), StringType(), LongType()])
            with self.table.update_schema() as update:
                update.add_column(f"c{self.added}", column)
        elif kind == "rename" and free:
            name = self.rng.choice(free)
            self.added += 1
            with self.table.update_schema() as update:
                update.rename_column(name, f"r{self.added}")
        elif kind == "widen":
            narrow = [name for name, found in fields.items() if isinstance(found.field_type, IntegerType)]
            if not narrow:
                return
            with self.table.update_schema() as update:
                update.update_column(self.rng.choice(narrow), LongType())
        elif kind == "drop" and len(free) > 1:
            with self.table.update_schema() as update:
                update.delete_column(self.rng.choice(free))
        self.log.append(f"schema: {kind}")

    def change_partitions(self) -> None:
        names = [one.name for one in self.table.spec().fields]
        if names:
            self.sql(f"ALTER TABLE {{t}} DROP PARTITION FIELD {names[0]}")
        else:
            self.sql("ALTER TABLE {t} ADD PARTITION FIELD section")
        self.log.append("partitions")

    def step(self) -> None:
        kinds = [
            (self.append, 4),
            (self.delete_by_key, 5),
            (self.upsert, 7),
            (self.delete_positions, 2),
            (self.compact, 1),
            (self.rewrite_manifests, 0.5),
            (self.roll_back, 1),
            (self.change_schema, 2),
            (self.change_partitions, 1),
        ]
        kind = self.rng.choices([one for one, _ in kinds], [weight for _, weight in kinds])[0]
        kind()

    # what is compared

    def truth(self, at: str = "") -> list[int]:
        return sorted(row[0] for row in self.sql("SELECT uid FROM {t} " + at))

    def check(self) -> None:
        """The rows that searches return are those that Spark reads: by a scan, by an old version, by a new one."""
        table, definition = self.table, self.definition
        assert definition is not None
        head = table.metadata.current_snapshot_id
        assert head is not None
        rows = self.truth()
        k = len(rows) + 5
        query = queries(1, DIMS)
        scanned = exact_search(table, "embedding", "l2", query, k, storage=STORAGE, columns=["uid"])
        assert sorted(scanned.rows["uid"].to_pylist()) == rows, "scan"
        if self.rng.random() < 0.5:
            stale = open_index(table, definition, storage=STORAGE).search(query, k, columns=["uid"])
            assert sorted(stale.rows["uid"].to_pylist()) == rows, "older version"
        if self.rng.random() < 0.3:
            filtered = exact_search(
                table, "embedding", "l2", query, k, storage=STORAGE, columns=["uid"], where="uid >= 10"
            )
            assert sorted(filtered.rows["uid"].to_pylist()) == [uid for uid in rows if uid >= 10], "condition"
        if self.rng.random() < 0.2:
            return
        report = materialize_index(table, definition, head, runner=LocalRunner(1), storage=STORAGE)
        fresh = open_index(self.table, definition, storage=STORAGE).search(query, k, columns=["uid"])
        assert sorted(fresh.rows["uid"].to_pylist()) == rows, f"version ({report.action})"
        if report.index_snapshot_id is not None:
            assert report.rows == len(rows)
            assert fresh.coverage is Coverage.EXACT_VERSION
            if self.rng.random() < 0.3:
                versions = index_versions(self.table, "e")
                version = next(one for one in versions if one.index_snapshot_id == report.index_snapshot_id)
                assert check_integrity(self.table, version, STORAGE).faults == ()
        if self.rng.random() < 0.3 and rows:
            sketches = materialize_theta_sketches(self.table, head, runner=LocalRunner(1), storage=STORAGE)
            assert sketches.ndv["uid"] == len(rows)
        if self.rng.random() < 0.3:
            self.check_an_older_snapshot()

    def check_an_older_snapshot(self) -> None:
        table, definition = self.table, self.definition
        assert definition is not None
        chosen = self.rng.choice([one for one in table.metadata.snapshots if not is_derived(one)])
        rows = self.truth(f"VERSION AS OF {chosen.snapshot_id}")
        reader = open_index(table, definition, snapshot=chosen.snapshot_id, storage=STORAGE)
        then = reader.search(queries(1, DIMS), len(rows) + 5, columns=["uid"])
        assert sorted(then.rows["uid"].to_pylist()) == rows, f"snapshot {chosen.snapshot_id}"
