"""What a step of work costs when it runs in a process of its own: time, memory, bytes.

The parent measures the memory of the step's process and of all that it starts; the step measures the rest itself.
"""

import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_MIN_PAUSE = 0.02
_PAUSE_FACTOR = 10
"""Pause between two measurements of a process's memory, as a multiple of the time of one: it stops the process"""
_IO = ("rchar", "wchar", "read_bytes")


@dataclass
class StepCosts:
    """Costs of the measured part of a step."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU seconds of all threads, and of all processes that the step started and waited for"""
    peak_bytes: int = 0
    """Highest resident memory of all processes together; what they share counts once"""
    anonymous_bytes: int = 0
    """Highest anonymous memory of all processes together: what is not a view of a file"""
    mapped_bytes: int = 0
    """Highest resident memory that is a view of files, programs included"""
    bytes_read: int = 0
    """Bytes that system calls read, or where it is more, that the disk gave: those of mapped files are among these"""
    bytes_written: int = 0
    """Bytes that system calls wrote, the copying of kept shards included"""

    def add_memory(self, memory: dict[str, int]) -> None:
        """Raise the peaks to what processes take now."""
        self.peak_bytes = max(self.peak_bytes, memory["Pss"])
        self.anonymous_bytes = max(self.anonymous_bytes, memory["Anonymous"])
        self.mapped_bytes = max(self.mapped_bytes, memory["Rss"] - memory["Anonymous"])


class Meter:
    """Measures a part of a step, in the step's process. It is sent to the parent when the part begins."""

    def __init__(self, parent: Connection) -> None:
        self._parent = parent
        self.costs = StepCosts()

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the body. What the process did before does not count, what it holds does."""
        with suppress(OSError):  # start the kernel's high-water mark anew
            Path("/proc/self/clear_refs").write_text("5")
        self._parent.send(("begun", None))
        begun, cpu, io = time.perf_counter(), _cpu_seconds(), _io()
        try:
            yield
        finally:
            costs = self.costs
            costs.seconds = time.perf_counter() - begun
            costs.cpu_seconds = _cpu_seconds() - cpu
            after = _io()
            costs.bytes_read = max(after["rchar"] - io["rchar"], after["read_bytes"] - io["read_bytes"])
            costs.bytes_written = after["wchar"] - io["wchar"]
            costs.add_memory(memory_of("self"))
            costs.peak_bytes = max(costs.peak_bytes, _high_water())
            self._parent.send(("ended", None))


def run_step(step: Callable[..., Any], *arguments: Any) -> tuple[Any, StepCosts]:
    """(result, costs) of `step(meter, *arguments)` in a fresh process. Raises RuntimeError where it failed."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_run, args=(there, step, arguments))
    process.start()
    there.close()
    sampled, measuring = StepCosts(), False
    try:
        while True:
            if not here.poll(_sample_memory(process.pid, sampled) if measuring else None):
                continue
            kind, value = here.recv()
            if kind == "done":
                break
            measuring = kind == "begun"
            sampled = StepCosts() if measuring else sampled
    except EOFError:
        raise RuntimeError(f"{step.__name__} failed; its process says why") from None
    finally:
        process.join()
    result, costs = value
    for name in ("peak_bytes", "anonymous_bytes", "mapped_bytes"):
        setattr(costs, name, max(getattr(costs, name), getattr(sampled, name)))
    return result, costs


def _run(parent: Connection, step: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    meter = Meter(parent)
    result = step(meter, *arguments)
    parent.send(("done", (result, meter.costs)))


def _sample_memory(root: int | None, sampled: StepCosts) -> float:
    """Measure the memory of a process and its descendants. Returns seconds to wait before the next measurement."""
    begun = time.perf_counter()
    total = dict.fromkeys(("Rss", "Pss", "Anonymous"), 0)
    for process in _descendants(str(root)):
        with suppress(OSError, KeyError):  # it has ended meanwhile
            memory = memory_of(process)
            total = {key: total[key] + memory[key] for key in total}
    sampled.add_memory(total)
    return max(_MIN_PAUSE, _PAUSE_FACTOR * (time.perf_counter() - begun))


def _descendants(root: str) -> list[str]:
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[status.parent.name] = status.read_text().rpartition(")")[2].split()[1]
    family = [root]
    for member in family:
        family += [process for process, parent in parents.items() if parent == member]
    return family


def memory_of(process: str) -> dict[str, int]:
    """Bytes by the names of /proc/PID/smaps_rollup: `Rss`, `Pss`, `Anonymous` and others."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines}


def as_json(costs: StepCosts, rows: int, storage_bytes: int) -> dict[str, float]:
    """Costs of a step over so many rows, and what the table and its indexes take on disk after it."""
    shown = asdict(costs)
    cpu = shown.pop("cpu_seconds")
    return {**shown, "core_us_per_vector": 1e6 * cpu / rows, "storage_bytes": storage_bytes}


def _cpu_seconds() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _io() -> dict[str, int]:
    lines = Path("/proc/self/io").read_text().splitlines()
    values = {line.split(":")[0]: int(line.split(":")[1]) for line in lines}
    return {name: values[name] for name in _IO}


def _high_water() -> int:
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
