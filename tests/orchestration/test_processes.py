"""Runs whose process ended without a report: marked as failed from the same machine, and from no other."""

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

from icepuffin.orchestration import processes
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
from tests.repository import REPOSITORY


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
    *_, last = (entry for entry in instance.all_logs(run.run_id) if entry.dagster_event)
    assert "is gone: it was killed, or the machine was restarted. What it had finished is kept" in last.message


def test_a_container_that_was_restarted_ends_its_run_and_another_container_does_not(
    instance: dg.DagsterInstance, here: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "this_process", lambda: replace(here, layer="a"))
    run = noted_run(instance, replace(here, layer="a", namespace="pid:[1]"))
    noted_run(instance, replace(here, layer="b", namespace="pid:[1]"))
    assert end_lost_runs(instance) == (run.run_id,)


def test_the_layer_of_a_container_is_that_of_its_root() -> None:
    options = "rw,lowerdir=/o/l/A:/o/l/B,upperdir=/o/{}/diff,workdir=/o/{}/work"
    volume = f"612 575 0:70 / /data rw,relatime - overlay overlay {options.format('b', 'b')}\n"
    root = f"575 421 0:66 / / rw,relatime master:99 - overlay overlay {options.format('a', 'a')}\n"
    found = processes._LAYER.search(volume + root)
    assert found is not None
    assert found[1] == "/o/a/diff"
    assert processes._LAYER.search(f"22 1 254:0 / / rw - ext4 /dev/vda rw\n{volume}") is None


def test_a_run_that_reports_its_end_before_its_process_ends_keeps_what_it_reported(
    instance: dg.DagsterInstance, here: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = noted_run(instance, here)
    monkeypatch.setattr(Process, "has_ended", property(lambda _: instance.report_run_canceled(run)))
    assert end_lost_runs(instance) == ()
    ended = instance.get_run_by_id(run.run_id)
    assert ended is not None
    assert ended.status == DagsterRunStatus.CANCELED


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


def test_a_deployment_ends_lost_runs_before_it_starts(home: Path, stored: dg.DagsterInstance, here: Process) -> None:
    run = noted_run(stored, replace(here, boot="another"))
    command = [sys.executable, "-m", "icepuffin.orchestration.processes"]
    done = subprocess.run(command, env={**os.environ, "DAGSTER_HOME": str(home)}, capture_output=True, check=True)
    assert f"run {run.run_id} was ended" in done.stdout.decode()
    ended = stored.get_run_by_id(run.run_id)
    assert ended is not None
    assert ended.status == DagsterRunStatus.FAILURE
    starting = (REPOSITORY / "deploy" / "local.sh").read_text().partition("launch code ")[0]
    assert f"-m {command[2]} " in starting, "the script does so first"


def test_a_note_that_came_with_the_tags_of_another_run_means_nothing(
    instance: dg.DagsterInstance, here: Process
) -> None:
    """A run that is tried again has the tags of the one that was lost."""
    noted_run(instance, replace(here, boot="another"), run="the one that was lost")
    assert end_lost_runs(instance) == ()


@pytest.mark.parametrize("note", ["", "{", "[]", "3", '{"run": "x"}', '{"pid": []}'])
def test_a_process_tag_of_another_form_is_ignored(instance: dg.DagsterInstance, note: str) -> None:
    run = create_run_for_test(instance, job_name="x", status=DagsterRunStatus.STARTED, tags={PROCESS_TAG: note})
    assert process_of(run) is None
    assert end_lost_runs(instance) == ()


def test_a_process_that_ended_unreaped_has_ended(here: Process) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        noted = replace(here, pid=child.pid, began=processes._start_time(child.pid) or "")
        assert not noted.has_ended
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert noted.has_ended


def test_a_boot_id_proves_nothing_where_machines_cannot_be_told_apart(
    instance: dg.DagsterInstance, here: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers of one image and one given name, on two hosts."""
    nameless = replace(here, machine="")
    monkeypatch.setattr(processes, "this_process", lambda: nameless)
    noted_run(instance, replace(nameless, boot="another"))
    assert end_lost_runs(instance) == ()


def test_an_id_that_came_with_an_image_is_not_the_machines(tmp_path: Path) -> None:
    """Two containers on two hosts have that of their image; the process ids are those of a namespace of their own."""
    if os.geteuid() != 0:
        pytest.skip("namespaces are made by root")
    program = "from icepuffin.orchestration.processes import this_process; print(repr(this_process().machine))"
    apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    assert subprocess.check_output([*apart, sys.executable, "-c", program], text=True).strip() == "''"
    hostname = tmp_path / ("ab" * 32) / "hostname"  # as container engines mount it
    hostname.parent.mkdir()
    hostname.write_text("code\n")
    mounted = f"mount --bind {hostname} /etc/hostname && exec {sys.executable} -c '{program}'"
    assert subprocess.check_output([*apart, "sh", "-c", mounted], text=True).strip() != "''"


def test_a_process_that_sees_another_namespaces_proc_notes_nothing() -> None:
    if os.geteuid() != 0:
        pytest.skip("namespaces are made by root")
    program = "from icepuffin.orchestration.processes import this_process; print(this_process())"
    seen = subprocess.check_output(["unshare", "--pid", "--fork", sys.executable, "-c", program], text=True)
    assert seen.strip() == "None"


@pytest.mark.parametrize("hidden", ["1", "2"])
def test_a_process_of_another_user_that_is_hidden_is_not_gone(here: Process, hidden: str) -> None:
    """`hidepid`, as hardened machines have it: /proc shows a user his own processes alone."""
    if os.geteuid() != 0:
        pytest.skip("namespaces are made by root")
    program = (
        "import json, os, sys; from icepuffin.orchestration import processes; processes.this_process(); "
        "os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534); "
        "print([processes.Process(**item).has_ended for item in json.loads(sys.argv[1])])"
    )
    script = f'mount -t proc -o hidepid={hidden} proc /proc && exec "$0" -c "$1" "$2"'
    noted = json.dumps([asdict(here), asdict(replace(here, pid=2**22 + 1))])
    command = ["unshare", "--mount", "sh", "-c", script, sys.executable, program, noted]
    assert subprocess.check_output(command, text=True, cwd=REPOSITORY).strip() == "[False, True]"


def test_a_process_that_may_neither_be_read_of_nor_signalled_is_not_gone(
    here: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refused)
    monkeypatch.setattr(os, "kill", refused)
    assert not here.has_ended


def test_a_process_of_any_name_is_known(here: Process) -> None:
    """The kernel writes the name in parentheses, and a name may have them, too."""
    name = Path("/proc/self/comm")
    before = name.read_text(encoding="utf-8")
    try:
        name.write_text("a) Z", encoding="utf-8")
        assert not here.has_ended
        assert processes._start_time(here.pid) == here.began
    finally:
        name.write_text(before, encoding="utf-8")


def test_a_process_knows_itself() -> None:
    assert json.loads(process_tags("r")[PROCESS_TAG])["pid"] == os.getpid()
