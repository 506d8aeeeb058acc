"""Runs whose process went without a word: ended by whoever looks on the same machine, and by nobody else."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus, RunsFilter
from dagster._core.test_utils import create_run_for_test

from icepuffin.orchestration.instance import open_instance
from icepuffin.orchestration.processes import (
    PROCESS_TAG,
    Process,
    end_lost_runs,
    process_of,
    process_tags,
    run_process_executor,
    this_process,
)
from tests.orchestration.lake import without_captured_output


@dg.op
def sleeps() -> None:
    time.sleep(600)


@dg.job(executor_def=run_process_executor)
def sleeping() -> None:
    sleeps()


RUN = """
import sys, dagster as dg
from tests.orchestration import test_processes
with dg.DagsterInstance.from_config(sys.argv[1]) as instance:
    dg.execute_job(dg.reconstructable(test_processes.sleeping), instance)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return without_captured_output(tmp_path / "dagster_home")


@pytest.fixture
def stored(home: Path) -> Iterator[dg.DagsterInstance]:
    with open_instance(home) as opened:
        yield opened


@pytest.fixture
def here() -> Process:
    found = this_process()
    assert found is not None
    return found


def noted_run(instance: dg.DagsterInstance, process: Process, run: str | None = None) -> dg.DagsterRun:
    """A run in progress that has noted this process."""
    made = create_run_for_test(instance, job_name="refresh", status=DagsterRunStatus.STARTED)
    instance.add_run_tags(made.run_id, {PROCESS_TAG: json.dumps({"run": run or made.run_id, **asdict(process)})})
    return made


def test_a_run_whose_process_was_killed_is_ended_and_not_before(home: Path, stored: dg.DagsterInstance) -> None:
    process = subprocess.Popen([sys.executable, "-c", RUN, str(home)], start_new_session=True)
    try:
        run = None
        for _ in range(600):
            found = stored.get_runs(RunsFilter(statuses=[DagsterRunStatus.STARTED]))
            run = next((item for item in found if process_of(item)), None)
            if run or process.poll() is not None:
                break
            time.sleep(0.1)
        assert run is not None
        assert end_lost_runs(stored) == (), "it lives"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert end_lost_runs(stored) == (run.run_id,)
    ended = stored.get_run_by_id(run.run_id)
    assert ended is not None
    assert ended.status == DagsterRunStatus.FAILURE
    messages = [str(entry.dagster_event.message) for entry in stored.all_logs(run.run_id) if entry.dagster_event]
    assert any(f"The process of this run, {process.pid} on " in message for message in messages)
    assert end_lost_runs(stored) == ()


@pytest.mark.parametrize("changed", [{"boot": "another"}, {"began": "1"}, {"pid": 2**22 + 1}])
def test_a_reboot_a_reused_id_and_no_such_process_end_a_run(
    instance: dg.DagsterInstance, here: Process, changed: dict[str, str | int]
) -> None:
    run = noted_run(instance, replace(here, **changed))  # type: ignore[arg-type]
    assert end_lost_runs(instance) == (run.run_id,)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"host": "another", "pid": 2**22 + 1},
        {"host": "another", "boot": "another"},
        {"machine": "another", "boot": "another"},
        {"namespace": "pid:[1]", "pid": 2**22 + 1},
    ],
)
def test_a_run_that_lives_or_that_nobody_here_can_see_is_left_alone(
    instance: dg.DagsterInstance, here: Process, changed: dict[str, str | int]
) -> None:
    noted_run(instance, replace(here, **changed))  # type: ignore[arg-type]
    assert end_lost_runs(instance) == ()


def test_a_note_that_came_with_the_tags_of_another_run_means_nothing(
    instance: dg.DagsterInstance, here: Process
) -> None:
    """A run that is tried again has the tags of the one that was lost."""
    noted_run(instance, replace(here, boot="another"), run="the one that was lost")
    assert end_lost_runs(instance) == ()


@pytest.mark.parametrize("note", ["", "{", "[]", "3", '{"run": "x"}', '{"pid": []}'])
def test_a_tag_that_is_no_note_is_somebody_elses(instance: dg.DagsterInstance, note: str) -> None:
    run = create_run_for_test(instance, job_name="x", status=DagsterRunStatus.STARTED, tags={PROCESS_TAG: note})
    assert process_of(run) is None
    assert end_lost_runs(instance) == ()


def test_a_process_that_nobody_has_asked_after_is_gone(here: Process) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert replace(here, pid=child.pid, began=here.began).is_gone


def test_a_process_knows_itself() -> None:
    assert json.loads(process_tags("r")[PROCESS_TAG])["pid"] == os.getpid()
