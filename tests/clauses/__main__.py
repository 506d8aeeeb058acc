"""`make clauses`: each edit of ALL_EDITS is made in turn, and its test is run. Exits with 1 where one notices nothing.

Words select: those edits alone whose clause or test has one of them.
"""

import os
import subprocess
import sys

from tests.clauses.broken_module import NUMBER
from tests.clauses.edits import Edit
from tests.clauses.guards import ALL_EDITS
from tests.repository import REPOSITORY

_FAILED = 1
"""What pytest exits with where a test has failed"""


def run(number: int, edit: Edit) -> bool:
    """Whether the test notices the edit."""
    (module,) = {path for path in (REPOSITORY / "tests").rglob("test_*.py") if f"def {edit.test}(" in path.read_text()}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    command += ["-p", "tests.clauses.broken_module", str(module), "-k", edit.test]
    environment = {**os.environ, NUMBER: str(number)}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, _FAILED):
        sys.exit(f"{edit.test} could not be run:\n{done.stdout}{done.stderr}")
    return done.returncode == _FAILED


def main() -> int:
    words = sys.argv[1:]
    chosen = [
        (number, edit)
        for number, edit in enumerate(ALL_EDITS)
        if not words or any(word in f"{edit.clause} {edit.test}" for word in words)
    ]
    if not chosen:
        sys.exit(f"no clause and no test has one of these words: {' '.join(words)}")
    unnoticed = 0
    for number, edit in chosen:
        noticed = run(number, edit)
        unnoticed += not noticed
        print(f"{'noticed' if noticed else 'NOT NOTICED'}: {edit.clause}: {edit.changes}, by {edit.test}", flush=True)
    print(f"{len(chosen) - unnoticed} of {len(chosen)} edits were noticed")
    return bool(unnoticed)


if __name__ == "__main__":
    sys.exit(main())
