"""One engine reads tables, in a process and an environment of its own: `python engine_reads.py ENGINE reads.json`.

`reads.json` lists `Read`s of tests/interop/engines.py. Each answer is a Parquet file, or a text file with the error.
Imports nothing of icepuffin: the environment of the engines has neither it nor what it needs.
"""

import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = ["id", "name", "section", "embedding"]
Read = dict[str, Any]


def _iceberg_table(read: Read) -> Any:
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415  each engine imports what it needs

    return load_catalog("lake", type="rest", uri=read["uri"]).load_table(read["table"])


def pyiceberg(read: Read) -> pa.Table:
    return _iceberg_table(read).scan(snapshot_id=read["snapshot_id"]).to_arrow()


def polars(read: Read) -> pa.Table:
    from polars import scan_iceberg  # noqa: PLC0415

    return scan_iceberg(_iceberg_table(read), snapshot_id=read["snapshot_id"]).select(COLUMNS).collect().to_arrow()


def duckdb(read: Read) -> pa.Table:
    import duckdb as engine  # noqa: PLC0415

    with engine.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False}) as db:
        for name in ("httpfs", "avro", "iceberg"):
            package = __import__(f"duckdb_extension_{name}")
            db.execute(f"LOAD '{next(Path(package.__path__[0]).rglob(f'{name}.duckdb_extension'))}'")
        travel = f", snapshot_from_id={read['snapshot_id']}" if read["snapshot_id"] else ""
        return db.sql(f"SELECT * FROM iceberg_scan('{read['metadata']}'{travel})").to_arrow_table()


def daft(read: Read) -> pa.Table:
    import daft as engine  # noqa: PLC0415

    place = {"tag": read["tag"]} if read["tag"] else {"snapshot_id": read["snapshot_id"]}
    return engine.read_iceberg(_iceberg_table(read), **place).select(*COLUMNS).to_arrow()


def chdb(read: Read) -> pa.Table:
    import chdb as engine  # noqa: PLC0415

    travel = f" SETTINGS iceberg_snapshot_id = {read['snapshot_id']}" if read["snapshot_id"] else ""
    return engine.query(f"SELECT {', '.join(COLUMNS)} FROM icebergLocal('{read['location']}'){travel}", "ArrowTable")


def bodo(read: Read) -> pa.Table:
    import bodo.pandas as engine  # noqa: PLC0415

    properties = {"type": "rest", "uri": read["uri"]}
    frame = engine.read_iceberg(read["table"], "lake", catalog_properties=properties, snapshot_id=read["snapshot_id"])
    return pa.Table.from_pandas(frame[COLUMNS], preserve_index=False)


ENGINES: dict[str, tuple[str, Callable[[Read], pa.Table]]] = {
    "PyIceberg": ("pyiceberg", pyiceberg),
    "Polars": ("polars", polars),
    "DuckDB": ("duckdb", duckdb),
    "Daft": ("daft", daft),
    "ClickHouse (chdb)": ("chdb", chdb),
    "Bodo": ("bodo", bodo),
}
"""(package, reader) by the engine's name"""


def main() -> None:
    package, reader = ENGINES[sys.argv[1]]
    for read in json.loads(Path(sys.argv[2]).read_text()):
        answer = Path(read["answer"])
        try:
            pq.write_table(reader(read).select(COLUMNS), answer)
        except Exception as error:  # whatever it is, it is the engine's outcome
            answer.with_suffix(".error").write_text(f"{type(error).__name__}: {error}")
    print(version(package))


if __name__ == "__main__":
    main()
