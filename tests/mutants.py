"""Mutation score of one module: `make mutants MODULE=ops/confidence.py`, with TESTS, SAMPLE and SEED as below.

Cosmic Ray changes one operator, number or branch at a time, in a copy of the tree, and runs the module's own tests. A
mutant that no test notices survives; each is printed as a diff. Exits with 1 where any survived.

Operators of `|` are left alone: nearly all of them stand in annotations, where they fail at import.
"""

import argparse
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkResult

REPOSITORY = Path(__file__).parents[1]
PACKAGES = ("ann_kernels", "assets", "ops", "orchestration", "puffin")
_SKIPPED = WorkResult(worker_outcome=WorkerOutcome.SKIPPED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", type=Path, help="a source file, as ops/catalog/bindings.py")
    parser.add_argument("--tests", default="", help="test files or folders [default: all that import the module]")
    parser.add_argument("--sample", type=int, default=0, help="how many mutants, drawn at random [default: all]")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="seed of the draw")
    parser.add_argument("--python", default=str(REPOSITORY / ".venv" / "bin" / "python"), help="runs the tests")
    arguments = parser.parse_args()
    if not (REPOSITORY / arguments.module).is_file():
        parser.error(f"{arguments.module} is no file of {REPOSITORY}")
    tests = arguments.tests.split() or own_tests(arguments.module)
    if not tests:
        parser.error(f"no test imports {dotted(arguments.module)}: name tests with --tests")
    print(f"{arguments.module}, seed {arguments.seed}, tests: {' '.join(tests)}")
    copy = copied_tree(REPOSITORY / ".cache" / "mutants" / arguments.module.with_suffix(""))
    command = [arguments.python, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    session = configured(copy, arguments.module, [*command, "-m", "not jvm and not services"])
    with use_db(str(session)) as database:
        drawn = draw(database, arguments.sample, arguments.seed)
    print(f"{drawn} mutants")
    cosmic_ray(copy, "exec", "mutants.toml", session.name)
    with use_db(str(session), WorkDB.Mode.open) as database:
        return report(database, arguments.module)


def dotted(module: Path) -> str:
    return ".".join(("icepuffin", *module.with_suffix("").parts))


def own_tests(module: Path) -> list[str]:
    """Test files that import the module by its name."""
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
    namespace = folder / "namespace" / "icepuffin"
    shutil.copytree(REPOSITORY / "icepuffin", namespace)  # beside the tests it would hide the packages
    for package in PACKAGES:
        (namespace / package).symlink_to(folder / package)
    return folder


def configured(copy: Path, module: Path, command: list[str]) -> Path:
    """A session with all mutants of the module. The tests have passed once without a change; it sets the time limit."""
    imported = [command[0], "-c", f"import {dotted(module)} as module; print(module.__file__)"]
    where = subprocess.run(imported, cwd=copy, env=environment(copy), capture_output=True, text=True, check=True).stdout
    if not Path(where.strip()).resolve().is_relative_to(copy):
        sys.exit(f"{module} is imported from {where.strip()}, and not from the copy in {copy}")
    begun = time.monotonic()
    baseline = subprocess.run(command, cwd=copy, env=environment(copy), capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begun
    if baseline.returncode:
        sys.exit(f"the tests fail without a mutant:\n{baseline.stdout[-3_000:]}{baseline.stderr[-1_000:]}")
    print(f"the tests take {seconds:.1f} s")
    (copy / "mutants.toml").write_text(
        f"""[cosmic-ray]
module-path = "{module}"
timeout = {3 * seconds + 30:.1f}
excluded-modules = []
test-command = {shlex.join(command)!r}
[cosmic-ray.distributor]
name = "local"
"""
    )
    cosmic_ray(copy, "init", "mutants.toml", "session.sqlite")
    return copy / "session.sqlite"


def environment(copy: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(copy / "namespace")}


def cosmic_ray(copy: Path, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "cosmic_ray.cli", *words], cwd=copy, env=environment(copy), check=True)


def draw(database: WorkDB, sample: int, seed: int) -> int:
    """Skip all mutants but a sample. Returns its size."""
    items = sorted(database.pending_work_items, key=lambda item: item.job_id)
    items.sort(key=lambda item: (item.mutations[0].start_pos, item.mutations[0].operator_name))
    useful = [item for item in items if "BitOr" not in item.mutations[0].operator_name.split("_")[:2]]
    kept = useful if not sample else random.Random(seed).sample(useful, min(sample, len(useful)))
    names = {item.job_id for item in kept}
    for item in items:
        if item.job_id not in names:
            database.set_result(item.job_id, _SKIPPED)
    return len(kept)


def report(database: WorkDB, module: Path) -> int:
    """Print the survivors and the score. Returns the exit code."""
    results = [result for _, result in database.results if result.worker_outcome is not WorkerOutcome.SKIPPED]
    survivors = [result for result in results if result.test_outcome is TestOutcome.SURVIVED]
    for survivor in survivors:
        print(survivor.diff)
    killed = len(results) - len(survivors)
    print(f"{module}: {killed} of {len(results)} mutants were noticed ({killed / max(1, len(results)):.1%})")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
