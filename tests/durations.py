"""What the test run costs: CPU and wall seconds of its stages, of each test file and of long tests.

`make durations` runs everything that CI runs and writes `tests/durations.json`; with FILES="tests/test_draws.py" it
measures these files alone. The scheduler of the tests gives files to its workers by this table, and
`tests/selection.py` deals the long tests to commits.

CPU seconds are those of the worker and of all processes that the tests of a file start, servers included.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

TABLE = Path(__file__).with_suffix(".json")
SET_UP = Path(sys.prefix) / ".setup-times"
"""What `deploy/bootstrap.sh` notes of the environment that it makes: lines of a stage, its wall and CPU seconds"""
FOLDER = "ICEPUFFIN_DURATIONS"
"""Variable that names the folder in which stages and workers leave what they have measured"""
LONG = 1.0
"""Wall seconds of all its cases from which a test is long"""
_SERVERS = ("jvm", "services")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """Seconds of a stage, of the tests of a file, or of all cases of a test."""

    wall: float
    cpu: float
    servers: bool = False
    """Whether a test of the file starts a JVM or another server"""


def recorded() -> dict[str, Cost]:
    """The costs in `tests/durations.json`, by the stage's name, the file's path from the root, or `<path>::<test>`."""
    entries = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    return {name: Cost(**entry) for name, entry in entries.items()}


class DurationRecorder:
    """A plugin of pytest that measures each file and each test, in each worker.

    What the tests of a file share, such as a session of Spark, is a cost of the file, not of the test that comes first.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._costs: dict[str, Cost] = {}
        self._cases = Counter[str]()
        """Number of cases of each test, of which other commits may run some"""
        self._measured = Counter[str]()
        self._shared = (0.0, 0.0)
        """Wall and CPU seconds of what has been set up for more than one test"""
        self._is_setting_up = False

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        begun = _clock()
        result = yield
        self._add("collection, each worker", _since(begun))
        return result  # type: ignore[return-value]

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self._cases[item.nodeid.partition("[")[0]] += 1

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        test, begun = item, _clock()
        self._shared = (0.0, 0.0)
        result = yield
        spent, shared = _since(begun), self._shared
        servers = any(test.get_closest_marker(marker) for marker in _SERVERS)
        self._add(test.nodeid.partition("::")[0], spent, servers=servers)
        function = test.nodeid.partition("[")[0]
        self._measured[function] += 1
        self._add(function, (spent[0] - shared[0], spent[1] - shared[1]), servers=servers)
        return result  # type: ignore[return-value]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        if fixturedef.scope == "function" or self._is_setting_up:
            return (yield)  # type: ignore[return-value]
        begun, self._is_setting_up = _clock(), True
        try:
            return (yield)  # type: ignore[return-value]
        finally:
            self._is_setting_up = False
            spent, shared = _since(begun), self._shared
            self._shared = shared[0] + spent[0], shared[1] + spent[1]

    def pytest_sessionfinish(self) -> None:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "worker")
        for function, count in self._measured.items():
            cost, times = self._costs[function], self._cases[function] / count
            self._costs[function] = Cost(cost.wall * times, cost.cpu * times, cost.servers)
        _keep(self._folder / f"{worker}.json", self._costs)

    def _add(self, name: str, spent: tuple[float, float], *, servers: bool = False) -> None:
        before, (wall, cpu) = self._costs.get(name, Cost(0, 0)), spent
        self._costs[name] = Cost(before.wall + wall, before.cpu + cpu, before.servers or servers)


def _since(begun: tuple[float, float]) -> tuple[float, float]:
    """(wall, CPU) seconds since a time of `_clock`. CPU at least 0: children of others are gone."""
    wall, cpu = _clock()
    return wall - begun[0], max(0.0, cpu - begun[1])


def _clock() -> tuple[float, float]:
    """(wall, CPU) seconds; CPU of this process and of its descendants, ended and running."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in usages) + _running(os.getpid())
    return time.monotonic(), cpu


def _running(process: int) -> float:
    """CPU seconds of the descendants of a process that have not ended, and of those that they have waited for."""
    total = 0.0
    for child in _children(process):
        try:
            fields = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has just ended: its parent's count has it
        total += sum(map(int, fields[11:15])) / _TICKS + _running(child)
    return total


def _children(process: int) -> list[int]:
    children = []
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children += map(int, file.read_text().split())
        except OSError:
            continue  # a thread that has just ended
    return children


def _keep(path: Path, costs: dict[str, Cost]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({name: asdict(cost) for name, cost in costs.items()}))


def run_stage(name: str, command: list[str]) -> int:
    """Run a command; where the folder is named, leave its cost there. Returns its exit status."""
    begun = _clock()
    status = subprocess.run(command, check=False).returncode
    if folder := os.environ.get(FOLDER):
        _keep(Path(folder) / f"stage-{name}.json", {name: Cost(*_since(begun))})
    return status


def collect(folder: Path) -> dict[str, Cost]:
    """What stages and workers have left in a folder. A file is one worker's; of the collection, the longest counts.

    The stages of the set-up are those of this environment, whenever it was made.
    """
    notes = SET_UP.read_text().splitlines() if SET_UP.exists() else []
    stages = (note.rsplit(" ", 2) for note in notes)
    costs = {f"set-up, {stage}": Cost(float(wall), float(cpu)) for stage, wall, cpu in stages}
    for path in sorted(folder.glob("*.json")):
        for name, entry in json.loads(path.read_text()).items():
            cost = Cost(**entry)
            costs[name] = max(cost, costs.get(name, cost), key=lambda each: each.wall)
    return costs


def write(costs: dict[str, Cost]) -> None:
    """Put costs into the table, in which files that are no more, and tests that are no longer long, lose their line."""
    every = {name: cost for name, cost in (recorded() | costs).items() if _belongs(name, cost)}
    lines = [
        f"  {json.dumps(name)}: {json.dumps(asdict(Cost(round(cost.wall, 1), round(cost.cpu, 1), cost.servers)))}"
        for name, cost in sorted(every.items())
    ]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _belongs(name: str, cost: Cost) -> bool:
    file, _, test = name.partition("::")
    path = TABLE.parents[1] / file
    if not file.startswith("tests/"):
        return True
    if not test:
        return path.exists()
    return cost.wall >= LONG and path.exists() and f"def {test}(" in path.read_text(encoding="utf-8")


def table(costs: dict[str, Cost]) -> str:
    """The bill of stages and files, dearest first."""
    costs = {name: cost for name, cost in costs.items() if "::" not in name}
    lines = ["   wall s    CPU s"]
    lines += [
        f"{cost.wall:9.1f}{cost.cpu:9.1f}  {name}"
        for name, cost in sorted(costs.items(), key=lambda entry: -entry[1].cpu)
    ]
    lines.append(f"{'':9}{sum(cost.cpu for cost in costs.values()):9.1f}  in all")
    return "\n".join(lines)


def main() -> int:
    command, *arguments = sys.argv[1:]
    if command == "stage":
        return run_stage(arguments[0], arguments[1:])
    costs = collect(Path(arguments[0]))
    write(costs)
    sys.stdout.write(table(costs) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
