"""Both ends of the version ranges: what `make ranges` installs is what the requirements promise."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from tests.repository import REPOSITORY

REQUIREMENTS = REPOSITORY / "requirements"
PINNED_BY_DAGSTER = {"dagster-graphql", "dagster-postgres", "dagster-pyspark", "dagster-webserver"}
"""Packages of which Dagster names one release"""


def requirements(name: str) -> list[Requirement]:
    lines = (line.partition("#")[0].strip() for line in (REQUIREMENTS / f"{name}.in").read_text("utf-8").splitlines())
    return [Requirement(line) for line in lines if line]


def bound(requirement: Requirement, operator: str) -> str | None:
    """The version of the requirement's one specifier with this operator."""
    (*_, version) = [None, *(one.version for one in requirement.specifier if one.operator == operator)]
    return version


def test_every_requirement_of_every_extra_has_both_bounds() -> None:
    """Without a lower one a resolver goes back for years, without an upper one forward into what nobody has tried."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    dynamic = project["tool"]["setuptools"]["dynamic"]
    files = [*dynamic["dependencies"]["file"]]
    files += [file for extra in dynamic["optional-dependencies"].values() for file in extra["file"]]
    assert len(files) > 5
    for file in files:
        for one in requirements(Path(file).stem):
            assert bound(one, "==") or (bound(one, ">=") and bound(one, "<")), f"{file}: {one}"
    assert [one for one in map(Requirement, project["build-system"]["requires"]) if not bound(one, "<")] == []


def test_what_a_project_with_dagster_installs_names_no_single_release_of_it() -> None:
    assert {one.name for one in requirements("dagster")} & PINNED_BY_DAGSTER == set()


def test_the_lowest_environment_has_the_lower_end_of_each_range() -> None:
    lowest = {one.name: bound(one, "==") for one in requirements("lowest")}
    ranges = [
        one
        for name in ("runtime", "dagster", "spark", "s3", "gcs", "adls", "sql", "text", "langchain", "mcp")
        for one in requirements(name)
    ]
    promised = {one.name: bound(one, ">=") for one in ranges if one.name not in PINNED_BY_DAGSTER}
    assert promised == lowest
    locked = (REQUIREMENTS / "lowest.txt").read_text(encoding="utf-8")
    assert set(re.findall(r"^([a-z0-9-]+)(?:\[[^]]+\])?==(\S+)", locked, re.MULTILINE)) >= set(lowest.items())
