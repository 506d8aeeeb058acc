"""The table of durations, the order in which files go to workers, and which tests `make quick` chooses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import durations, quick, repository
from tests.durations import Cost
from tests.repository import REPOSITORY
from tests.scheduling import next_file


def test_every_test_file_has_its_line_in_the_table() -> None:
    files = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "tests").rglob("test_*.py")}
    measured = {name for name in durations.recorded() if name.startswith("tests/") and "::" not in name}
    assert sorted(files - measured) == [], 'make durations FILES="..." measures them'
    assert sorted(measured - files) == [], "make durations takes lines of files that are no more out"


SPENDS_TIME = """
import subprocess, sys
import pytest
BUSY = "import time; until = time.process_time() + {}\\nwhile time.process_time() < until: pass"

def test_own():
    exec(BUSY.format(0.2))

def test_child():
    subprocess.run([sys.executable, "-c", BUSY.format(0.3)], check=True)

@pytest.mark.jvm
def test_running_child():
    global child
    child = subprocess.Popen([sys.executable, "-c", BUSY.format(0.3) + "\\ninput()"], stdin=subprocess.PIPE)
    import time
    until = time.monotonic() + 60
    from tests.durations import _running
    import os
    while _running(os.getpid()) < 0.3 and time.monotonic() < until:
        time.sleep(0.01)

@pytest.fixture(scope="session")
def shared():
    import time
    time.sleep(0.4)

@pytest.mark.parametrize("case", range(3))
def test_waits(case, shared):
    if case == 0:
        child.communicate(b"")
    import time
    time.sleep(0.1)
"""


def test_cpu_of_a_file_is_that_of_all_its_processes(tmp_path: Path) -> None:
    (tmp_path / "test_spender.py").write_text(SPENDS_TIME)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-c", str(REPOSITORY / "pyproject.toml")]
    command += ["--rootdir", str(tmp_path), "-p", "tests.conftest", "test_spender.py", "--deselect"]
    command += ["test_spender.py::test_waits[2]"]
    environment = os.environ | {durations.FOLDER: str(tmp_path / "costs"), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    costs = durations.collect(tmp_path / "costs")
    cost = costs["test_spender.py"]
    assert cost.cpu >= 0.8
    assert cost.wall >= 0.6
    assert cost.servers
    waiting = costs["test_spender.py::test_waits"]
    assert not waiting.servers
    assert waiting.wall >= 0.3, "one of three cases was left out"
    shares = sum(cost.wall for name, cost in costs.items() if "::" in name)
    assert shares + 0.4 <= cost.wall + waiting.wall / 3 + 1e-6, "what tests share is none of their costs"


def test_stages_of_the_set_up_are_part_of_the_bill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "SET_UP", tmp_path / ".setup-times")
    assert durations.collect(tmp_path) == {}
    durations.SET_UP.write_text("packages 21.5 40.2\nkernels 39.0 75.1\n")
    assert durations.collect(tmp_path) == {
        "set-up, packages": Cost(21.5, 40.2), "set-up, kernels": Cost(39.0, 75.1)
    }  # fmt: skip


def test_a_stage_keeps_its_cost_and_its_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(durations.FOLDER, str(tmp_path))
    program = (
        "import sys, time; until = time.process_time() + 0.2\nwhile time.process_time() < until: pass\nsys.exit(3)"
    )
    assert durations.run_stage("busy", [sys.executable, "-c", program]) == 3
    cost = durations.collect(tmp_path)["busy"]
    assert cost.cpu >= 0.2
    assert not cost.servers


def test_the_table_takes_in_what_is_new_and_loses_what_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "TABLE", tmp_path / "tests" / "durations.json")
    (tmp_path / "tests").mkdir()
    for name in ("test_a.py", "test_b.py", "test_gone.py"):
        (tmp_path / "tests" / name).write_text("def test_long(): ...\ndef test_short(): ...\n")
    durations.write({f"tests/{name}": Cost(2.04, 3, servers=True) for name in ("test_a.py", "test_gone.py")})
    (tmp_path / "tests" / "test_gone.py").unlink()
    durations.write({"tests/test_b.py": Cost(1, 1), "lint": Cost(5, 4)})
    long = {"tests/test_b.py::test_long": Cost(1.2, 1)}
    durations.write(
        long | {f"tests/test_b.py::test_{name}": Cost(seconds, 1) for name, seconds in (("short", 0.9), ("gone", 3))}
    )
    assert durations.recorded() == long | {
        "lint": Cost(5, 4), "tests/test_a.py": Cost(2.0, 3, servers=True), "tests/test_b.py": Cost(1, 1)
    }  # fmt: skip
    lines = durations.table(durations.recorded()).splitlines()
    assert [line.split()[-1] for line in lines[1:-1]] == ["lint", "tests/test_a.py", "tests/test_b.py"]
    assert lines[-1].split() == ["8.0", "in", "all"]


def test_one_worker_starts_servers_and_long_files_go_first() -> None:
    costs = {
        "a": Cost(5, 5), "b": Cost(50, 5), "c": Cost(20, 5, servers=True), "d": Cost(30, 5, servers=True)
    }  # fmt: skip
    files = {*costs, "unmeasured"}
    order: dict[bool, list[str]] = {True: [], False: []}
    for starts_servers, files_in_order in order.items():
        waiting = set(files)
        while waiting:
            files_in_order.append(next_file(waiting, costs, starts_servers=starts_servers))
            waiting.remove(files_in_order[-1])
    assert order == {True: ["d", "c", "b", "unmeasured", "a"], False: ["b", "unmeasured", "a", "d", "c"]}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of four modules and their tests, committed."""
    texts = {
        "ops/base.py": "",
        "ops/middle.py": "from icepuffin.ops import base\n",
        "ops/top.py": "from icepuffin.ops.middle import name\n",
        "ops/other.py": "",
        "tests/test_base.py": "from icepuffin.ops.base import name\n",
        "tests/test_middle.py": "from icepuffin.ops import middle\n",
        "tests/test_top.py": "import icepuffin.ops.top\n",
        "tests/test_other.py": "def test():\n    from icepuffin.ops import other\n",
        "tests/samples.py": "",
        "tests/test_samples.py": "from tests.samples import name\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for module in (quick, repository):
        monkeypatch.setattr(module, "REPOSITORY", tmp_path)
    monkeypatch.setattr(quick, "modules", repository.modules.__wrapped__)  # without what it has cached
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("ops/base.py", ["tests/test_base.py", "tests/test_middle.py"]),
        ("ops/middle.py", ["tests/test_middle.py", "tests/test_top.py"]),
        ("ops/other.py", ["tests/test_other.py"]),
        ("tests/test_top.py", ["tests/test_top.py"]),
        ("tests/samples.py", ["tests/test_samples.py"]),
        ("docs.md", []),
    ],
)
def test_tests_of_a_change_are_those_of_its_modules_and_of_their_importers(
    tree: Path, changed: str, tests: list[str]
) -> None:
    (tree / changed).write_text((tree / changed).read_text() + "#\n" if (tree / changed).exists() else "new")
    chosen = quick.chosen(quick.changed_since("HEAD"))
    assert [file for file in chosen if file not in quick.RULES] == tests
    assert chosen[:2] == list(quick.RULES)


def test_tests_of_a_deleted_or_moved_module_are_those_that_still_import_it(tree: Path) -> None:
    (tree / "ops/other.py").unlink()
    subprocess.run(["git", "mv", "ops/base.py", "ops/ground.py"], cwd=tree, check=True)
    (tree / "tests/test_samples.py").unlink()
    chosen = quick.chosen(quick.changed_since("HEAD"))
    assert set(chosen) - set(quick.RULES) == {"tests/test_base.py", "tests/test_middle.py", "tests/test_other.py"}


def test_a_file_that_is_run_whole_takes_as_long_as_all_its_long_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"a": Cost(30, 9), "a::test_long": Cost(40, 9), "a::test_other": Cost(50, 9), "b": Cost(9, 9, servers=True)}
    monkeypatch.setattr(quick, "recorded", lambda: table | {"b::test_long": Cost(8, 8)})
    costs = quick.costs_of_whole_files()
    assert (costs["a"], costs["b"]) == (Cost(90, 9), table["b"])


def test_what_exceeds_the_budget_or_starts_servers_is_left_out_by_name() -> None:
    costs = {"a": Cost(140, 9), "b": Cost(20, 9), "c": Cost(1, 1, servers=True), "d": Cost(9, 9)}
    assert quick.within_budget(["a", "b", "c", "d", "unmeasured"], costs) == (["a", "d", "unmeasured"], ["b", "c"])
