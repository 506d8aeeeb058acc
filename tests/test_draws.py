"""The same commit tries the same cases, whatever else runs; a failure says how to draw them again."""

import ast
import os
import random
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests import draws
from tests.draws import TALLY, WITHOUT_COMMIT, seed_of_run
from tests.repository import REPOSITORY

SAMPLE = """
import os
import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.draws import SEED, draws


@given(st.lists(st.integers(), min_size=30), st.text())
def test_law(numbers, text):
    with open(os.environ["DRAWN"], "a") as file:
        print(hash((*numbers, len(text))), file=file)


def test_loop():
    rng = random.Random(SEED)
    for _ in draws(7):
        with open(os.environ["DRAWN"], "a") as file:
            print(rng.random(), file=file)


@given(st.integers())
def test_failing(number):
    assert number < 1000
"""
CONSTANTS = "NUMBERS = " + repr([*range(70_001, 70_400)])
"""A module of ours whose numbers Hypothesis would draw once it is imported"""


def drawn(folder: Path, workers: int, **environment: str) -> tuple[list[str], str]:
    """What the sample draws, and what pytest prints."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_sample.py").write_text(SAMPLE)
    (folder / "drawn").unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "tests.draw_report", "-p", "no:langsmith_plugin"]
    of_this_run = dict.fromkeys(("ICEPUFFIN_NIGHTLY", "ICEPUFFIN_DRAWS", "ICEPUFFIN_LAW_SECONDS"), "")
    done = subprocess.run(
        [*command, "-n", str(workers), "-c", str(folder / "pytest.ini"), str(folder / "test_sample.py")],
        cwd=REPOSITORY,
        env={**os.environ, **of_this_run, "DRAWN": str(folder / "drawn"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return (folder / "drawn").read_text().splitlines(), done.stdout


def test_a_seed_draws_the_same_in_each_process_and_another_seed_other_cases(tmp_path: Path) -> None:
    first, output = drawn(tmp_path, 1, ICEPUFFIN_SEED="5", PYTHONHASHSEED="1")
    (tmp_path / "constants.py").write_text(CONSTANTS)
    (tmp_path / "conftest.py").write_text("import constants")
    again = drawn(tmp_path, 0, ICEPUFFIN_SEED="5", PYTHONHASHSEED="2")[0]
    assert not set(again) ^ set(first)
    other, of_night = drawn(tmp_path, 0, ICEPUFFIN_SEED="6", ICEPUFFIN_NIGHTLY="1")
    assert set(other).isdisjoint(first[-7:])
    assert len(set(other) & set(first)) < len(set(first)) / 2
    assert "drawn by ICEPUFFIN_SEED=5 (chosen)" in output
    assert "test_sample.py: 7 draws in 1 tests" in output
    assert "all modules: 1" in output
    assert "\nICEPUFFIN_SEED=5 ICEPUFFIN_DRAWS=1 draws the same again" in output
    assert "\nICEPUFFIN_NIGHTLY=1 ICEPUFFIN_SEED=6 ICEPUFFIN_DRAWS=1 draws the same again" in of_night


def test_a_test_that_draws_names_its_files_by_its_seed(seed: str) -> None:
    names = random.Random(f"{seed} names")
    assert [uuid.uuid4().int for _ in "ab"] == [uuid.UUID(int=names.getrandbits(128), version=4).int for _ in "ab"]


@pytest.fixture
def no_seed_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ICEPUFFIN_SEED", raising=False)


def git(folder: Path, *arguments: str) -> str:
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", *author, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.usefixtures("no_seed_is_chosen")
def test_the_seed_is_made_of_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "REPOSITORY", tmp_path)
    assert seed_of_run() == (WITHOUT_COMMIT, "no commit: this is no clone, or there is no git")
    git(tmp_path, "init")
    seed, origin = seed_of_run()
    assert seed == WITHOUT_COMMIT
    assert "HEAD" in origin, "git says that there is no commit"
    seeds = []
    for subject in ("first", "second"):
        git(tmp_path, "commit", "--allow-empty", "--message", subject)
        commit = git(tmp_path, "rev-parse", "HEAD").strip()
        seeds.append(seed_of_run())
        assert seeds[-1] == (int(commit[:8], 16), f"of commit {commit[:12]}") == seed_of_run()
    assert seeds[0] != seeds[1]
    monkeypatch.setenv("ICEPUFFIN_SEED", "7")
    assert seed_of_run() == (7, "chosen")


@pytest.fixture
def tally() -> Iterator[None]:
    counts = TALLY.counts.copy()
    yield
    TALLY.counts, TALLY.times = counts, draws.TIMES


@pytest.mark.usefixtures("tally")
def test_a_law_draws_the_least_number_and_more_where_it_has_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "TIMES", 2)
    monkeypatch.setattr(draws, "_LAW_SECONDS", 0.0)
    TALLY.counts.clear()
    TALLY.times = 1
    assert [*draws.draws(3)] == [1, 2, 3, 4, 5, 6]
    assert (TALLY.counts["draws"], TALLY.times) == (6, 2)
    seconds = iter(np.arange(0, 100, 0.5))
    monkeypatch.setattr(draws.time, "process_time", lambda: next(seconds))
    monkeypatch.setattr(draws, "_LAW_SECONDS", 5.0)
    assert len([*draws.draws(3)]) == 6 + 9
    assert (TALLY.counts["draws"], TALLY.times) == (6 + 15, 5), "five times three draws have the last one"


def test_an_amount_is_multiplied_or_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "TIMES", 2)
    monkeypatch.delenv("ICEPUFFIN_HISTORIES", raising=False)
    assert draws.amount(6) == draws.amount(6, "ICEPUFFIN_HISTORIES") == 12
    monkeypatch.setenv("ICEPUFFIN_HISTORIES", "5")
    assert draws.amount(6, "ICEPUFFIN_HISTORIES") == 5


COMMANDS = {"campaigns/__main__.py", "campaigns/fuzz.py", "mutants.py", "nightly.py"}
"""Programs outside of the test run, which draw a new seed and print it"""
GENERATORS = {"default_rng", "Random", "RandomState", "SeedSequence"}
CHANCE = {"SystemRandom", "urandom", "randbits", "randbelow"}


def test_no_test_draws_without_a_seed() -> None:
    """Tokens of the servers and names of files are no cases: `secrets.token_hex` and `uuid4` may be called."""
    wrong = []
    for path in sorted((REPOSITORY / "tests").rglob("*.py")):
        name = path.relative_to(REPOSITORY / "tests").as_posix()
        if name in COMMANDS or not re.search("rng|andom|rand", path.read_text(encoding="utf-8")):
            continue
        nodes = tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        imports = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        for node in nodes:
            if not isinstance(node, ast.Call):
                continue
            of = node.func.value if isinstance(node.func, ast.Attribute) else None
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            of_module = isinstance(of, ast.Name) and of.id == "random" and "random" in imports
            of_numpy = of is not None and ast.unparse(of) == "np.random"
            has_seed = called in GENERATORS and node.args
            if called in CHANCE or ((called in GENERATORS or of_module or of_numpy) and not has_seed):
                wrong.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "give a seed: a number, or that of the fixture `seed`"


def test_each_module_that_takes_the_seed_of_the_run_names_the_fixture() -> None:
    """By it a failure says how to draw the same again, and `make nightly` finds what draws."""
    for path in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "from tests.draws import" in text and path.name != Path(__file__).name:
            assert '"seed"' in text or "seed: str" in text, path
