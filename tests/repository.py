"""The files of this repository, for the tests that hold its rules."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("orchestration", "assets", "ops", "puffin", "ann_kernels")
DOCUMENTS = sorted(
    path.relative_to(REPOSITORY).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "deploy/*.md", "examples/**/*.md")
    for path in REPOSITORY.glob(pattern)
)


@cache
def tracked() -> tuple[Path, ...]:
    """Files that git has, or would take."""
    if not (REPOSITORY / ".git").exists() or not shutil.which("git"):
        pytest.skip("only git knows what is tracked: install git, and run this in a clone")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
    )
    paths = (REPOSITORY / name for name in listed.stdout.decode().split("\0") if name)
    return tuple(path for path in paths if path.is_file())


@cache
def modules() -> tuple[Path, ...]:
    """Python files that are installed."""
    return _python_files(*PACKAGES, "icepuffin")


@cache
def scripts() -> tuple[Path, ...]:
    """Python files outside of the packages."""
    return _python_files("benchmarks", "deploy", "docs", "examples", "tests")


def _python_files(*folders: str) -> tuple[Path, ...]:
    return tuple(path for folder in folders for path in sorted((REPOSITORY / folder).rglob("*.py")))


def name_of(path: Path) -> str:
    """A file as a reader names it, from the root of the repository."""
    return str(path.relative_to(REPOSITORY))


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
