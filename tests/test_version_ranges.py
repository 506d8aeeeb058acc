"""Both ends of the version ranges: what `make ranges` installs is what the requirements promise."""

import re

from packaging.requirements import Requirement

from tests.repository import REPOSITORY

REQUIREMENTS = REPOSITORY / "requirements"
PINNED_BY_DAGSTER = {"dagster-graphql", "dagster-postgres", "dagster-pyspark", "dagster-webserver"}
"""Packages of which Dagster names one release"""


def requirements(name: str) -> list[Requirement]:
    lines = (REQUIREMENTS / f"{name}.in").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def bound(requirement: Requirement, operator: str) -> str | None:
    """The version of the requirement's one specifier with this operator."""
    (*_, version) = [None, *(one.version for one in requirement.specifier if one.operator == operator)]
    return version


def test_the_lowest_environment_has_the_lower_end_of_each_range() -> None:
    lowest = {one.name: bound(one, "==") for one in requirements("lowest")}
    ranges = [one for name in ("runtime", "dagster", "spark", "s3", "gcs", "adls", "sql") for one in requirements(name)]
    promised = {one.name: bound(one, ">=") for one in ranges if one.name not in PINNED_BY_DAGSTER}
    assert promised == lowest
    locked = (REQUIREMENTS / "lowest.txt").read_text(encoding="utf-8")
    assert set(re.findall(r"^([a-z0-9-]+)(?:\[[^]]+\])?==(\S+)", locked, re.MULTILINE)) >= set(lowest.items())
