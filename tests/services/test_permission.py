"""Spark, other JVMs and servers start in tests that are marked for it, and in no others."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository import REPOSITORY
from tests.services.permission import UnmarkedTestError
from tests.services.processes import java, serving
from tests.services.spark import spark_session

SHARED = """
import pytest
from tests.services.permission import need

@pytest.fixture(scope="session")
def server():
    need("services")
    return "started"

@pytest.fixture
def lake(request):
    return request.getfixturevalue("server")

def test_first(server):
    pass

def test_first_by_another(lake):
    pass

@pytest.mark.jvm
def test_of_another_marker(lake):
    pass

@pytest.mark.services
def test_marked(lake):
    assert lake == "started"

def test_later(server):
    pass

def test_later_by_another(lake):
    pass
"""


def test_a_server_does_not_start_in_a_test_without_its_marker(tmp_path: Path) -> None:
    with (
        pytest.raises(UnmarkedTestError, match=r"its_marker uses a real server: mark it with pytest\.mark\.services"),
        serving(["true"], lambda: True, tmp_path / "log"),
    ):
        pytest.fail("it started")
    assert not (tmp_path / "log").exists()


@pytest.mark.services
def test_spark_does_not_start_in_a_test_that_is_marked_for_servers(tmp_path: Path) -> None:
    with pytest.raises(UnmarkedTestError, match=r"uses Spark or another JVM: mark it with pytest\.mark\.jvm"):
        spark_session(tmp_path, [])


def test_no_jvm_starts_in_a_test_without_a_marker() -> None:
    done = subprocess.run([java(), "-version"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "TheTestThatStartsThisIsMarkedNeitherJvmNorServices" in done.stderr


@pytest.mark.jvm
def test_a_jvm_starts_in_a_test_that_is_marked_for_one() -> None:
    subprocess.run([java(), "-version"], capture_output=True, check=True)


@pytest.mark.services
def test_a_jvm_starts_in_a_test_that_is_marked_for_servers() -> None:
    subprocess.run([java(), "-version"], capture_output=True, check=True)


def test_tests_that_share_what_a_fixture_started_need_its_marker(tmp_path: Path) -> None:
    """A refusal is not kept: the next test that is marked starts it."""
    (tmp_path / "test_shared.py").write_text(SHARED)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    jvm\n    services\n")
    options = ["-c", str(tmp_path / "pytest.ini"), "--rootdir", str(tmp_path), "-p", "tests.conftest", "-n", "0", "-rA"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path / "test_shared.py")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    outcomes = re.findall(r"^(ERROR|PASSED) .*::(\w+)", done.stdout, re.MULTILINE)
    refused = ("first", "first_by_another", "of_another_marker", "later", "later_by_another")
    assert {name for outcome, name in outcomes if outcome == "ERROR"} == {f"test_{name}" for name in refused}, (
        done.stdout
    )
    assert ("PASSED", "test_marked") in outcomes
    for name in refused:
        assert re.search(rf"UnmarkedTestError: \S+::test_{name} uses a real server", done.stdout), done.stdout
