"""Which engines read tables that have indexes and sketches: `make engines`.

Writes tables with row deletes, indexes them, and has each engine read the head of main and the snapshot of the index
tag. Rows and values are compared with those that were written. A twin of each table, with the same writes and without
an index, is read as well: what an engine cannot do there is no matter of the index. Prints a Markdown table, with
versions and errors. Exits with 1 where an engine reads the twin of a table and not the table.

Engines of the project's own environment run there; the others in the one that `--python` names. Trino joins where the
settings of tests/interop/trino_server.py are there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import tagged_version
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.blob_kind import index_tag
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import STORAGE, make_rows
from tests.interop.engine_reads import COLUMNS, ENGINES
from tests.interop.lakes import Lake, open_lake
from tests.interop.trino_server import TrinoServer
from tests.ops.index.comparison import DEFINITION
from tests.services.jars import ICEBERG_AWS, ICEBERG_SPARK
from tests.services.rest import rest_catalog
from tests.services.spark import spark_session

OWN_ENGINES = ("PyIceberg", "Polars", "DuckDB")
"""Engines of the project's own environment, beside Spark"""
READ_SECONDS = 600
RUNNER = LocalRunner(2)
READS = "reads"
DELETED, INDEXED, ALL = 30, 240, 250
"""Ids below the first are deleted where rows are; the index tag has ids below the second, the head below the third"""


@dataclass(frozen=True)
class Kind:
    """Format version of a table, and whether rows of it are deleted."""

    version: int
    deletes: bool
    title: str


KINDS = (
    Kind(2, False, "v2"),
    Kind(2, True, "v2 with position deletes"),
    Kind(3, False, "v3"),
    Kind(3, True, "v3 with deletion vectors"),
)


@dataclass(frozen=True)
class Reading:
    """One snapshot of one table. It has the rows of `make_rows` from `first_id` to `last_id`."""

    kind: Kind
    table: str
    snapshot_id: int | None
    """Id of the snapshot; the head of main where it is None"""
    tag: str | None
    first_id: int
    last_id: int
    is_twin: bool = False
    """Whether the table has no index"""

    @property
    def title(self) -> str:
        return f"{self.kind.title}, {'index tag' if self.snapshot_id else 'head'}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.engines", description=__doc__)
    parser.add_argument("--python", required=True, help="of the environment with the engines that the project has not")
    arguments = parser.parse_args()
    os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"  # its own planner is a package of its own
    index_packs.PACK_BYTES = 10_000
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="engines-")))
        uri = stack.enter_context(rest_catalog(_made(folder / "rest"), {}))
        spark = spark_session(_made(folder / "spark"), [ICEBERG_SPARK, ICEBERG_AWS])
        stack.callback(spark.stop)
        lake = stack.enter_context(open_lake("lake", uri, folder, spark=spark))
        readings = [reading for kind in KINDS for reading in write(lake, kind)]
        outcomes = {f"Spark {spark.version}": [by_spark(lake, reading) for reading in readings]}
        if "TRINO_HOME" in os.environ:
            trino = TrinoServer(_made(folder / "trino"))
            stack.callback(trino.close)
            ((version,),) = trino.sql("SELECT version()")
            outcomes[f"Trino {version}"] = by_trino(trino, lake, readings)
        for engine in ENGINES:
            python = sys.executable if engine in OWN_ENGINES else arguments.python
            version, outcome = by_process(engine, python, lake, uri, readings, _made(folder / engine))
            outcomes[f"{engine} {version}"] = outcome
    return report(readings, outcomes)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def write(lake: Lake, kind: Kind) -> Iterator[Reading]:
    """A table and its twin. Yields what is to be read of both."""
    first = DELETED if kind.deletes else 0
    for twin in (False, True):
        name = kind.title.replace(" ", "_") + "_twin" * twin
        lake.sql(
            f"CREATE TABLE {lake.sql_name(name)} (id bigint, name string, section string, embedding array<float>) "
            f"USING iceberg LOCATION '{lake.root}/{name}' "
            f"TBLPROPERTIES ('format-version'='{kind.version}', 'write.delete.mode'='merge-on-read')"
        )
        _insert(lake, name, 0, 200)
        table = lake.load(name)
        if not twin:
            _bring_up_to_date(table)
        if kind.deletes:
            lake.sql(f"DELETE FROM {lake.sql_name(name)} WHERE id < {DELETED}")
        _insert(lake, name, 200, INDEXED)
        base = table.refresh().metadata.current_snapshot_id
        if not twin:
            _bring_up_to_date(table)
            derived = tagged_version(table.refresh(), DEFINITION.name)
            assert derived is not None
            assert derived.packs, "the version shares a pack"
            assert find_statistics(table, derived.index_snapshot_id) is not None
            assert base is not None
            assert find_statistics(table, SnapshotId(base)) is not None, "the sketches"
            base = derived.index_snapshot_id
        _insert(lake, name, INDEXED, ALL)
        yield Reading(kind, name, None, None, first, ALL, twin)
        yield Reading(kind, name, base, None if twin else index_tag(DEFINITION.name), first, INDEXED, twin)


def _insert(lake: Lake, table: str, first: int, last: int) -> None:
    frame = lake.spark.createDataFrame(make_rows(first, last))
    frame.coalesce(1).writeTo(lake.sql_name(table)).append()


def _bring_up_to_date(table: Table) -> None:
    head = table.refresh().metadata.current_snapshot_id
    assert head is not None
    materialize_index(RunContext(table, STORAGE, RUNNER), DEFINITION, head)
    count_theta_sketches(RunContext(table, STORAGE, RUNNER), head).publish()


def compared(reading: Reading, rows: pa.Table) -> str:
    """`READS`, or the difference between what an engine read and what was written."""
    written = make_rows(reading.first_id, reading.last_id)
    if rows.num_rows != written.num_rows:
        return f"wrong: {rows.num_rows} rows, not {written.num_rows}"
    ordered = rows.select(COLUMNS).sort_by("id")
    for column in COLUMNS:
        values = pc.cast(ordered[column], written.schema.field(column).type).combine_chunks()
        if not values.equals(written[column].combine_chunks()):
            return f"wrong: values of {column}"
    return READS


def by_spark(lake: Lake, reading: Reading) -> str:
    """By the name of the tag."""
    version = f"'{reading.tag}'" if reading.tag else reading.snapshot_id
    travel = f" VERSION AS OF {version}" if version else ""
    return compared(reading, lake.spark.sql(f"SELECT * FROM {lake.sql_name(reading.table)}{travel}").toArrow())


def by_trino(trino: TrinoServer, lake: Lake, readings: Sequence[Reading]) -> list[str]:
    """By the name of the tag. Trino's catalog is its own: the tables are registered there."""
    trino.sql("CREATE SCHEMA lake.db")
    outcome = []
    for reading in readings:
        table = lake.load(reading.table)
        file = table.metadata_location.rsplit("/", 1)[1]
        version = f"'{reading.tag}'" if reading.tag else reading.snapshot_id
        travel = f" FOR VERSION AS OF {version}" if version else ""
        try:
            if reading.snapshot_id is None:
                register = f"'db', '{reading.table}', '{table.location()}', '{file}'"
                trino.sql(f"CALL lake.system.register_table({register})")
            rows = trino.sql(f"SELECT {', '.join(COLUMNS)} FROM lake.db.{reading.table}{travel}")
        except AssertionError as error:
            outcome.append(str(error).partition("\n")[2])  # below the statement
        else:
            columns = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
            outcome.append(compared(reading, pa.table(dict(zip(COLUMNS, columns, strict=True)))))
    return outcome


def by_process(
    engine: str, python: str, lake: Lake, uri: str, readings: Sequence[Reading], folder: Path
) -> tuple[str, list[str]]:
    """(the engine's version, its outcome per reading)."""
    reads, answers = [], []
    for number, reading in enumerate(readings):
        table = lake.load(reading.table)
        answers.append(folder / f"{number}.parquet")
        reads.append(
            {
                "uri": uri,
                "table": f"{lake.namespace}.{reading.table}",
                "snapshot_id": reading.snapshot_id,
                "tag": reading.tag,
                "location": urlsplit(table.location()).path,  # Spark writes file:/, PyIceberg file:///
                "metadata": urlsplit(table.metadata_location).path,
                "answer": str(answers[-1]),
            }
        )
    (folder / "reads.json").write_text(json.dumps(reads))
    script = Path(__file__).with_name("engine_reads.py")
    done = subprocess.run(
        [python, script, engine, folder / "reads.json"],
        capture_output=True,
        text=True,
        timeout=READ_SECONDS,
        cwd=folder.parent,  # ClickHouse reads no files elsewhere
        # Bodo starts its worker by programs of its environment
        env={**os.environ, "BODO_NUM_WORKERS": "1", "PATH": f"{Path(python).parent}:{os.environ['PATH']}"},
        check=False,
    )
    outcome = []
    for reading, answer in zip(readings, answers, strict=True):
        if answer.exists():
            outcome.append(compared(reading, pq.read_table(answer)))
        elif answer.with_suffix(".error").exists():
            outcome.append(answer.with_suffix(".error").read_text().replace(str(folder.parent), ""))
        else:
            outcome.append(f"ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout.strip().rsplit("\n", 1)[-1], outcome


def report(readings: Sequence[Reading], outcomes: Mapping[str, Sequence[str]]) -> int:
    """Print a row per engine, and below it what an engine does not read. Returns 1 where it reads the twin of that.

    outcomes: per engine one for each of `readings`, in their order.
    """
    print("| engine |", " | ".join(kind.title for kind in KINDS), "|")
    print("|---" * (1 + len(KINDS)) + "|")
    notes, broken = [], 0
    for engine, outcome in outcomes.items():
        cells = []
        for kind in KINDS:
            own = [pair for pair in zip(readings, outcome, strict=True) if pair[0].kind == kind]
            faults = [f"{reading.title}: {words}" for reading, words in own if not reading.is_twin and words != READS]
            is_twin_read = all(words == READS for reading, words in own if reading.is_twin)
            cells.append("**no**" if faults and is_twin_read else "no, nor its twin" if faults else READS)
            broken |= bool(faults) and is_twin_read
            notes += [f"- {engine}, {' '.join(fault.split())[:300]}" for fault in faults[:1]]
        print(f"| {engine} |", " | ".join(cells), "|")
    print("\n".join(["", *notes]))
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
