"""How long the definitions of many tables take to load, and how often they call the catalog.

    python -m benchmarks.definitions [--tables 500] [--out definitions.json]

One pattern over a namespace of a SQLite catalog, an index each, as a code server loads it: `icepuffin.build_defs`, and
then Dagster's own repository of the result.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from unittest import mock

import icepuffin
from icepuffin.ops.resources import Catalogs
from tests.orchestration.lake import make_lake


def measure(folder: Path, tables: int) -> dict[str, float]:
    lake = make_lake(folder / "lake", snapshots=1)
    for number in range(tables - 1):
        lake.catalog.create_table(f"demo.t{number}", lake.table.schema())
    calls: list[str] = []
    through = Catalogs.table

    def table(self: Catalogs, catalog: str, identifier: str) -> object:
        calls.append(identifier)
        return through(self, catalog, identifier)

    catalog = {"name": "demo", "type": "sql", "uri": f"sqlite:///{lake.directory}/catalog.db"}
    with mock.patch.object(Catalogs, "table", table):
        begun = time.perf_counter()
        cpu = time.process_time()
        definitions = icepuffin.build_defs(catalog, "demo.*", indexes={"e": {"column": "embedding"}})
        built = time.perf_counter()
        definitions.get_repository_def()
    return {
        "tables": tables,
        "calls_per_table": len(calls) / tables,
        "seconds": time.perf_counter() - begun,
        "of_these_in_dagster": time.perf_counter() - built,
        "cpu_seconds": time.process_time() - cpu,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=500)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(Path(folder), options.tables)
    print(json.dumps(report, indent=2))
    if options.out:
        options.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
