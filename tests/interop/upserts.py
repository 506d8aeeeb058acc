"""Random histories of tables that Flink and CDC tools upsert into: equality deletes, written by Iceberg's Java.

Searches are compared with the rows that Iceberg's own delete filter leaves, and with what Spark reads.
"""

import json
import random
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
)

from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.definitions.ddl import create_index, load_definition
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.table.snapshots import is_derived
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import STORAGE, queries, vectors_of

DIMS = 4
WRITER = Path(__file__).with_name("UpsertWriter.java")
SECTIONS = ["x", "y", "z"]
_NAMES = ["", "a", "ab", "abc", "b", "\u00e9", "z" * 20, "z" * 19 + "y", None]
_VALUES: dict[type[PrimitiveType], list[Any]] = {
    IntegerType: [None, *range(-3, 12)],
    LongType: [None, *range(-3, 12)],
    StringType: _NAMES,
    FloatType: [None, 0.0, -0.0, 0.5, -2.25],
    DoubleType: [None, 0.0, -0.0, 0.5, -2.25],
    DecimalType: [None, "0.00", "1.25", "-3.50"],
    DateType: [None, "1969-12-31", "1970-01-01", "2020-02-29"],
}
"""Few values per type, so that keys repeat; as Iceberg writes them in JSON"""
_ADDED = ["int", "long", "string", "float", "decimal(5, 2)", "date"]
_WIDER = {"int": "long", "float": "double", "decimal(5, 2)": "decimal(9, 2)"}
_SPARK_REWRITES = ["'rewrite-all', 'true'", "'delete-file-threshold', '1'", "'min-input-files', '2'"]
_METRICS = ["none", "counts", "truncate(3)", "full"]


@dataclass
class UpsertedTable:
    """One table as Iceberg's Java, Spark and PyIceberg see it. `uid` tells rows apart; keys repeat."""

    spark: Any
    catalog: Catalog
    catalog_name: str
    name: str
    rng: random.Random
    spark_share: float
    """Share of the compactions that are Spark's, and of the comparisons in which it takes part"""
    next_uid: int = 0
    added: int = 0
    log: list[str] = field(default_factory=list)

    def load(self) -> Table:
        """The table as it is now, also in `self.table`: calls to the catalog are much of what a step costs."""
        self.table = self.catalog.load_table(f"db.{self.name}")
        return self.table

    def sql(self, text: str) -> list[Any]:
        return list(self.spark.sql(text.format(t=f"{self.catalog_name}.db.{self.name}", n=f"db.{self.name}")).collect())

    def create(self, version: str) -> None:
        # Spark keeps deleted keys by their file's path, in the type that a column had then: widened ones match no more
        self.spark.conf.set("spark.sql.iceberg.executor-cache.delete-files.enabled", "false")
        # Iceberg 1.11 reads no column of decimals that has a default into vectors: "Cannot cast default value to int"
        self.spark.conf.set("spark.sql.iceberg.vectorization.enabled", "false")
        partitioned = self.rng.choice(["", "PARTITIONED BY (section)", "PARTITIONED BY (id, section)"])
        self.sql(
            "CREATE TABLE {t} (uid bigint, id int, name string, section string, embedding array<float>) USING iceberg "
            + partitioned
            + f" TBLPROPERTIES ('format-version'='{version}', 'write.delete.mode'='merge-on-read', "
            f"'write.metadata.metrics.default'='{self.rng.choice(_METRICS)}')"
        )
        self.log.append(f"create v{version} {partitioned}")
        self.java = self.spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self.spark._jsparkSession, f"{self.catalog_name}.db.{self.name}"
        )
        self.writer = _new_writer(self.spark, self.java)
        self.load()
        self.append()
        definition = IndexDefinition(
            name="e", column="embedding", metric="l2", max_degree=8, search_list=16, shards=2, target_recall=0.3
        )
        create_index(self.load(), definition)
        self.definition = load_definition(self.load(), "e")
        self.check(new_version=True)

    # what writers do

    def _fields(self) -> dict[str, NestedField]:
        return {one.name: one for one in self.table.schema().fields}

    def _value(self, one: NestedField) -> Any:
        """A value of a column, one of few; null where the caller has its own."""
        return self.rng.choice(SECTIONS if one.name == "section" else _VALUES.get(type(one.field_type), [None]))

    def _file(self, columns: list[NestedField], rows: list[list[Any]], where: "_Partition", **more: Any) -> Any:
        return {
            "spec": where.spec_id,
            "partition": where.values,
            "columns": [one.field_id for one in columns],
            "rows": [{str(one.field_id): value for one, value in zip(columns, row, strict=True)} for row in rows],
            "small_groups": self.rng.random() < 0.3,
            **more,
        }

    def _data_file(self, where: "_Partition") -> tuple[Any, list[dict[str, Any]]]:
        """(a file of new rows, the rows by column)."""
        fields = self._fields()
        uids = np.arange(self.next_uid, self.next_uid + self.rng.randint(1, 9))
        self.next_uid += len(uids)
        rows = [
            {name: where.fixed[name] if name in where.fixed else self._value(one) for name, one in fields.items()}
            | {"uid": int(uid), "embedding": vector}
            for uid, vector in zip(uids, vectors_of(uids, dims=DIMS).tolist(), strict=True)
        ]
        return self._file(list(fields.values()), [list(row.values()) for row in rows], where), rows

    def _partition(self) -> "_Partition":
        table = self.table
        spec = self.rng.choice([*table.specs().values(), table.spec(), table.spec()])
        by_id = {one.field_id: one for one in table.schema().fields}
        values: dict[str, Any] = {}
        fixed: dict[str, Any] = {}
        for one in spec.fields:
            if str(one.transform) != "void":
                column = by_id[one.source_id]
                values[str(one.field_id)] = fixed[column.name] = self._value(column)
        return _Partition(spec.spec_id, values, fixed)

    def _key_file(self, keys: list[str], values: list[dict[str, Any]], where: "_Partition") -> Any:
        fields = self._fields()
        ids = [fields[name].field_id for name in keys]
        if self.rng.random() < 0.3:  # delete files may hold more than the keys
            whole = [{name: self._value(one) for name, one in fields.items()} | value for value in values]
            rows = [list((row | {"uid": -1}).values()) for row in whole]
            return self._file(list(fields.values()), rows, where, keys=ids)
        columns = [one for one in fields.values() if one.name in keys]
        return self._file(columns, [[value[one.name] for one in columns] for value in values], where, keys=ids)

    def _keys(self) -> list[str]:
        names = [name for name in self._fields() if name not in ("uid", "embedding")]
        return sorted(self.rng.sample(names, self.rng.choice([1, 1, 2, len(names)])))

    def append(self) -> None:
        files = []
        for _ in range(self.rng.choice([1, 1, 2])):
            where = self._partition()
            file, rows = self._data_file(where)
            files.append(file)
            self.log.append(f"append {len(rows)} to {where.fixed or 'no partition'}")
        self.writer.commit(json.dumps(files))

    def delete_by_key(self) -> None:
        where, keys, fields = self._partition(), self._keys(), self._fields()
        values = [
            {name: where.fixed[name] if name in where.fixed else self._value(fields[name]) for name in keys}
            for _ in range(self.rng.randint(1, 4))
        ]
        self.writer.commit(json.dumps([self._key_file(keys, values, where)]))
        self.log.append(f"delete by {keys} {values} in {where.fixed or 'all'}")

    def upsert(self) -> None:
        """Rows, and deletes of the older ones with their keys, in one commit."""
        where, keys = self._partition(), self._keys()
        file, rows = self._data_file(where)
        values = [{name: row[name] for name in keys} for row in rows]
        self.writer.commit(json.dumps([file, self._key_file(keys, values, where)]))
        self.log.append(f"upsert {values} in {where.fixed or 'all'}")

    def delete_positions(self) -> None:
        self.writer.deletePositions(7, self.rng.randrange(7), self.rng.random() < 0.5)
        self.log.append("delete by position")

    def compact(self) -> None:
        if self.rng.random() < self.spark_share:
            option = self.rng.choice(
                ["'rewrite-all', 'true'", "'delete-file-threshold', '1'", "'min-input-files', '2'"]
            )
            self.sql(f"CALL {self.catalog_name}.system.rewrite_data_files(table => '{{n}}', options => map({option}))")
            self.log.append(f"compact by Spark {option}")
            return
        seed, share = self.rng.randrange(2**31), self.rng.choice([0.3, 0.7, 1.0])
        as_of_now, drop_deletes = self.rng.random() < 0.5, self.rng.random() < 0.5
        self.writer.compact(seed, share, as_of_now, drop_deletes)
        self.log.append(f"compact {share} sequence of now: {as_of_now} drop deletes: {drop_deletes}")

    def rewrite_manifests(self) -> None:
        self.writer.rewriteManifests(self.rng.random() < 0.5)
        self.log.append("rewrite manifests")

    def roll_back(self) -> None:
        head = self.table.current_snapshot()
        if head is not None and head.parent_snapshot_id is not None:
            self.java.refresh()
            self.java.manageSnapshots().rollbackTo(head.parent_snapshot_id).commit()
            self.log.append("roll back")

    def change_schema(self) -> None:
        table, fields = self.table, self._fields()
        in_specs = {one.source_id for spec in table.specs().values() for one in spec.fields}
        free = [
            name
            for name, one in fields.items()
            if name not in ("uid", "embedding", "section") and one.field_id not in in_specs
        ]
        narrow = [name for name, one in fields.items() if str(one.field_type) in _WIDER]
        self.java.refresh()
        update = self.java.updateSchema()
        primitive = self.spark._jvm.org.apache.iceberg.types.Types.fromPrimitiveString
        kind = self.rng.choice(["add", "add", "rename", "widen", "drop"])
        self.added += 1
        if kind == "add" and len(fields) < 8:
            name, added = f"c{self.added}", self.rng.choice(_ADDED)
            default = self._default(added) if table.metadata.format_version > 2 else ()
            update.addColumn(name, primitive(added), *default).commit()
        elif kind == "rename" and free:
            update.renameColumn(self.rng.choice(free), f"r{self.added}").commit()
        elif kind == "widen" and narrow:
            name = self.rng.choice(narrow)
            update.updateColumn(name, primitive(_WIDER[str(fields[name].field_type)])).commit()
        elif kind == "drop" and len(free) > 1:
            update.deleteColumn(self.rng.choice(free)).commit()
        self.log.append(f"schema: {kind}")

    def _default(self, added: str) -> tuple[Any, ...]:
        """For half of the columns, the value that rows of older files have: format version 3 brought it."""
        value = self.rng.choice(_VALUES[type(IcebergType.model_validate(added))])
        if value is None or self.rng.random() < 0.3:
            return ()
        self.log.append(f"default {value!r}")
        return (self.spark._jvm.org.apache.iceberg.expressions.Expressions.lit(value),)

    def change_partitions(self) -> None:
        names = [one.name for one in self.table.spec().fields]
        self.java.refresh()
        update = self.java.updateSpec()
        (update.removeField(names[0]) if names else update.addField("section")).commit()
        self.log.append("partitions")

    def change_properties(self) -> None:
        """Files with other metrics; format version 3, whose deletion vectors replace the deletes before them."""
        self.java.refresh()
        key, value = self.rng.choice(
            [("format-version", "3"), *(("write.metadata.metrics.default", one) for one in _METRICS)]
        )
        self.java.updateProperties().set(key, value).commit()
        self.log.append(f"set {key} {value}")

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
            (self.change_properties, 0.5),
        ]
        kind = self.rng.choices([one for one, _ in kinds], [weight for _, weight in kinds])[0]
        kind()

    # what is compared

    def truth(self, snapshot_id: int) -> list[int]:
        """The uids that Iceberg's own reader gives; for some, those that Spark reads, too."""
        uids = [int(uid) for uid in self.writer.uids(snapshot_id).split(",") if uid]
        if self.rng.random() < self.spark_share:
            by_spark = sorted(row[0] for row in self.sql(f"SELECT uid FROM {{t}} VERSION AS OF {snapshot_id}"))
            assert by_spark == uids, "Spark and Iceberg's generic reader differ"
        return uids

    def check(self, *, new_version: bool = False) -> None:
        """Searches return the rows that Iceberg reads: by a scan, by an old version, by a new one."""
        table = self.load()
        head = table.metadata.current_snapshot_id
        assert head is not None
        rows = self.truth(head)
        k = len(rows) + 5
        query = queries(1, DIMS)
        scanned = open_exact(table, "embedding", "l2", storage=STORAGE).search(query, k, columns=["uid"])
        assert sorted(scanned.rows["uid"].to_pylist()) == rows, "scan"
        if not new_version:
            stale = open_index(table, self.definition, storage=STORAGE).search(query, k, columns=["uid"])
            assert sorted(stale.rows["uid"].to_pylist()) == rows, "older version"
        if self.rng.random() < 0.2:
            filtered = open_exact(table, "embedding", "l2", storage=STORAGE).search(
                query, k, columns=["uid"], where="uid >= 10"
            )
            assert sorted(filtered.rows["uid"].to_pylist()) == [uid for uid in rows if uid >= 10], "condition"
        if new_version or self.rng.random() < 0.4:
            self.check_new_version(head, rows)
        if self.rng.random() < 0.1 and rows:
            sketches = count_theta_sketches(RunContext(self.load(), STORAGE, LocalRunner(1)), head).publish()
            assert sketches.ndv["uid"] == len(rows)
        if self.rng.random() < 0.1:
            self.check_an_older_snapshot()

    def check_new_version(self, head: int, rows: list[int]) -> None:
        report = materialize_index(RunContext(self.table, STORAGE, LocalRunner(1)), self.definition, head)
        table = self.load()
        fresh = open_index(table, self.definition, storage=STORAGE).search(
            queries(1, DIMS), len(rows) + 5, columns=["uid"]
        )
        assert sorted(fresh.rows["uid"].to_pylist()) == rows, f"version ({report.action})"
        if report.index_snapshot_id is not None:
            assert report.rows == len(rows)
            assert fresh.coverage is Coverage.EXACT_VERSION
            if self.rng.random() < 0.2:
                versions = index_versions(table, "e")
                version = next(one for one in versions if one.index_snapshot_id == report.index_snapshot_id)
                assert check_integrity(RunContext(table, STORAGE), version).faults == ()

    def check_an_older_snapshot(self) -> None:
        table = self.table
        chosen = self.rng.choice([one for one in table.metadata.snapshots if not is_derived(one)]).snapshot_id
        rows = self.truth(chosen)
        reader = open_index(table, self.definition, snapshot=chosen, storage=STORAGE)
        then = reader.search(queries(1, DIMS), len(rows) + 5, columns=["uid"])
        assert sorted(then.rows["uid"].to_pylist()) == rows, f"snapshot {chosen}"


@dataclass(frozen=True)
class _Partition:
    """A partition that a writer writes to."""

    spec_id: int
    values: dict[str, Any]
    """Values of the partition fields, by field id"""
    fixed: dict[str, Any]
    """Values of the columns that the fields are made of, by name"""


def _new_writer(spark: Any, java: Any) -> Any:
    gateway = spark._sc._gateway
    arguments = gateway.new_array(spark._jvm.java.lang.Object, 1)
    arguments[0] = java
    return _constructor(gateway).newInstance(arguments)


@cache
def _constructor(gateway: Any) -> Any:
    """That of `UpsertWriter`, compiled into Spark's driver once: py4j keeps the methods of a class by its name."""
    compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(gateway.jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(WRITER.read_text(encoding="utf-8"))
    (constructor,) = compiler.getClassLoader().loadClass("UpsertWriter").getConstructors()
    return constructor
