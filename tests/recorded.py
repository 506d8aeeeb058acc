"""Recorded pages: all that somebody looks at, whole, beside a text that is committed in `tests/recorded`.

`ICEPUFFIN_RECORD=1` records anew what a test run compares. States of which pages are made have fixed ids and times;
what changes from run to run all the same has a stable name, by `_CHANGING`, `new_ids` and `names`, and nowhere else.
"""

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.repository import REPOSITORY

FOLDER = REPOSITORY / "tests" / "recorded"
VARIABLE = "ICEPUFFIN_RECORD"
_CHANGING = (
    (re.compile(r"icepuffin version \d+(\.\w+)*"), "icepuffin version RELEASE"),
    (re.compile(r"(?<![\w.])\d[\d,]*(\.\d+)?(?= ms\b)"), "SOME"),
    (re.compile(r"(?<=\.\d{6})\d+"), ""),  # processors add in another order
    (re.compile(r"(?<=bytes_written: 66)\d\d|(?<=bytes \(Int\): 66)\d\d"), "xx"),  # with compressed names of files
)
_ID = re.compile(r"\b\d{17,19}\b|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
_LINE_ENDS = re.compile(r"(?<=>)(?=<[^/])|(?<=z)(?=M)")
"""Places where a line of HTML may end: between elements, and between the shapes of a path"""


_SHORT = 60
"""Letters of a sequence of numbers and texts that is one line, at most"""


def recorded(name: str, text: str, names: Mapping[str, str] | None = None) -> None:
    """Compare a text with the recorded one; a failure shows the lines that differ. `names`: what to call this run's
    own texts, such as its folder.
    """
    for own, stable in (names or {}).items():
        text = text.replace(own, stable)
    for changing, stable in _CHANGING:
        text = changing.sub(stable, text)
    now = [line.rstrip() for line in text.rstrip().split("\n")]
    path = FOLDER / name
    if os.environ.get(VARIABLE):
        FOLDER.mkdir(exist_ok=True)
        path.write_text("\n".join(now) + "\n", encoding="utf-8")
    before = path.read_text(encoding="utf-8").rstrip().split("\n") if path.exists() else []
    if now != before:
        changed = difflib.unified_diff(before, now, str(path.relative_to(REPOSITORY)), "now", n=2, lineterm="")
        pytest.fail("\n".join((*changed, f"If all of this is meant, {VARIABLE}=1 records it.")), pytrace=False)


def new_ids(text: str, known: str) -> dict[str, str]:
    """Names of the ids of snapshots, builds and files that are not among those of a fixed state, in order."""
    ids = dict.fromkeys(found for found in _ID.findall(text) if found not in known)
    return {found: f"NEW-{number}" for number, found in enumerate(ids, 1)}


def by_element(page: str) -> str:
    """HTML with a line for each element, and for each shape of a path."""
    return _LINE_ENDS.sub("\n", page)


def by_part(value: Any, indent: str = "") -> str:
    """A line for each entry of nested mappings, sequences and dataclasses."""
    if hasattr(value, "__dataclass_fields__"):
        value = {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping) and value:
        parts = [(f"{key}:", part) for key, part in value.items()]
    elif isinstance(value, list | tuple) and (
        len(repr(value)) > _SHORT or any(not isinstance(part, str | float | int) for part in value)
    ):
        parts = [("-", part) for part in value]
    else:
        return f" {value}" if isinstance(value, str) and "\n" not in value else f" {value!r}"
    return "".join(f"\n{indent}{name}{by_part(part, indent + '  ')}" for name, part in parts)


def file_names() -> tuple[Path, ...]:
    """All recorded files."""
    return tuple(sorted(FOLDER.iterdir()))
