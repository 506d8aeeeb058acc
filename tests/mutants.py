"""Mutation score of a module, or of a folder's: `make mutants MODULE=ops/catalog SAMPLE=100`, with TESTS and SEED, too.

Cosmic Ray changes one operator, number or branch at a time, in a copy of the tree. The tests of the module, or those of
the folder's name under `tests`, run in forks of a process that has imported what they use, up to the first that fails.
A mutant that no test notices survives; each is printed as a diff. Exits with 1 where any survived.

Left alone is what changes no result: operators of `|`, nearly all of which stand in annotations, where they fail at
import; flags of `@dataclass`; `strict=True` between sequences of one length; the star before keywords; `is` that
becomes `==`, as what we compare by identity is a member of an enumeration, or None.

With SHORT=1 only tests that every commit runs are run, none of the long ones (`tests/durations.json`).
"""

import argparse
import difflib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec

REPOSITORY = Path(__file__).parents[1]
PACKAGES = ("ann_kernels", "assets", "ops", "orchestration", "puffin")
_FIRST_LIMIT = 1_800.0
"""Seconds for the run without a mutant; it sets the limit of the others"""


class TestRuns:
    """Runs of the tests, each in a fork of one process: see `tests/warm_process.py`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, limit: float) -> dict[str, Any]:
        """Run the tests on the module as it is now. `limit`: seconds, after which they count as failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(limit, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit("the process of the tests has ended; tests.log in the copy shows why")
        return dict(json.loads(answer))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", type=Path, help="a source file or a folder, as ops/binding/bindings.py")
    parser.add_argument("--tests", default="", help="test files or folders [default: those of the module]")
    parser.add_argument("--sample", type=int, default=0, help="how many mutants, drawn at random [default: all]")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="seed of the draw")
    parser.add_argument("--short", action="store_true", help="leave out long tests, of which a commit runs some")
    parser.add_argument("--python", default=str(REPOSITORY / ".venv" / "bin" / "python"), help="runs the tests")
    arguments = parser.parse_args()
    modules = modules_of(arguments.module)
    if not modules:
        parser.error(f"{arguments.module} has no module in {REPOSITORY}")
    tests = arguments.tests.split() or own_tests(arguments.module)
    if not tests:
        parser.error(f"{arguments.module} has no tests of its own: name tests with --tests")
    print(f"{arguments.module}, seed {arguments.seed}, tests: {' '.join(tests)}")
    copy = copied_tree(REPOSITORY / ".cache" / "mutants" / arguments.module.with_suffix(""))
    mutants = draw(copy, modules, arguments.sample, arguments.seed)
    with warm_tests(arguments.python, copy, modules, tests, is_short=arguments.short) as runs:
        return measure(runs, copy, arguments.module, mutants)


def modules_of(path: Path) -> list[Path]:
    """The module, or the modules of a folder but for what only names others."""
    files = [REPOSITORY / path] if path.suffix else sorted((REPOSITORY / path).rglob("*.py"))
    return [file.relative_to(REPOSITORY) for file in files if file.is_file() and file.name != "__init__.py"]


def dotted(module: Path) -> str:
    return ".".join(("icepuffin", *module.with_suffix("").parts))


def own_tests(module: Path) -> list[str]:
    """Test files that import the module by its name; of a folder, those of its name."""
    if not module.suffix:
        return [str(folder) for folder in [Path("tests") / module] if (REPOSITORY / folder).is_dir()]
    package, _, name = dotted(module).rpartition(".")
    imports = re.compile(
        rf"^\s*(from {re.escape(dotted(module))} import|import {re.escape(dotted(module))}\b"
        rf"|from {re.escape(package)} import .*\b{name}\b)",
        re.MULTILINE,
    )
    files = sorted((REPOSITORY / "tests").rglob("test_*.py"))
    return [str(file.relative_to(REPOSITORY)) for file in files if imports.search(file.read_text())]


def copied_tree(folder: Path) -> Path:
    """A copy of the sources and tests, which are imported from there: nobody else's tree is changed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in (*PACKAGES, "tests", "docs", "examples", "deploy"):
        shutil.copytree(REPOSITORY / name, folder / name)
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy2(REPOSITORY / name, folder / name)
    shutil.copytree(REPOSITORY / "icepuffin", folder / "icepuffin", symlinks=True)
    return folder


@contextmanager
def warm_tests(python: str, copy: Path, modules: list[Path], tests: list[str], *, is_short: bool) -> Iterator[TestRuns]:
    """The tests of the copy. Ends the process if they import another module than the copy's."""
    module = modules[0]
    # no bytecode: Python compares a file's second and size, and two changes may have both
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    if is_short:
        environment["ICEPUFFIN_SHORT_TESTS"] = "1"
    # a package may have a function of its module's name, which `import ... as` would give
    imported = [python, "-c", f"import importlib; print(importlib.import_module({dotted(module)!r}).__file__)"]
    where = subprocess.run(imported, cwd=copy, env=environment, capture_output=True, text=True, check=True).stdout
    if not Path(where.strip()).resolve().is_relative_to(copy):
        sys.exit(f"{module} is imported from {where.strip()}, and not from the copy in {copy}")
    options = ["--basetemp", str(copy / "temporary"), "-m", "not jvm and not services"]
    command = [python, "-m", "tests.warm_process", ",".join(map(dotted, modules)), *options, *tests]
    with subprocess.Popen(
        command, cwd=copy, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield TestRuns(process)


def draw(copy: Path, modules: list[Path], sample: int, seed: int) -> list[MutationSpec]:
    """All mutants of the modules, or some at random, by their places."""
    with use_db(":memory:") as database:
        init([copy / module for module in modules], database, {})
        mutants = [item.mutations[0] for item in database.work_items]
    mutants.sort(key=lambda mutant: (mutant.module_path, mutant.start_pos, mutant.operator_name))
    lines = {str(copy / module): (copy / module).read_text().splitlines() for module in modules}
    useful = [mutant for mutant in mutants if changes_results(mutant, lines[str(mutant.module_path)])]
    return useful if not sample else random.Random(seed).sample(useful, min(sample, len(useful)))


def changes_results(mutant: MutationSpec, lines: list[str]) -> bool:
    """Whether a test can notice the mutant, by its kind. `lines`: those of its module."""
    names = mutant.operator_name.rpartition("/")[2].split("_")
    (first, start), (last, end) = mutant.start_pos, mutant.end_pos
    line = lines[first - 1]
    return not (
        "BitOr" in names[:2]
        or names[1:] in (["Is", "Eq"], ["IsNot", "NotEq"])
        or line.startswith("@dataclass")
        or line[:start].endswith("strict=")
        or (first == last and line[start:end] == "*" and line[end : end + 1] == ",")
    )


def measure(runs: TestRuns, copy: Path, measured: Path, mutants: list[MutationSpec]) -> int:
    """Print the survivors and the score. Returns the exit code."""
    baseline = runs.run(_FIRST_LIMIT)
    if not baseline["passed"]:
        sys.exit(f"the tests fail without a mutant:\n{(copy / 'tests.log').read_text()[-4_000:]}")
    print(f"the tests take {baseline['seconds']:.1f} s; {len(mutants)} mutants", flush=True)
    tried = survivors = ended = 0
    for mutant in sorted(mutants, key=lambda mutant: (mutant.module_path, mutant.start_pos)):
        file = Path(mutant.module_path)
        source = file.read_text()
        changed = mutated(source, mutant)
        if changed is None:
            continue
        tried += 1
        file.write_text(changed)
        answer = runs.run(3 * baseline["seconds"] + 10)
        file.write_text(source)
        ended += "ended" in answer
        if answer["passed"]:
            survivors += 1
            name = str(file.relative_to(copy))
            diff = difflib.unified_diff(source.splitlines(), changed.splitlines(), name, name, lineterm="")
            print("\n".join(diff), f"{answer.get('tests', 'all')} tests ran", "", sep="\n", flush=True)
    if ended:
        print(f"{ended} crashed the tests or took more than three times as long")
    noticed = tried - survivors
    print(f"{measured}: {noticed} of {tried} mutants were noticed ({noticed / max(1, tried):.1%})")
    return bool(survivors)


def mutated(source: str, mutant: MutationSpec) -> str | None:
    """The source with a change; None where Cosmic Ray's own exception, which it puts into `except`, makes no Python."""
    operator = get_operator(mutant.operator_name)(**mutant.operator_args)
    try:
        changed = mutate_code(source, operator, mutant.occurrence)
        compile(changed, "mutant", "exec")
    except (AttributeError, SyntaxError):  # at an exception that is named by its module; behind `except f` of `f():`
        return None
    return str(changed)


if __name__ == "__main__":
    sys.exit(main())
