"""How long a sensor evaluation takes, and which runs it requests, when there is much to see.

    python -m benchmarks.sensor_load --out sensor.json [--snapshots 10000] [--tables 200] [--runs-ahead 100]

The scenarios of tests/orchestration/test_load.py in full size, timed: a backlog under both policies, many tables, an
hour without a catalog (each evaluation 30 s after the last, by a clock that is moved). SQLite catalog, Dagster
instance in SQLite, local disk: the slowest instance there is. Dagster ends an evaluation after 60 s; its daemon then
queues the runs that were requested, `runs_ahead` at most.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from icepuffin.orchestration.instance import open_instance
from tests.orchestration.backlog import Backlog, Daemon, Tick, make_backlog

_WATCH = "watch_demo_demo_t0"


def every(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """A backlog, a run for each snapshot."""
    return _worked_off(folder, options, "every")


def newest(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The same backlog, runs for the newest only."""
    return _worked_off(folder, options, "newest")


def _worked_off(folder: Path, options: argparse.Namespace, policy: str) -> dict[str, Any]:
    backlog = make_backlog(folder, tables=1, snapshots=options.snapshots)
    with open_instance(folder / "dagster_home") as instance:
        daemon = Daemon(instance, backlog.settings(snapshots=policy, runs_ahead=options.runs_ahead))
        ticks = [daemon.tick(_WATCH)]
        while ticks[-1].shown or ticks[-1].launched:
            ticks.append(daemon.tick(_WATCH))
        return _summary(ticks) | {"runs": len(daemon.launched[_WATCH]), "runs_twice": _repeated(daemon)}


def tables(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Many tables: definitions, the first evaluation of each, and one round in which nothing is new."""
    backlog = make_backlog(folder, tables=options.tables, snapshots=20)
    with open_instance(folder / "dagster_home") as instance:
        begun = time.perf_counter()
        daemon = Daemon(instance, backlog.settings(runs_ahead=20))
        loading = time.perf_counter() - begun
        first = [daemon.tick(name) for name in daemon.sensors]
        idle = [daemon.tick(name) for name in daemon.sensors]
        summary = _summary(first) | {"runs": sum(map(len, daemon.launched.values())), "runs_twice": _repeated(daemon)}
        return summary | {
            "definitions_seconds": loading,
            "idle_round_seconds": sum(tick.evaluation_seconds for tick in idle),
        }


def outage(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """An hour without the catalog, and the first evaluation of each table after it."""
    backlog: Backlog = make_backlog(folder, tables=min(20, options.tables), snapshots=2)
    with open_instance(folder / "dagster_home") as instance:
        daemon = Daemon(instance, backlog.settings())
        for name in daemon.sensors:
            daemon.tick(name)
        real, passed, ticks = time.monotonic, 0.0, []

        def later() -> float:
            return real() + passed

        with mock.patch("icepuffin.ops.resources.time.monotonic", later):
            with backlog.down(daemon.catalogs):
                for _ in range(120):
                    passed += 30
                    ticks += [daemon.tick(name) for name in daemon.sensors]
            for name in backlog.names:
                backlog.grow(name, 5)
            passed += 30
            after = [daemon.tick(name) for name in daemon.sensors]
        missed = sum(5 - len(tick.launched) for tick in after)
        return _summary([*ticks, *after]) | {"missed": missed, "runs_twice": _repeated(daemon)}


def _summary(ticks: Sequence[Tick]) -> dict[str, Any]:
    return {
        "ticks": len(ticks),
        "look_seconds_max": max(tick.evaluation_seconds for tick in ticks),
        "catalog_calls_a_tick_max": max(tick.calls for tick in ticks),
        "shown_a_tick_max": max(tick.shown for tick in ticks),
        "runs_a_tick_max": max(len(tick.launched) for tick in ticks),
        "cursor_bytes_max": max(tick.cursor_bytes for tick in ticks),
    }


def _repeated(daemon: Daemon) -> int:
    return sum(len(keys) - len(set(keys)) for keys in daemon.launched.values())


SCENARIOS: tuple[Callable[[Path, argparse.Namespace], dict[str, Any]], ...] = (every, newest, tables, outage)


def main() -> None:
    """Run the scenarios; what is done so far is written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--snapshots", type=int, default=10_000)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--runs-ahead", type=int, default=100)
    parser.add_argument("--scratch", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {
        "snapshots": options.snapshots,
        "tables": options.tables,
        "runs_ahead": options.runs_ahead,
    }
    for scenario in SCENARIOS:
        with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
            report[scenario.__name__] = scenario(Path(folder), options)
        options.out.write_text(json.dumps(report, indent=2))
        print(scenario.__name__, report[scenario.__name__], flush=True)


if __name__ == "__main__":
    main()
