"""Prints the part of requirements/lock.txt that an image needs: `runtime_lock.py [NAME...]`.

The lock file holds everything, tools for development too. Each of its packages names in `# via` what requires it; what
can be reached from the files of `INSTALLED` (or from the given names) is printed, hashes and all, for `pip install`.
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
INSTALLED = ("runtime", "dagster", "ui", "spark", "s3", "gcs", "adls", "sql")
"""Files of requirements that an image needs: the package's own, and those of its extras."""
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==", re.MULTILINE)


def entries(lock: str) -> dict[str, str]:
    """Package -> its lines: pin, hashes, what requires it."""
    starts = list(_PIN.finditer(lock))
    ends = [start.start() for start in starts[1:]] + [len(lock)]
    return {start[1]: lock[start.start() : end] for start, end in zip(starts, ends, strict=True)}


def required_by(entry: str) -> set[str]:
    """Those named under `# via`, on its line or on the lines below it."""
    comments = [line.strip(" #") for line in entry.splitlines() if line.lstrip().startswith("#")]
    return {comment.removeprefix("via").strip() for comment in comments} - {""}


def needed(packages: dict[str, str], roots: Iterable[str]) -> list[str]:
    """Packages reached from the roots, in the order of the lock."""
    reached = set(roots)
    size = -1
    while len(reached) != size:
        size = len(reached)
        reached |= {name for name, entry in packages.items() if required_by(entry) & reached}
    return [name for name in packages if name in reached]


def main() -> None:
    packages = entries((REQUIREMENTS / "lock.txt").read_text(encoding="utf-8"))
    chosen = needed(packages, sys.argv[1:] or [f"-r requirements/{name}.in" for name in INSTALLED])
    sys.stdout.write("".join(packages[name] for name in chosen))


if __name__ == "__main__":
    main()
