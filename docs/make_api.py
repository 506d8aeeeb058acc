"""Writes docs/api.md from the docstrings of `icepuffin`: `python docs/make_api.py`. A test compares the two."""

import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from griffe import Docstring, DocstringSectionKind, Parser

import icepuffin

PAGE = Path(__file__).with_name("api.md")
ORDER = (
    "open_index",
    "IndexReader",
    "SearchResult",
    "FollowingReader",
    "ArrayContains",
    "open_exact",
    "tune",
    "IndexDefinition",
    "create_index",
    "list_indexes",
    "plan",
    "refresh",
    "verify",
    "drop_index",
    "gc",
    "read_ndv",
    "read_statistics",
    "metrics",
    "write_report",
    "SqlSession",
    "knn_join",
    "register_vector_search",
    "SparkRunner",
    "build_defs",
    "IcepuffinTableComponent",
    "StorageConfig",
    "errors",
)
METHODS = {
    "IndexReader": ("search", "within", "pages", "pairs", "follow", "stats"),
    "FollowingReader": ("search", "within", "update", "close"),
    "SearchResult": ("explain", "to_pandas", "to_polars"),
    "SqlSession": ("on", "sql"),
}
HEAD = """# The interface of `icepuffin`

What `import icepuffin` offers.
Each name is imported when it is first used.
Names that lie deeper may change between releases.
`icepuffin.__version__` is the version that is installed.

Some names are there for others:

- `IndexReader`, `SearchResult` and `FollowingReader` are what functions and methods return.
  You write them in annotations.
- `SparkRunner` is the `runner` of `open_index`, for an index that tasks on Spark search.
- `build_defs` and `IcepuffinTableComponent` are for a Dagster project of your own.
  They alone import Dagster.

This page is made from the docstrings by `python docs/make_api.py`.
"""
LABELS = {
    DocstringSectionKind.parameters: "Parameters",
    DocstringSectionKind.returns: "Returns",
    DocstringSectionKind.raises: "Raises",
}


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for name in ORDER:
        value = getattr(icepuffin, name)
        lines += [f"## {name}", *_described(name, value)]
        for method in METHODS.get(name, ()):
            lines += [f"### {name}.{method}", *_described(f"{name}.{method}", getattr(value, method))]
    return "\n\n".join(line.strip("\n") for line in lines) + "\n"


def _described(name: str, value: Any) -> Iterator[str]:
    if inspect.isroutine(value):
        yield f"```python\n{_signature(name, value)}\n```"
    for section in Docstring(inspect.getdoc(value) or "", parser=Parser.numpy).parse():
        if section.kind is DocstringSectionKind.text:
            for block in section.value.split("\n\n"):
                yield block if block.startswith("    ") else _wrapped(" ".join(block.split()))
        elif section.kind is DocstringSectionKind.examples:
            yield "```python\n" + "\n".join(text for _, text in section.value) + "\n```"
        elif section.kind in LABELS:
            yield f"**{LABELS[section.kind]}**"
            described = groupby(section.value, key=lambda item: (str(item.annotation), item.description))
            yield "\n".join(_entry([*items]) for _, items in described)
    if inspect.ismodule(value):
        classes = [item for name, item in sorted(vars(value).items()) if name.endswith("Error")]
        yield "```text\n" + "\n".join(_tree(classes)) + "\n```"
        yield _wrapped("Where a class has a star, the same call raises the same again: its `retryable` is false.")
        yield "\n".join(_wrapped(f"- `{item.__name__}`: {_first_line(item)}") for item in classes)


def _tree(classes: list[type[Exception]], parent: type | None = None, indent: str = "") -> Iterator[str]:
    """The classes below `parent`, each under the nearest of its ancestors that is among them."""
    nearest = {item: next((base for base in item.__mro__[1:] if base in classes), None) for item in classes}
    for item in (item for item in classes if nearest[item] is parent):
        yield f"{indent}{item.__name__}{'' if getattr(item, 'retryable', True) else ' *'}"
        yield from _tree(classes, item, f"{indent}    ")


def _entry(elements: list[Any]) -> str:
    """One line of a list; those of one description have one line."""
    element = elements[0]
    names = [f"`{item.name}`" for item in elements if getattr(item, "name", "")]
    label = ", ".join([*names, *([] if element.annotation is None else [f"*{element.annotation}*"])])
    text = " ".join(element.description.split())
    return _wrapped(f"- {label}: {text}" if text else f"- {label}")


def _wrapped(text: str) -> str:
    """One sentence per line; those of an entry of a list stand under its text."""
    indent = "  " if text.startswith("- ") else ""
    sentences = re.split(r"(?<=[a-z0-9)\]`*\"'%][.?!]) +(?=[A-Z`*\[(\"])", text)
    return "\n".join(
        textwrap.fill(
            sentence,
            118,
            initial_indent=indent if place else "",
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for place, sentence in enumerate(sentences)
    )


def _first_line(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())


def _plain(default: Any) -> Any:
    return default.value if isinstance(default, enum.Enum) else default


def _signature(name: str, value: Any) -> str:
    parameters = [item for item in inspect.signature(value).parameters.values() if item.name not in {"self", "cls"}]
    shown = [str(item.replace(annotation=item.empty, default=_plain(item.default))) for item in parameters]
    first = next((place for place, item in enumerate(parameters) if item.kind is item.KEYWORD_ONLY), None)
    if first is not None:
        shown.insert(first, "*")
    line = f"{name}({', '.join(shown)})"
    return line if len(line) <= 100 else f"{name}(\n    " + ",\n    ".join(shown) + ",\n)"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
