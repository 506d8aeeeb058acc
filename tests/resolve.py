"""What resolvers make of the extras: `make resolve`. Prints, per case, the seconds and what was chosen.

Each extra is resolved alone and beside the newest `create-dagster`, on the newest index: by uv, and by pip where it has
packages of Dagster. uv does it once more while each of these, in turn, is held back by a release: the packages of one
release arrive one after the other. Ends with 1 where a case has no solution, takes more than a minute, or goes back to
an old release of Dagster.
"""

import json
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator

from tests.repository import REPOSITORY

_MAX_SECONDS = 60
_HELD_BACK = ("dagster", "dagster-webserver", "dagster-graphql", "dagster-postgres", "dagster-pyspark")
_OF_DAGSTER = ("dagster", "ui", "spark")
_BESIDE = "create-dagster"
_OLDEST = {"dagster": "1.13", "dagster-postgres": "0.29", "dagster-webserver": "1.13", "dagster-pyspark": "0.29"}
"""First parts of the versions that may be chosen"""


def with_uv(requirements: list[str]) -> dict[str, str]:
    """Versions by name. Raises CalledProcessError where there is no solution."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "-q", "--no-header", "--no-annotate", "--upgrade", "-"]
    done = subprocess.run(command, input="\n".join(requirements), capture_output=True, text=True, check=True)
    return dict(re.findall(r"^([\w.-]+)(?:\[.*\])?==(\S+)", done.stdout, re.MULTILINE))


def with_pip(requirements: list[str]) -> dict[str, str]:
    """The same by pip."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--report", "-"]
    done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=True)
    installed = json.loads(done.stdout)["install"]
    return {one["metadata"]["name"].lower(): one["metadata"]["version"] for one in installed}


def extras() -> dict[str, list[str]]:
    """Requirements of each extra, those of the package itself included; "" has these alone."""
    dynamic = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
        "dynamic"
    ]
    own = _lines(dynamic["dependencies"]["file"])
    optional = dynamic["optional-dependencies"].items()
    return {"": own} | {name: [*own, *_lines(extra["file"])] for name, extra in optional if name != "dev"}


def _lines(files: list[str]) -> list[str]:
    lines = (line for file in files for line in (REPOSITORY / file).read_text(encoding="utf-8").splitlines())
    return [text for line in lines if (text := line.partition("#")[0].strip())]


def cases() -> Iterator[tuple[str, dict[str, str] | str, float]]:
    """(name of the case, versions or what went wrong, seconds)."""
    requirements = extras()
    for name, own in requirements.items():
        for more in ([], [_BESIDE]):
            what = " ".join([f"icepuffin[{name}]" if name else "icepuffin", *more])
            yield f"uv  {what}", *_timed(with_uv, [*own, *more])
            if name in _OF_DAGSTER:
                yield f"pip {what}", *_timed(with_pip, [*own, *more])
    every = [line for name in _OF_DAGSTER for line in requirements[name]]
    newest = with_uv(every)
    for package in _HELD_BACK:
        held = f"{package}<{newest[package]}"
        yield f"uv  icepuffin[{','.join(_OF_DAGSTER)}], {held}", *_timed(with_uv, [*every, held])


def _timed(
    resolve: Callable[[list[str]], dict[str, str]], requirements: list[str]
) -> tuple[dict[str, str] | str, float]:
    begun = time.monotonic()
    try:
        chosen: dict[str, str] | str = resolve(requirements)
    except subprocess.CalledProcessError as error:
        chosen = error.stderr.strip()[-600:]
    return chosen, time.monotonic() - begun


def fault(chosen: dict[str, str] | str, seconds: float) -> str:
    """What is wrong with a case; empty where nothing is."""
    if isinstance(chosen, str):
        return f"no solution: {chosen}"
    if seconds > _MAX_SECONDS:
        return f"took over {_MAX_SECONDS} s"
    old = [
        f"{name} {chosen[name]}" for name, oldest in _OLDEST.items() if not chosen.get(name, oldest).startswith(oldest)
    ]
    return f"chose {', '.join(old)}" if old else ""


def main() -> int:
    faults = 0
    for name, chosen, seconds in cases():
        wrong = fault(chosen, seconds)
        faults += bool(wrong)
        found = "" if isinstance(chosen, str) else ", ".join(f"{key} {chosen[key]}" for key in _OLDEST if key in chosen)
        sys.stdout.write(f"{seconds:5.1f} s  {name}: {wrong or found or 'resolved'}\n")
        sys.stdout.flush()
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
