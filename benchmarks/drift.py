"""Whether recall drifts: many refreshes of small inserts and deletes, beside a fresh build now and then.

    python -m benchmarks.drift --vectors embeddings.npy --out drift.json [--rows 12000] [--plot drift.svg]

Each refresh deletes 2 % of the live rows (position deletes, spread over all files) and appends as many new ones. After
every fifth, the same snapshot is indexed from nothing under another name; recall@10 of both is of 1,000 queries against
exact search. The recall that the gate measured before each commit is reported too.
`--plot` needs `pip install matplotlib`.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lake import Lake, fresh, measured
from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.index.definitions.index_definition import IndexDefinition

FRESH_EVERY = 5
QUERIES = 1_000


def main() -> None:
    """Run; what is done so far is written after each refresh."""
    options = _options()
    vectors = np.load(options.vectors, mmap_mode="r")[: options.rows]
    rows = int(len(vectors) / (1 + options.share * options.refreshes))
    definition = IndexDefinition(
        name="bench",
        column="embedding",
        metric=options.metric,
        shards=options.shards,
        target_recall=0.0,
        max_degree=options.max_degree,
        search_list=options.search_list,
    )
    points: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        lake = Lake(Path(folder), vectors, rows, options.files, definition, options.threads)
        lake.index()
        for number in range(1, options.refreshes + 1):
            _change(lake, int(options.share * rows), number)
            point = measured(lake.index) | {"refresh": number, "recall": lake.recall(definition, QUERIES)}
            if number % FRESH_EVERY == 0:
                again = measured(lambda: lake.index(fresh(definition)))
                point |= {"fresh_seconds": again["seconds"], "recall_fresh": lake.recall(fresh(definition), QUERIES)}
                point["behind"] = point["recall_fresh"] - point["recall"]
                lake.forget(fresh(definition).name)
            points.append(point)
            print(json.dumps(point), flush=True)
            behind = max((point["behind"] for point in points if "behind" in point), default=0.0)
            document = {"rows": rows, "dims": vectors.shape[1], "largest_loss_of_recall": behind, "points": points}
            options.out.write_text(json.dumps(document, indent=1))
    if options.plot:
        _plot(points, options.plot)


def _change(lake: Lake, count: int, seed: int) -> None:
    append_position_deletes(lake.table, lake.random_rows(count, seed))
    lake.table.refresh()
    lake.append(count)


def _plot(points: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot([point["refresh"] for point in points], [point["recall"] for point in points], label="refreshed")
    folded = [point for point in points if point["merged"] or point["shards_rebuilt"]]
    axes.plot(
        [point["refresh"] for point in folded],
        [point["recall"] for point in folded],
        "|",
        markersize=14,
        label="shards rebuilt, or deltas dissolved",
    )
    compared = [point for point in points if "recall_fresh" in point]
    axes.plot(
        [point["refresh"] for point in compared], [point["recall_fresh"] for point in compared], "o", label="full build"
    )
    lowest = min(point[name] for point in points for name in ("recall", "recall_fresh") if name in point)
    axes.set(xlabel="refreshes, 2 % deleted and 2 % inserted each", ylabel="recall@10", ylim=(lowest - 0.01, 1.001))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, help="of the vectors, the first so many alone")
    parser.add_argument("--refreshes", type=int, default=50)
    parser.add_argument("--share", type=float, default=0.02, help="of the rows, deleted and inserted each time")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--max-degree", type=int, default=64)
    parser.add_argument("--search-list", type=int, default=100, help="smaller: a recall that has room to fall")
    parser.add_argument("--metric", choices=("l2", "cosine", "ip"), default="l2")
    parser.add_argument("--plot", type=Path, help="an .svg or .png of the curve")
    parser.add_argument("--scratch", type=Path, help="folder for the table [default: the system's temporary one]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
