"""What icepuffin uses of a `DagsterInstance` is public in Dagster, or stands in a table of docs/dagster.md."""

import ast
import inspect
import re
from collections.abc import Iterator

from dagster import DagsterInstance
from dagster._annotations import is_public

from tests.repository import REPOSITORY, modules

TABLE = re.compile(r"^\| `(\w+)` \| \S.+ \|$", re.MULTILINE)


def attributes_of_instances(source: str) -> Iterator[str]:
    """Attributes of everything that is called an instance, and of the class."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and re.search(
            r"(?:^|\.|_)(?:instance|DagsterInstance)$", ast.unparse(node.value)
        ):
            yield node.attr


def is_marked_public(name: str) -> bool:
    attribute = inspect.getattr_static(DagsterInstance, name)
    return is_public(getattr(attribute, "__func__", attribute))


def test_what_is_not_public_of_an_instance_is_listed_with_its_reason() -> None:
    names = {name for path in modules() for name in attributes_of_instances(path.read_text(encoding="utf-8"))}
    assert {"get_run_records", "fetch_materializations"} <= names
    page = (REPOSITORY / "docs" / "dagster.md").read_text(encoding="utf-8").partition("\n## What is not public")[2]
    assert TABLE.findall(page) == sorted(
        name for name in names if hasattr(DagsterInstance, name) and not is_marked_public(name)
    )


def test_a_use_of_an_instance_is_seen_by_any_of_its_names() -> None:
    source = "context.instance.a; plan_context.instance.b(); instance.c.d; dg.DagsterInstance.e; other.f"
    assert set(attributes_of_instances(source)) == {"a", "b", "c", "e"}
