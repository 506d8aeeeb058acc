"""Peak memory and CPU time of the first sketches of a table of many data files.

    python -m benchmarks.sketch_memory [--files 3000] [--columns 10] [--rows 6000] [--threads 2] [--out memory.json]

Every column is a `long` without repeats, so that each file's sketch of it is full: 32 KiB from 4,096 rows on. There are
as many distinct files as `_DISTINCT`, and links to them under other names, which cost no disk. A process of its own
makes the sketches in its threads, the commit included. `peak_mb` is its peak, `before_mb` what it took before the
first sketch, `kept` the number of files whose sketches the next snapshot can use.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import sketch_versions
from icepuffin.ops.model import SnapshotId, StorageConfig
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.file_sketches import SKETCH_DIRECTORY
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.puffin import BytesSource, PuffinReader
from icepuffin.puffin.blobs import sketch_directory_blob

_DISTINCT = 50
_IN_PROCESS = "--in-process"


def open_catalog(folder: Path) -> SqlCatalog:
    """The catalog in a folder."""
    return SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/wh")


def make_table(folder: Path, files: int, columns: int, rows: int) -> None:
    """The table `db.t` of so many files."""
    rng = np.random.default_rng(0)
    names = [f"c{number}" for number in range(columns)]
    paths = [folder / f"{number}.parquet" for number in range(files)]
    for number, path in enumerate(paths):
        if number < _DISTINCT:
            values = [rng.integers(1, 1 << 62, rows) for _ in names]
            pq.write_table(pa.table(values, names), path, use_dictionary=False, compression="none")
        else:
            os.link(paths[number % _DISTINCT], path)
    catalog = open_catalog(folder)
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", pq.read_schema(paths[0]))
    table.add_files([str(path) for path in paths], check_duplicate_files=False)


def sketch(folder: Path, threads: int) -> dict[str, Any]:
    """Make the sketches in this process."""
    table = open_catalog(folder).load_table("db.t")
    before, begun = _peak_mb(), time.process_time()
    report = count_theta_sketches(
        RunContext(table, StorageConfig({}), LocalRunner(threads)), SnapshotId(_head(table))
    ).publish()
    return {
        "cpu_seconds": round(time.process_time() - begun, 1),
        "before_mb": before,
        "peak_mb": _peak_mb(),
        "kept": _kept(table.refresh()),
        "ndv": report.ndv,
        "note": report.note,
    }


def _head(table: Table) -> int:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def _kept(table: Table) -> int:
    kept = 0
    for version in sketch_versions(table):
        for path in (version.puffin_path, *(pack.path for pack in version.packs)):
            reader = PuffinReader(BytesSource(Path(path.removeprefix("file://")).read_bytes()))
            for directory in reader.footer.of_type(SKETCH_DIRECTORY):
                kept += len(sketch_directory_blob.decode(reader.read_blob(directory)).files)
    return kept


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    """Print the figures as JSON, and write them where `--out` says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("files", 3_000), ("columns", 10), ("rows", 6_000), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path)
    parser.add_argument(_IN_PROCESS, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process:
        print(json.dumps(sketch(options.in_process, options.threads)))
        return
    with tempfile.TemporaryDirectory() as folder:
        make_table(Path(folder), options.files, options.columns, options.rows)
        command = [sys.executable, "-m", __spec__.name, _IN_PROCESS, folder, "--threads", str(options.threads)]
        figures = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
    print(figures)
    if options.out:
        options.out.write_text(figures + "\n")


if __name__ == "__main__":
    main()
