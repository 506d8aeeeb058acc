"""`deploy/local.sh` as a user runs it: start, look, lose a process, start again, stop."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
from dagster import RunsFilter

from icepuffin.orchestration.instance import open_instance
from tests.orchestration.lake import Lake, make_lake
from tests.selection import nightly
from tests.services.processes import free_port

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "local.sh"
SERVICES = {"code", "daemon", "spark-master", "spark-worker-1", "spark-worker-2", "webserver"}
INDEX = dg.AssetKey(["demo", "demo", "packages", "ann_index", "embedding"])
_SECONDS = 120
"""More than anything takes on a busy machine"""

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600), nightly]


@dataclass(frozen=True)
class Local:
    """One deployment in a folder, on ports of its own."""

    directory: Path
    settings: Path
    ports: tuple[str, ...]

    def run(self, command: str, *more: str) -> subprocess.CompletedProcess[str]:
        arguments = ["sh", str(SCRIPT), command, "--dir", str(self.directory), *more]
        if command == "start":
            arguments += ["--settings", str(self.settings), *self.ports]
        environment = {**os.environ, "PYTHON": sys.executable}
        # An interrupted shell would leave children that hold a pipe open; a file does not wait for them
        output = self.directory.with_suffix(".output")
        with output.open("w") as sink:
            done = subprocess.run(
                arguments, env=environment, stdout=sink, stderr=subprocess.STDOUT, check=False, timeout=180
            )
        return subprocess.CompletedProcess(arguments, done.returncode, output.read_text())

    def processes(self) -> dict[str, int]:
        files = (self.directory / "run").glob("*.pid")
        return {file.stem: int(file.read_text().split()[0]) for file in files}

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + _SECONDS
        while not condition():
            assert time.monotonic() < until, f"{what} did not happen in {_SECONDS} s; logs in {self.directory}/logs"
            time.sleep(0.5)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Two snapshots; the sensor is evaluated every second, the nightly schedule comes every minute."""
    lake = make_lake(tmp_path_factory.mktemp("lake"), snapshots=2)
    lake.write_settings(
        sensor_running=True, sensor_interval_seconds=1, schedules_running=True, nightly="* * * * *", maintenance="off"
    )
    return lake


@pytest.fixture(scope="module")
def local(lake: Lake) -> Iterator[Local]:
    options = ("--port", "--code-port", "--spark-port", "--spark-ui-port")
    ports = tuple(text for option in options for text in (option, str(free_port())))
    deployment = Local(lake.directory / "deployment", lake.settings_file, (*ports, "--memory", "512m"))
    started = deployment.run("start")
    try:
        assert started.returncode == 0, started.stdout
        yield deployment
    finally:
        deployment.run("stop")


def session(leader: int) -> list[int]:
    """Processes of the session that `leader` began."""
    members = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except OSError:
            continue  # it has just ended
        if int(stat.rsplit(")", 1)[1].split()[3]) == leader:
            members.append(int(folder.name))
    return members


def test_every_service_runs_and_is_listed(local: Local) -> None:
    output = local.run("status")
    assert output.returncode == 0
    assert {line.split()[0] for line in output.stdout.splitlines() if " runs, process " in line} == SERVICES
    assert f"open http://127.0.0.1:{local.ports[1]}" in output.stdout


def test_the_daemon_indexes_every_snapshot_by_sensor_and_comes_back_nightly(lake: Lake, local: Local) -> None:
    wanted = {str(snapshot.snapshot_id) for snapshot in lake.table.metadata.snapshots}
    with open_instance(local.directory / "dagster_home") as instance:
        local.wait_for("the runs", lambda: instance.get_materialized_partitions(INDEX) == wanted)
        nightly = RunsFilter(
            tags={"dagster/schedule_name": "nightly_demo_demo_packages"}, statuses=[dg.DagsterRunStatus.SUCCESS]
        )
        local.wait_for("the night", lambda: instance.get_runs_count(nightly) > 0)


def test_starting_twice_changes_nothing(local: Local) -> None:
    before = local.processes()
    assert local.run("start").returncode == 0
    assert local.processes() == before


def test_a_process_that_ended_is_reported_and_started_again_alone(local: Local) -> None:
    before = local.processes()
    os.kill(before["webserver"], signal.SIGKILL)
    local.wait_for("the end", lambda: not Path(f"/proc/{before['webserver']}").exists())
    status = local.run("status")
    assert status.returncode == 3
    assert "webserver has ended" in status.stdout
    assert local.run("start").returncode == 0
    after = local.processes()
    assert {name for name in SERVICES if after[name] != before[name]} == {"webserver"}


def test_another_process_under_an_old_id_is_not_taken_for_ours(local: Local, tmp_path: Path) -> None:
    """Ids come round again: one that began at another time is a stranger, and is left alone."""
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        other = Local(tmp_path / "other", local.settings, local.ports)
        (other.directory / "run").mkdir(parents=True)
        (other.directory / "run" / "webserver.pid").write_text(f"{stranger.pid} 1\n")
        assert other.run("stop").returncode == 0
        assert stranger.poll() is None
        assert other.processes() == {}
    finally:
        stranger.kill()
        stranger.wait()


def test_what_a_service_leaves_behind_is_ended_with_it(local: Local, tmp_path: Path) -> None:
    """A shell that gets a signal to end does not pass it to its children."""
    listens = ["env", "--default-signal=TERM"]  # Dagster lets us ignore it where SIGINT is ignored, and we pass that on
    leader = subprocess.Popen([*listens, "sh", "-c", "sleep 300 & sleep 300 & wait"], start_new_session=True)
    began = Path(f"/proc/{leader.pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    other = Local(tmp_path / "other", local.settings, local.ports)
    (other.directory / "run").mkdir(parents=True)
    (other.directory / "run" / "code.pid").write_text(f"{leader.pid} {began}\n")
    other.wait_for("its children", lambda: len(session(leader.pid)) == 3)
    stopping = subprocess.Popen(["sh", str(SCRIPT), "stop", "--dir", str(other.directory)], stdout=subprocess.DEVNULL)
    leader.wait(60)
    assert stopping.wait(60) == 0
    other.wait_for("the end of its children", lambda: not session(leader.pid))


def test_a_port_that_is_taken_is_named(local: Local, tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        other = Local(
            tmp_path / "other", local.settings, ("--no-spark", "--code-port", str(free_port()), "--port", port)
        )
        refused = other.run("start")
    assert refused.returncode == 1
    assert refused.stdout == f"icepuffin: port {port} is taken; choose another one with --port\n"
    assert other.processes() == {}


@pytest.mark.parametrize("host", ["192.0.2.1", "example.org", "::", "10.0.0.7"])
def test_a_host_that_others_reach_needs_the_insecure_option(local: Local, tmp_path: Path, host: str) -> None:
    other = Local(tmp_path / "other", local.settings, (*local.ports, "--host", host))
    refused = other.run("start")
    assert (refused.returncode, refused.stdout.count("\n")) == (1, 1)
    assert f"icepuffin: --host {host} lets whoever reaches it run code as " in refused.stdout
    assert "or say --insecure as well" in refused.stdout
    assert not other.directory.exists()


def test_a_host_that_others_reach_is_allowed_with_the_insecure_option(local: Local, tmp_path: Path) -> None:
    broken = tmp_path / "icepuffin.toml"
    broken.write_text("[catalogs]\n")
    went_on = Local(tmp_path / "other", broken, ("--host", "192.0.2.1", "--insecure")).run("start")
    assert "no catalog is set" in went_on.stdout


def test_bad_settings_and_options_are_one_line(local: Local, tmp_path: Path) -> None:
    broken = tmp_path / "icepuffin.toml"
    broken.write_text("[catalogs]\n")
    refused = Local(tmp_path / "other", broken, local.ports).run("start")
    assert (refused.returncode, refused.stdout.count("\n")) == (1, 1)
    assert "no catalog is set" in refused.stdout
    assert "--colour is no option" in local.run("status", "--colour").stdout


def test_stop_leaves_no_process_behind_and_may_be_repeated(local: Local) -> None:
    """The last test: it ends the deployment. A stopped service takes what it started with it."""
    leaders = local.processes()
    assert set(leaders) == SERVICES
    stopped = local.run("stop")
    assert stopped.returncode == 0, stopped.stdout
    for name, leader in leaders.items():
        local.wait_for(f"the end of {name}", lambda leader=leader: not session(leader))
    assert local.processes() == {}
    assert local.run("status").returncode == 3
    assert local.run("stop").returncode == 0
