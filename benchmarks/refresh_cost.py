"""What a refresh costs beside a full rebuild, in one run: every scenario from an equal start, end to end.

    python -m benchmarks.refresh_cost --vectors embeddings.npy --out refresh.json [--shards 16] [--tasks spark]
        [--format-version 3]

The table holds 88 % of the rows in `--files` files and is indexed. Each scenario makes its change and times
`materialize_index` (plan, reading Parquet, kernels, gate, writing, commit); then the same snapshot is indexed from
nothing under another name: that is the rebuild it is compared with (`--rebuild once`: the first build of the table
is, where each takes minutes). After it the table is rolled back to the start and everything newer is expired.
Recall@10 is of 200 queries against exact search, of the refreshed and the fresh version.

Tasks run in this process, or in Spark's workers, whose session is warm by then; on both sides. `ratio_to_rebuild` is
of all seconds, `ratio_without_copying` leaves out those in which nothing was done but join the file's parts: shards
that stay are copied while others are made. `cpu_ratio_to_rebuild` is of this process's CPU seconds, which others on the
machine move less. Bytes are what this process read and wrote by system calls, the store's copying and Spark's workers
not among them; nor are the workers' kernels among `kernel_seconds`.

`default_rates` has the seconds that a plan's default rates (`ops/index/planning/rates.py`) give for the run's amounts
of work, and those of the stages that they are for. After a rollback, which does no work, both are of the version
before.

`upsert_1pct` deletes by an equality delete: the ids of all data files are read, and no other column.

Spark writes and compacts a table of format v3 (`benchmarks.spark_lake`), whose scenarios are those without deletes.

At last, what deltas cost a search: the median of single queries with 0, 1, 4 and 8 deltas.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lake import Lake, fresh, measured
from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.binding.measurements import measured_versions
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.planning.rates import Amounts, default_seconds
from icepuffin.ops.table.live_files import live_files

HELD_BACK = 0.12
DELTAS = (0, 1, 4, 8)


def append_1pct(lake: Lake) -> None:
    """Rows of 1 % of the table, in one file."""
    lake.append(int(0.01 * lake.base_rows))


def append_10pct(lake: Lake) -> None:
    """Rows of 10 % of the table, in one file."""
    lake.append(int(0.1 * lake.base_rows))


def delete_only(lake: Lake) -> None:
    """1 % of the rows, spread over all files, by position deletes."""
    rng = np.random.default_rng(0)
    doomed = {}
    for file in live_files(lake.table, lake.head).files:
        count = max(1, file.record_count // 100)
        doomed[file.path] = np.sort(rng.permutation(file.record_count)[:count])
    append_position_deletes(lake.table, doomed)


def upsert_1pct(lake: Lake) -> None:
    """1 % of the rows, spread over all files, by an equality delete of their ids; as many new rows, in one file."""
    count = int(0.01 * lake.base_rows)
    lake.delete_ids(np.random.default_rng(0).permutation(lake.base_rows)[:count])
    lake.append(count)


def compaction(lake: Lake) -> None:
    """The whole table rewritten as one file."""
    lake.rewrite(1)


def compaction_500_to_5(lake: Lake) -> None:
    """The whole table rewritten as 500 files, which is indexed; then as five."""
    lake.rewrite(500)
    lake.index()
    lake.rewrite(5)


def rollback(lake: Lake) -> None:
    """Back to the indexed snapshot, after an append that was indexed too."""
    before = lake.head
    append_1pct(lake)
    lake.index()
    lake.table.refresh().manage_snapshots().rollback_to_snapshot(before).commit()


def one_shard_rebuild(lake: Lake) -> None:
    """30 % of the rows of one shard, by position deletes: it is rebuilt, the others get no new tombstone."""
    append_position_deletes(lake.table, lake.rows_of_shard(0, 0.3))


SCENARIOS: dict[str, Callable[[Lake], None]] = {
    scenario.__name__: scenario
    for scenario in (
        append_1pct,
        append_10pct,
        delete_only,
        upsert_1pct,
        compaction,
        compaction_500_to_5,
        rollback,
        one_shard_rebuild,
    )
}

DELETING = {delete_only.__name__, upsert_1pct.__name__, one_shard_rebuild.__name__}
"""Scenarios that PyIceberg cannot make in a table of format v3"""


def main() -> None:
    """Run the scenarios; what is done so far is written after each."""
    options = _options()
    vectors = np.load(options.vectors, mmap_mode="r")
    rows = int((1 - HELD_BACK) * len(vectors))
    definition = IndexDefinition(
        name="bench", column="embedding", metric=options.metric, shards=options.shards, target_recall=0.0
    )
    out: dict[str, Any] = {"rows": rows, "dims": vectors.shape[1], "shards": options.shards, "tasks": options.tasks}
    out |= {"format_version": options.format_version, "scenarios": {}}
    with (
        tempfile.TemporaryDirectory(dir=options.scratch) as folder,
        _lake(Path(folder), vectors, rows, definition, options) as lake,
    ):
        start = lake.head
        lake.index(replace(definition, name="warm", max_degree=8, search_list=8))
        lake.forget("warm")
        first = measured(lake.index) | default_rates(lake)
        out["rebuild"] = first
        print("first build", json.dumps(first), flush=True)
        first_recall = lake.recall(definition)
        for name in _scenarios(options):
            SCENARIOS[name](lake)
            refreshed = measured(lake.index) | default_rates(lake)
            rebuild, recall_fresh = first, first_recall
            if options.rebuild == "each":
                rebuild = measured(lambda: lake.index(fresh(definition)))
                recall_fresh = lake.recall(fresh(definition))
            refreshed |= {
                "rebuild_seconds": rebuild["seconds"],
                "ratio_to_rebuild": refreshed["seconds"] / rebuild["seconds"],
                "ratio_without_copying": (refreshed["seconds"] - refreshed["copy_seconds"]) / rebuild["seconds"],
                "cpu_ratio_to_rebuild": refreshed["cpu_seconds"] / rebuild["cpu_seconds"],
                "recall": lake.recall(definition),
                "recall_fresh": recall_fresh,
            }
            out["scenarios"][name] = refreshed
            print(name, json.dumps(refreshed), flush=True)
            options.out.write_text(json.dumps(out, indent=1))
            lake.back_to(start, first["index_snapshot_id"])
        out["probe"] = probe_cost(lake)
        options.out.write_text(json.dumps(out, indent=1))


def default_rates(lake: Lake) -> dict[str, Any]:
    """What the default rates of a plan expect of the amounts of work of the newest version, beside what they took."""
    versions = measured_versions(index_versions(lake.table.refresh(), lake.definition.name))
    *_, (_, measurement) = versions
    expected = default_seconds(Amounts(**measurement.amounts), measurement.threads)
    work = {name: amount for name, amount in measurement.amounts.items() if amount}
    return {"default_rates": {"seconds": expected, "measured_seconds": measurement.seconds, "amounts": work}}


def probe_cost(lake: Lake) -> dict[str, dict[str, float]]:
    """Milliseconds of a query by the number of deltas, each of 1 % of the rows."""
    many = replace(lake.definition, max_deltas=max(DELTAS), delta_share=1.0)
    milliseconds = {}
    for deltas in range(max(DELTAS) + 1):
        if deltas:
            append_1pct(lake)
            lake.index(many)
        if deltas in DELTAS:
            milliseconds[str(deltas)] = lake.probe_ms()
            print(f"{deltas} deltas", json.dumps(milliseconds[str(deltas)]), flush=True)
    return milliseconds


def _lake(
    folder: Path, vectors: Any, rows: int, definition: IndexDefinition, options: argparse.Namespace
) -> AbstractContextManager[Lake]:
    arguments = (folder, vectors, rows, options.files, definition, options.threads, options.tasks)
    if options.format_version == 2:
        return nullcontext(Lake(*arguments))
    from benchmarks.spark_lake import spark_lake  # noqa: PLC0415  needs Java

    return spark_lake(*arguments)


def _scenarios(options: argparse.Namespace) -> list[str]:
    names = list(filter(None, options.scenarios.split(",")))
    return names if options.format_version == 2 else [name for name in names if name not in DELETING]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--tasks", choices=("local", "spark"), default="local", help="where they run")
    parser.add_argument("--format-version", type=int, choices=(2, 3), default=2, help="3 needs Java")
    parser.add_argument("--metric", choices=("l2", "cosine", "ip"), default="l2")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="[default: %(default)s]")
    parser.add_argument("--rebuild", choices=("each", "once"), default="each", help="beside which a refresh is held")
    parser.add_argument("--scratch", type=Path, help="folder for the table [default: the system's temporary one]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
