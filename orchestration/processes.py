"""The process of a run, and whether it is still alive.

Dagster's launcher notices when a run's process ends while the code server lives. When both end together, as in a
reboot, the run stays "started" until its maximum runtime is over. So each run records its process in a tag, and the
next sensor evaluation or start on the same machine fails the runs whose process is gone. This needs Linux; elsewhere
nothing is recorded, and no run is failed.
"""

import hashlib
import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter

from icepuffin.assets.table_settings import HIDDEN_TAGS

PROCESS_TAG = f"{HIDDEN_TAGS}process"
_INITIAL = "pid:[4026531836]"
"""The namespace of process ids outside all containers (PROC_PID_INIT_INO in Linux)."""
_CONTAINER = re.compile(r"/([0-9a-f]{64})/\S* /etc/hostname ")
"""Folder that Docker, containerd or Podman mounts /etc/hostname from: it has the container's or the pod's id."""
_LAYER = re.compile(r" / / .* - overlay .*[ ,]upperdir=([^, \n]+)")
"""Folder with the files that a container has written: a restart leaves it that one, which no other has"""
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")
_INTERRUPTS = (dg.DagsterExecutionInterruptedError.__name__, KeyboardInterrupt.__name__)
_IN_PROGRESS = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]


@dataclass(frozen=True, slots=True)
class Process:
    """Identity of a process that no other process shares, on any machine, at any time."""

    host: str
    machine: str
    """Hash of the machine's or the container's id, as host names repeat; empty where there is no id of its own, because
    ids in images are copies.
    """
    layer: str
    """Hash of the folder with what the container has written; empty outside containers, and where none shows."""
    boot: str
    """Id of the machine's boot."""
    namespace: str
    """Namespace of process ids; each container of a machine has its own."""
    pid: int
    began: str
    """Start time in clock ticks since the boot, as process ids are reused."""

    @property
    def has_ended(self) -> bool:
        """Whether it has certainly ended. False for a process that cannot be seen from here."""
        here = this_process()
        if here is None or (self.host, self.machine) != (here.host, here.machine):
            return False
        if self.boot != here.boot:
            return self.machine != ""
        if self.namespace != here.namespace:  # the same container has another one when it was restarted
            return self.layer != "" and self.layer == here.layer
        began = _start_time(self.pid)
        return not _exists(self.pid) if began is None else began != self.began


@cache
def _machine() -> tuple[str, str, str, str, str]:
    """(host, machine, layer, boot, namespace) of this process."""
    namespace = str(Path("/proc/self/ns/pid").readlink())
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    layer = _LAYER.search(mounts)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    hashes = _hash(_machine_id(mounts, namespace)), _hash(layer[1] if layer else "")
    return socket.gethostname(), *hashes, boot, namespace


def _hash(text: str) -> str:
    return text and hashlib.sha256(text.encode()).hexdigest()[:16]


def _machine_id(mounts: str, namespace: str) -> str:
    """Id of the container, if /etc/hostname shows one; else of the machine, if this process is in no container."""
    if container := _CONTAINER.search(mounts):
        return container[1]
    with suppress(FileNotFoundError):
        machine = Path("/etc/machine-id").read_text(encoding="ascii").strip()
        return machine if namespace == _INITIAL and _MACHINE_ID.fullmatch(machine) else ""
    return ""


def this_process() -> Process | None:
    """This process; None where the operating system does not identify it."""
    try:
        if str(Path("/proc/self").readlink()) != str(os.getpid()):  # another namespace's /proc
            return None
        return Process(*_machine(), os.getpid(), _start_time(os.getpid()) or "")
    except FileNotFoundError:
        return None


def _start_time(pid: int) -> str | None:
    """Start time of a process in clock ticks since the boot; empty for a zombie, None where /proc shows no process."""
    try:
        state, *rest = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
        )
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return "" if state == "Z" else rest[18]


def _exists(pid: int) -> bool:
    """Whether there is a process of this id: /proc may hide those of other users (`hidepid`)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def process_tags(run_id: str) -> dict[str, str]:
    """The tag that names this process as the one of the run. It has the run's id, because a retry copies the tags."""
    here = this_process()
    return {} if here is None else {PROCESS_TAG: json.dumps({"run": run_id, **asdict(here)}, sort_keys=True)}


def process_of(run: dg.DagsterRun) -> Process | None:
    """The process that the run has recorded; None for a run that has not recorded one yet, or is not icepuffin's."""
    try:
        fields = json.loads(run.tags.get(PROCESS_TAG, "{}"))
        return Process(**fields) if fields.pop("run", None) == run.run_id else None
    except (ValueError, TypeError, AttributeError):  # somebody else's tag
        return None


def end_lost_runs(instance: dg.DagsterInstance) -> tuple[str, ...]:
    """Fail the runs that Dagster counts as in progress and whose process is gone. Returns their ids."""
    run_ids = []
    for record in instance.get_run_records(RunsFilter(statuses=_IN_PROGRESS)):
        run = record.dagster_run
        process = process_of(run)
        if process is None or not process.has_ended:
            continue
        now = instance.get_run_by_id(run.run_id)
        if now is None or now.is_finished:  # it reported its end before its process ended
            continue
        instance.report_run_failed(
            now,
            f"The process of this run, {process.pid} on {process.host}, is gone: it was killed, or the machine was "
            "restarted. What it had finished is kept, and another run uses it",
        )
        run_ids.append(run.run_id)
    return tuple(run_ids)


class _RunProcessExecutor(dg.Executor):
    """Records this process in the run's tags, then runs the steps by another executor.

    A run that is cancelled or interrupted ends. Dagster alone would repeat the step, by its retry policy.
    """

    def __init__(self, executor: dg.Executor) -> None:
        self._executor = executor

    @property
    def retries(self) -> Any:
        return self._executor.retries

    @property
    def step_dependency_config(self) -> Any:
        return self._executor.step_dependency_config

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dg.DagsterEvent]:
        run_id = plan_context.run_id
        plan_context.instance.add_run_tags(run_id, process_tags(run_id))
        events: Any = self._executor.execute(plan_context, execution_plan)
        with closing(events):
            for event in events:
                yield event
                if (event.is_step_up_for_retry or event.is_step_failure) and _is_to_end(plan_context, event):
                    raise dg.DagsterExecutionInterruptedError


def _is_to_end(plan_context: Any, event: dg.DagsterEvent) -> bool:
    """Whether a step ended by an interrupt, or its run was cancelled, or failed for its maximum runtime, meanwhile."""
    error = event.event_specific_data.error  # type: ignore[union-attr]  # both events have one
    while error is not None:
        if error.cls_name in _INTERRUPTS:
            return True
        error = error.cause
    run = plan_context.instance.get_run_by_id(plan_context.run_id)
    return run is None or run.is_finished or run.status is DagsterRunStatus.CANCELING


@dg.executor(name="in_process", config_schema=dg.in_process_executor.config_schema.as_field())
def run_process_executor(context: dg.InitExecutorContext) -> dg.Executor:
    """Dagster's in-process executor; its runs can be failed once their process is gone."""
    create: Any = dg.in_process_executor.executor_creation_fn
    return _RunProcessExecutor(create(context))


def main() -> None:
    """Fail the lost runs of the instance in DAGSTER_HOME, before a deployment starts on it."""
    with dg.DagsterInstance.get() as instance:
        for run_id in end_lost_runs(instance):
            sys.stdout.write(f"run {run_id} was ended: its process is gone\n")


if __name__ == "__main__":
    main()
