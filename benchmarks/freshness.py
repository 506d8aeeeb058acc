"""How soon a commit is searchable and indexed, under one commit a second, by a real Dagster daemon.

    python -m benchmarks.freshness --out freshness.json [--seconds 600] [--rows 50000] [--dims 384] [--appended 100]

A writer appends rows each second. A sensor sees them, and its runs refresh the index, newest snapshot first. A reader
that follows the table answers queries one after the other, `--rate` a second. Three processes and Dagster's own, on one
machine. Before the first commit the same reader answers for a tenth of the time, and nothing else happens: `calm`.

`searchable_seconds`: from the end of a commit to the end of the first answer that has its rows, by a scan or by the
index. `indexed_seconds`: to the end of the first answer by a version that has them; `unindexed` commits had none when
the time was over. `age_seconds`: of each answer, how long the oldest commit that it lacks was done; 0 where it lacks
none. `tail_rows`: rows beside the index that an answer compared. `search_ms`: milliseconds of a query.
"""

import argparse
import json
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.lake import STORAGE, Lake, properties_in
from benchmarks.simulated_vectors import SimulatedVectors, prepare
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.search.opening import open_index
from tests.orchestration.deployment import deployed

K = 10
DEFINITION = IndexDefinition(name="bench", column="embedding", metric="l2")
_QUERIES = 1_000
_CALM = 0.1
"""Time before the first commit, as a part of `--seconds`"""
_SETTINGS = """threads = 1

[catalogs.bench]
type = "sql"
uri = "{uri}"
warehouse = "{warehouse}"

[tables.t]
catalog = "bench"
name = "db.t"
snapshots = "newest"
sensor_running = true
sensor_interval_seconds = {interval}

[tables.t.indexes.bench]
column = "embedding"
metric = "l2"
"""


class Commit(NamedTuple):
    snapshot_id: int
    done: float
    """Seconds since 1970, as all times here"""
    seconds: float


class Answer(NamedTuple):
    done: float
    seconds: float
    snapshot_id: int
    base_snapshot_id: int | None
    tail_rows: int


def main() -> None:
    """Make the table and its index, then let everybody work, and say what the reader saw."""
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        folder = Path(scratch)
        prepare(None, options.dims, folder)
        lake = _lake(folder, options, files=8)
        lake.index()
        settings = folder / "icepuffin.toml"
        settings.write_text(_SETTINGS.format(**properties_in(folder), interval=options.interval), encoding="utf-8")
        with deployed(settings, folder), ProcessPoolExecutor(2, get_context("spawn")) as pool:
            begin = time.time() + options.seconds * _CALM
            answers = pool.submit(_search, folder, options, begin + options.seconds)
            commits = pool.submit(_write, folder, options, begin)
            out = vars(options) | figures(lake.head, commits.result(), answers.result())
    out = {name: str(value) if isinstance(value, Path) else value for name, value in out.items()}
    options.out.write_text(json.dumps(out, indent=2), encoding="utf-8")
    print(json.dumps(out, indent=2))


def _lake(folder: Path, options: argparse.Namespace, files: int | None = None) -> Lake:
    vectors = SimulatedVectors(folder, options.rows + int(options.seconds + 1) * options.appended)
    return Lake(folder, vectors, options.rows, files, DEFINITION, threads=1)


def _write(folder: Path, options: argparse.Namespace, begin: float) -> list[Commit]:
    """One commit each second, or the next at once where one took longer."""
    lake = _lake(folder, options)
    commits: list[Commit] = []
    while time.time() < begin + options.seconds:
        time.sleep(max(0.0, begin + len(commits) - time.time()))
        begun = time.time()
        lake.append(options.appended)
        done = time.time()
        commits.append(Commit(lake.head, done, done - begun))
    return commits


def _search(folder: Path, options: argparse.Namespace, until: float) -> list[Answer]:
    queries = SimulatedVectors(folder, _QUERIES, seed=9)[:_QUERIES]
    table = open_catalog("bench", properties_in(folder)).load_table("db.t")
    answers: list[Answer] = []
    with open_index(table, DEFINITION, storage=STORAGE, threads=1).follow(interval=options.follow) as following:
        while (begun := time.time()) < until:
            result = following.search(queries[len(answers) % _QUERIES], K)
            done = time.time()
            tail_rows = result.profile.tail_rows
            answers.append(Answer(done, done - begun, result.snapshot_id, result.base_snapshot_id, tail_rows))
            time.sleep(max(0.0, begun + 1 / options.rate - time.time()))
    return answers


def figures(first: int, commits: Sequence[Commit], answers: Sequence[Answer]) -> dict[str, Any]:
    number = {first: 0} | {commit.snapshot_id: place for place, commit in enumerate(commits, 1)}
    done = [commit.done for commit in commits]
    calm = [answer for answer in answers if answer.done < done[0] - commits[0].seconds]
    busy = answers[len(calm) :]
    has = [number[answer.snapshot_id] for answer in busy]
    indexed = [number[answer.base_snapshot_id or first] for answer in busy]
    ages = [
        max(0.0, answer.done - done[last]) if last < len(done) else 0.0 for answer, last in zip(busy, has, strict=True)
    ]
    return {
        "commits": len(commits),
        "versions": len(set(indexed)) - 1,
        "commit_seconds": _spread(commit.seconds for commit in commits),
        "searchable_seconds": _spread(_waits(done, has, busy)),
        "indexed_seconds": _spread(_waits(done, indexed, busy)),
        "unindexed": len(commits) - max(indexed),
        "age_seconds": _spread(ages),
        "tail_rows": _spread(answer.tail_rows for answer in busy),
        "search_ms": {
            "calm": _spread(answer.seconds * 1e3 for answer in calm),
            "busy": _spread(answer.seconds * 1e3 for answer in busy),
        },
    }


def _waits(done: Sequence[float], last: Sequence[int], answers: Sequence[Answer]) -> list[float]:
    """Seconds from each commit to the first answer whose `last` commit is that or a later one, where there is one.

    A reader never goes back, so the numbers rise.
    """
    first = [bisect_right(last, place) for place in range(len(done))]
    return [answers[at].done - done[place] for place, at in enumerate(first) if at < len(answers)]


def _spread(values: Iterable[float]) -> dict[str, float]:
    array = np.array(list(values))
    shares = {"p50": 50, "p95": 95, "p99": 99, "longest": 100}
    return {name: round(float(np.percentile(array, share)), 3) for name, share in shares.items()} if array.size else {}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--dims", type=int, default=384)
    parser.add_argument("--appended", type=int, default=100, help="rows of a commit")
    parser.add_argument("--interval", type=int, default=30, help="least seconds between two evaluations of the sensor")
    parser.add_argument("--follow", type=float, default=1.0, help="seconds between two looks of the reader")
    parser.add_argument("--rate", type=float, default=20, help="queries a second")
    parser.add_argument("--scratch", type=Path, help="folder for the table [default: the system's temporary one]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
