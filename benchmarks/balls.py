"""Ruling out data files by balls around their vectors: what a probe takes, and whole searches without graphs.

    python -m benchmarks.balls [--files 10000] [--dims 768] [--table-files 200] [--out balls.json]

`probe`: one query against one ball of each file, in memory. `bytes_moved` are the codes that it reads, and
`limit_ms` is the time of one thread to do nothing but add up as many bytes: no probe of that size can take less.
`table`: an index without graphs over a table whose files hold a cluster each, beside a scan of all files.
All vectors are simulated: random centres of unit length, and rows about them at a distance of `--spread`.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.lake import SCHEMA, STORAGE, arrow_rows
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.search.exact.pruning import FileBalls
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext

_TIMES = 200
_K = 10


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--dims", type=int, default=768)
    parser.add_argument("--spread", type=float, default=0.5)
    parser.add_argument("--table-files", type=int, default=200)
    parser.add_argument("--rows-per-file", type=int, default=500)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    figures = {
        "probe": probe(_units(rng, options.files, options.dims), options.spread, rng),
        "table": table(_units(rng, options.table_files, options.dims), options.rows_per_file, options.spread, rng),
    }
    print(json.dumps(figures, indent=2))
    if options.out:
        options.out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def probe(centers: npt.NDArray[np.float32], spread: float, rng: np.random.Generator) -> dict[str, Any]:
    """One ball per file."""
    files, dims = centers.shape
    begun = time.perf_counter()
    balls = FileBalls(files, np.arange(files), centers, np.full(files, spread), Metric.COSINE)
    opening = time.perf_counter() - begun
    queries = _units(rng, _TIMES, dims).astype(np.float64)
    milliseconds = [_milliseconds(lambda query=query: balls.bounds(query[None])) for query in queries]
    if balls.codes is None:
        raise ValueError("the centres have no codes")
    codes = balls.codes.codes.space.codes.view(np.uint64)
    limits = [_milliseconds(codes.sum) for _ in range(_TIMES)]
    return {
        "files": files,
        "dims": dims,
        "p50_ms": float(np.median(milliseconds)),
        "p90_ms": float(np.percentile(milliseconds, 90)),
        "limit_ms": float(np.median(limits)),
        "bytes_moved": codes.nbytes,
        "bytes_in_memory": codes.nbytes + centers.nbytes + sum(part.nbytes for part in (balls.numbers, balls.radii)),
        "bytes_of_balls": files * (4 * dims + 8),
        "opening_ms": 1000 * opening,
    }


def table(
    centers: npt.NDArray[np.float32], rows_per_file: int, spread: float, rng: np.random.Generator
) -> dict[str, Any]:
    """A table of a file per centre: build, a refresh by one more file, and searches."""
    definition = IndexDefinition(name="bench", column="embedding", metric="cosine", method="centroid")
    with tempfile.TemporaryDirectory() as folder:
        properties = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"}
        catalog = open_catalog("bench", properties)
        catalog.create_namespace("db")
        new_table = catalog.create_table("db.t", SCHEMA, properties={"format-version": "2"})
        seconds = []
        for number, center in enumerate(centers):
            ids = np.arange(number * rows_per_file, (number + 1) * rows_per_file)
            about = rng.standard_normal((rows_per_file, len(center)))
            about *= spread / np.linalg.norm(about, axis=1, keepdims=True)
            new_table.append(arrow_rows(ids, (center + about).astype(np.float32)))
            if number >= len(centers) - 2:
                head = new_table.refresh().metadata.current_snapshot_id or 0
                report = materialize_index(RunContext(new_table, STORAGE, LocalRunner(2)), definition, head)
                seconds.append(report.seconds)
        reader = open_index(new_table.refresh(), definition, storage=STORAGE)
        exact = open_exact(new_table, "embedding", "cosine", storage=STORAGE)
        queries = centers[:20] + np.float32(0.01)
        answers = [reader.search(query, _K, columns=[]) for query in queries]
        searching = [_milliseconds(lambda query=query: reader.search(query, _K, columns=[])) for query in queries]
        scanning = [_milliseconds(lambda query=query: exact.search(query, _K, columns=[])) for query in queries[:5]]
        prunings = [answer.profile.pruning for answer in answers]
        return {
            "files": len(centers),
            "rows": len(centers) * rows_per_file,
            "build_seconds": seconds[0],
            "refresh_seconds": seconds[1],
            "index_bytes": report.bytes_total,
            "files_scanned": float(np.mean([part.files - part.files_pruned for part in prunings if part])),
            "p50_ms": float(np.median(searching)),
            "scan_p50_ms": float(np.median(scanning)),
        }


def _units(rng: np.random.Generator, count: int, dims: int) -> npt.NDArray[np.float32]:
    vectors = rng.standard_normal((count, dims))
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def _milliseconds(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
