"""What the tests of names and of imports read in our Python files: gathered in one walk through each, and kept.

The trees are not: all together take 200 MB, and each further walk takes half a second.
"""

import ast
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any


@dataclass
class SourceFacts:
    """What one file says."""

    text: str
    """Source"""
    description: str = ""
    """Docstring of the module"""
    classes: list[tuple[int, str]] = field(default_factory=list)
    """Line and name of each class"""
    attribute_texts: list[tuple[int, str]] = field(default_factory=list)
    """Line and text of each string that describes the attribute or constant above it"""
    imports: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """Each import anywhere: a module, and the names that are taken from it"""
    constants: list[tuple[str, ast.expr]] = field(default_factory=list)
    """Name and value of each assignment in the body of the module"""
    texts: list[str] = field(default_factory=list)
    """Values of all strings; those of an f-string by its parts"""


@cache
def facts(path: Path) -> SourceFacts:
    """What a Python file says."""
    text = path.read_text(encoding="utf-8")
    gc.disable()  # two thirds of the time, as nothing of a tree is garbage
    try:
        return _gathered(text)
    finally:
        gc.enable()


def _gathered(text: str) -> SourceFacts:
    tree = ast.parse(text)
    out = SourceFacts(text, ast.get_docstring(tree) or "")
    for node in ast.walk(tree):
        if record := _RECORDS.get(node.__class__):
            record(node, out)
    out.attribute_texts += _texts_of_attributes(tree.body)
    out.constants = list(_constants(tree))
    return out


def _text(node: ast.Constant, out: SourceFacts) -> None:
    if isinstance(node.value, str):
        out.texts.append(node.value)


def _class(node: ast.ClassDef, out: SourceFacts) -> None:
    out.classes.append((node.lineno, node.name))
    out.attribute_texts += _texts_of_attributes(node.body)


def _import(node: ast.Import, out: SourceFacts) -> None:
    out.imports += [(alias.name, ()) for alias in node.names]


def _import_from(node: ast.ImportFrom, out: SourceFacts) -> None:
    out.imports.append((str(node.module), tuple(alias.name for alias in node.names)))


_RECORDS: dict[type[ast.AST], Callable[[Any, SourceFacts], None]] = {
    ast.Constant: _text,
    ast.ClassDef: _class,
    ast.Import: _import,
    ast.ImportFrom: _import_from,
}


def _texts_of_attributes(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    for before, text in pairwise(body):
        if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(text, ast.Expr):
            value = text.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield text.lineno, value.value


def _constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if value is not None and isinstance(target, ast.Name):
                yield target.id, value
