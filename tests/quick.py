"""The tests of what one has changed, within 90 seconds: `make quick`, or `python -m tests.quick [BASE]`.

They are the test files that have changed, those that import a module that has changed, and then those that import a
module that imports one. `tests/durations.json` says how long each takes; what exceeds the budget is named and left out,
and so are files that start servers.
"""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.durations import Cost, recorded
from tests.repository import PACKAGES, REPOSITORY, modules, run

BUDGET = 150.0
"""Wall seconds of the chosen tests by the table, which two processes share; starting and collecting takes 15 of 90"""
RULES = ("tests/test_names.py", "tests/test_architecture.py")
"""Tests of every change"""


def module_of(path: Path) -> str:
    """The name by which a file of this repository is imported."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    parts = parts[: -1 if parts[-1] == "__init__" else None]
    return ".".join(("icepuffin", *parts) if parts[0] in PACKAGES else parts)


def imports_of(path: Path) -> set[str]:
    """What a file imports, anywhere in it: modules, and names in modules that may be modules too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def costs_of_whole_files() -> dict[str, Cost]:
    """By the table, in which a file has what one part of its long tests took; here all are run."""
    costs, long = recorded(), defaultdict[str, float](float)
    for name, cost in costs.items():
        file, _, test = name.partition("::")
        long[file] += cost.wall if test else 0
    return {name: replace(cost, wall=max(cost.wall, long[name])) for name, cost in costs.items()}


def chosen(changed: Iterable[Path]) -> list[str]:
    """Test files in the order in which they matter for files that have changed."""
    files = {path for path in changed if path.suffix == ".py"}
    names = {module_of(path) for path in files}
    tests = {path: imports_of(path) for path in (REPOSITORY / "tests").rglob("*.py")}
    shared = {module_of(path) for path in tests if not path.name.startswith("test_")} & names
    importers = {module_of(path) for path in modules() if imports_of(path) & names}
    groups: dict[str, list[Path]] = {"changed": [], "of the modules": [], "of their importers": []}
    for path, imported in sorted(tests.items()):
        if not path.name.startswith("test_"):
            continue
        if path in files:
            groups["changed"].append(path)
        elif imported & (names | shared):
            groups["of the modules"].append(path)
        elif imported & importers:
            groups["of their importers"].append(path)
    costs = costs_of_whole_files()
    name = {path: path.relative_to(REPOSITORY).as_posix() for path in tests}
    ordered = [*RULES]
    for group in groups.values():
        ordered += sorted((name[path] for path in group), key=lambda file: costs.get(file, Cost(0, 0)).wall)
    return list(dict.fromkeys(ordered))


def within_budget(files: Iterable[str], costs: dict[str, Cost]) -> tuple[list[str], list[str]]:
    """(files that are run, files that are left out), both in the given order."""
    run_now, left_out, seconds = [], [], 0.0
    for file in files:
        cost = costs.get(file, Cost(0, 0))
        if cost.servers or seconds + cost.wall > BUDGET:
            left_out.append(file)
        else:
            run_now.append(file)
            seconds += cost.wall
    return run_now, left_out


def changed_since(base: str) -> list[Path]:
    """Files that differ from a commit, deleted or moved ones too, and new ones."""
    outputs = [
        run("git", "diff", "--name-only", "--no-renames", base),
        run("git", "ls-files", "--others", "--exclude-standard"),
    ]
    for output in outputs:
        if output.returncode:
            raise SystemExit(output.stderr)
    return [REPOSITORY / line for output in outputs for line in output.stdout.splitlines()]


def _base() -> str:
    """The last commit that the remote's main has as well, or else the last commit."""
    common = run("git", "merge-base", "HEAD", "origin/main")
    return common.stdout.strip() if common.returncode == 0 else "HEAD"


def main() -> int:
    base = sys.argv[1] if len(sys.argv) > 1 else _base()
    files, left_out = within_budget(chosen(changed_since(base)), costs_of_whole_files())
    if left_out:
        sys.stdout.write(f"left out, for time or as they start servers (make test runs them): {' '.join(left_out)}\n")
    checks = [subprocess.Popen(["ruff", "check", "."]), subprocess.Popen(["ruff", "format", "--check", "."])]
    status = pytest.main(["--numprocesses", "2", "--dist", "loadfile", "-q", *files])
    return int(status) or max(check.wait() for check in checks)


if __name__ == "__main__":
    sys.exit(main())
