"""What a target recall gives queries that are not like the rows, without and with `icepuffin tune`.

    python -m benchmarks.tuning --vectors rows.npy --queries queries.npy --out tuning.json [--shards 8]

The table holds all rows. The queries are shuffled by a seed and divided into halves: one tunes the index, the other is
searched for with each target, before and after that, and then such that a share of the queries reaches it. Recall is
against exact search, by distances, so that rows equally far count alike. `reached` is the share of the queries whose
own recall is the target's. `distances` and `shards` are per query. `tuning_seconds` is of the whole run of tuning.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.lake import STORAGE, Lake
from icepuffin.ann_kernels.distances.recall import recalls_of
from icepuffin.ops.cache.cache_settings import DIRECTORY as SHARD_CACHE
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.recall.measured_points import SHARES
from icepuffin.ops.search.measured.tuning_run import TARGETS, tune
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.reader import IndexReader

_TOLERANCE = 1e-6
"""Largest relative difference of distances that are equal but for rounding"""


def main() -> None:
    """Measure without tuning, tune, and measure again."""
    options = _options()
    rows = np.load(options.vectors, mmap_mode="r")
    queries = np.random.default_rng(1).permutation(np.load(options.queries).astype(np.float32))
    tuning, others = queries[: len(queries) // 2][: options.most], queries[len(queries) // 2 :][: options.most]
    definition = IndexDefinition(
        name="bench", column="embedding", metric=options.metric, shards=options.shards, target_recall=0.0
    )
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        os.environ[SHARD_CACHE] = f"{folder}/cache"
        lake = Lake(Path(folder), rows, len(rows), options.files, definition, options.threads)
        lake.index()
        exact = {k: _exact(lake, others, k) for k in options.k}
        without = _searches(lake, others, exact)
        begun = time.perf_counter()
        report = tune(lake.table.refresh(), tuning, definition, threads=options.threads, storage=STORAGE)
        seconds = time.perf_counter() - begun
        tuned = _searches(lake, others, exact)
        promised = [it for share in SHARES[1:] for it in _searches(lake, others, exact, share)]
    out = {
        "rows": len(rows),
        "dims": rows.shape[1],
        "shards": options.shards,
        "metric": options.metric,
        "tuning_queries": report.record.queries,
        "other_queries": len(others),
        "tuning_seconds": seconds,
        "property_bytes": len(report.record.to_json()),
        "without": without,
        "tuned": tuned,
        "promised": promised,
    }
    print(json.dumps(out, indent=1))
    options.out.write_text(json.dumps(out, indent=1))


def _exact(lake: Lake, queries: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.float64]:
    """f64[Q, k]: the distances of each query's nearest rows."""
    exact = open_exact(lake.table, "embedding", lake.definition.metric, storage=STORAGE).search(queries, k, columns=[])
    return np.asarray(exact.rows["distance"]).reshape(len(queries), k)


def _searches(
    lake: Lake,
    queries: npt.NDArray[np.float32],
    exact: dict[int, npt.NDArray[np.float64]],
    share: float | None = None,
) -> list[dict[str, Any]]:
    reader = open_index(lake.table.refresh(), lake.definition, storage=STORAGE)
    return [_search(reader, queries, k, target, exact[k], share) for k in exact for target in TARGETS]


def _search(
    reader: IndexReader,
    queries: npt.NDArray[np.float32],
    k: int,
    target: float,
    exact: npt.NDArray[np.float64],
    share: float | None,
) -> dict[str, Any]:
    result = reader.search(queries, k, target_recall=target, recall_share=share, columns=[])
    distances = np.asarray(result.rows["distance"]).reshape(len(queries), k)
    recalls = recalls_of(distances, exact, _TOLERANCE * np.abs(exact[:, -1]))
    parameters = result.profile.parameters
    return {
        "k": k,
        "target": target,
        "share": share,
        "reached": float((recalls >= target - _TOLERANCE).mean()),
        "recall": float(recalls.mean()),
        "margin": float(1.96 * recalls.std() / np.sqrt(len(recalls))),
        "search_list": parameters.search_list if parameters else None,
        "shards": sum(shard.queries for shard in result.profile.work) / len(queries),
        "distances": result.profile.distances / len(queries),
        "warnings": list(result.warnings),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True, help="rows, .npy f32[N, D]")
    parser.add_argument("--queries", type=Path, required=True, help="queries, .npy f32[Q, D]")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--metric", default="cosine")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--k", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--most", type=int, default=2_000, help="queries of each half, at most")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scratch", type=Path, help="folder for the table [default: the system's temporary one]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
