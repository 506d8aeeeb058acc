"""The files of this repository, for the tests that hold its rules."""

import ast
import gc
import shutil
import subprocess
from collections.abc import Iterator
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


def tracked() -> Iterator[Path]:
    """Files that git has, or would take."""
    if not (REPOSITORY / ".git").exists() or not shutil.which("git"):
        pytest.skip("only git knows what is tracked: install git, and run this in a clone")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (REPOSITORY / name).is_file():
            yield REPOSITORY / name


def modules() -> list[Path]:
    """Python files that are installed."""
    return [path for package in (*PACKAGES, "icepuffin") for path in sorted((REPOSITORY / package).rglob("*.py"))]


def scripts() -> list[Path]:
    """Python files outside of the packages."""
    folders = ("benchmarks", "deploy", "docs", "examples", "tests")
    return [path for folder in folders for path in sorted((REPOSITORY / folder).rglob("*.py"))]


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """The syntax tree of a Python file, as `ast.walk` orders it. All files take 200 MB: clear the cache after use."""
    gc.disable()  # two thirds of the time, as nothing of a tree is garbage
    try:
        return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    finally:
        gc.enable()


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
