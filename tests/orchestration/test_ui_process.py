"""`icepuffin ui --start` ends, with all that it started, by the signals that a script or a service manager sends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.orchestration.lake import make_lake
from tests.services.processes import answers, free_port

pytestmark = pytest.mark.timeout(900)
_STARTING = 3
"""The shell, the command and the first of Dagster's processes"""


def session_of(leader: int) -> set[int]:
    """Ids of the live processes of a session."""
    members = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session, *_ = stat.read_text(errors="replace").rpartition(") ")[2].split()
        except OSError:  # it has just ended
            continue
        if state != "Z" and int(session) == leader:
            members.add(int(stat.parent.name))
    return members


def wait_until(condition: Callable[[], bool], seconds: float = 400) -> bool:
    until = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < until:
        time.sleep(0.2)
    return met


def status(port: int, site: str) -> int:
    """The status of the webserver's answer to GraphQL by GET that a page of such a site sends."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/graphql?query=%7Bversion%7D", headers={"Sec-Fetch-Site": site} if site else {})
    with closing(connection):
        return connection.getresponse().status


@pytest.mark.parametrize(("number", "serves"), [(signal.SIGTERM, True), (signal.SIGINT, False)])
def test_a_script_ends_the_ui_that_it_started_in_the_background(
    tmp_path: Path, number: signal.Signals, serves: bool
) -> None:
    """Once it serves, or while it starts Dagster's processes."""
    lake, port = make_lake(tmp_path, snapshots=1), free_port()
    program = Path(sys.executable).with_name("icepuffin")
    script = f"{program} ui --start --port {port} >{tmp_path}/ui.log 2>&1 & echo $!; wait"
    environment = {key: value for key, value in os.environ.items() if key != "DAGSTER_HOME"}
    environment["ICEPUFFIN_SETTINGS"] = str(lake.settings_file)
    with subprocess.Popen(
        ["sh", "-c", script], stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path, start_new_session=True
    ) as shell:
        try:
            assert shell.stdout is not None
            pid = int(shell.stdout.readline())
            is_ready = (lambda: answers(port)) if serves else (lambda: len(session_of(shell.pid)) > _STARTING)
            assert wait_until(is_ready), (tmp_path / "ui.log").read_text()
            if serves:
                assert [status(port, site) for site in ("cross-site", "same-origin", "")] == [403, 200, 200]
                assert "Warning: " not in (tmp_path / "ui.log").read_text()
            os.kill(pid, number)
            assert wait_until(lambda: not session_of(shell.pid)), (tmp_path / "ui.log").read_text()
        finally:
            for left in session_of(shell.pid):
                os.kill(left, signal.SIGKILL)
