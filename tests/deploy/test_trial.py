"""What the trial of the containers does where an engine fails or answers otherwise: a program stands in for one."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TRIAL = Path(__file__).resolve().parents[2] / "deploy" / "try_containers.py"


def make_engine(folder: Path, script: str) -> Path:
    program = folder / "podman"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    return program


def tried(folder: Path, engine: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the trial with a shell script as its engine; of compose, every command succeeds."""
    make_engine(folder, engine)
    command = [sys.executable, str(TRIAL), "--engine", "podman", "--compose", "true", *options]
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "TMPDIR": str(folder)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ('[ "$1" = --version ] || { echo "no such image" >&2; exit 125; }', "no such image"),
        ('[ "$1" != image ] || echo "not a number"', "ValueError: invalid literal"),
        ('[ "$1" != image ] || echo 1200000001', "the image has 1,200,000,001 bytes"),
        ('case "$1" in image) echo 1 ;; volume) echo old ;; esac', "an earlier trial left old"),
    ],
)
def test_a_step_that_fails_ends_the_trial_with_its_table(tmp_path: Path, engine: str, words: str) -> None:
    done = tried(tmp_path, engine)
    assert done.returncode == 1
    assert re.search(rf"^\| .* \| FAILED: .*{words}.* \| \d+ \|$", done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert not list(tmp_path.glob("icepuffin-login-*")), "nothing stays behind"


def test_a_deployment_that_is_kept_keeps_its_log_in_and_prints_how_to_remove_it(tmp_path: Path) -> None:
    done = tried(tmp_path, "[ $1 = --version ]", "--keep")
    (login,) = tmp_path.glob("icepuffin-login-*")
    assert "https://127.0.0.1:18443, user trial, password " in done.stderr
    (removal,) = (line for line in done.stderr.splitlines() if line.endswith(f"&& rm -r {login}"))
    assert removal.startswith("POSTGRES_PASSWORD=any ")
    assert "true -p icepuffin-trial -f deploy/compose.yaml -f deploy/compose.login.yaml down -v" in removal


@pytest.mark.parametrize("number", ["0", "1", "99999999"])
def test_no_process_is_killed_that_is_not_the_container_s(tmp_path: Path, number: str) -> None:
    """The engine may run in a virtual machine, and 0 would be the trial's own group."""
    trial = runpy.run_path(str(TRIAL))
    deployment = trial["Deployment"](str(make_engine(tmp_path, f"echo {number}")), "true", 1, tmp_path)
    with pytest.raises(trial["TrialError"], match=f"process {number} of x does not run code-server"):
        deployment.process("x", "code-server")


def test_an_engine_that_hangs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = runpy.run_path(str(TRIAL))
    output = trial["output"]
    monkeypatch.setitem(output.__globals__, "COMMAND_S", 0.1)
    sleep = shutil.which("sleep")
    assert sleep is not None
    with pytest.raises(trial["TrialError"], match=r"sleep 9 did not end in 0\.1 s"):
        output(sleep, "9")
