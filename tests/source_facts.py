"""What the tests of names and of imports read in our Python files: gathered in one walk through each, and kept.

The trees are not: all together take 200 MB, and each further walk takes half a second.
"""

import ast
import gc
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tests.vocabulary import VAGUE_NAMES

_LITERAL = re.compile(
    r"#[^\n]*"
    r'|"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""'
    r"|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''"
    r'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
    r"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'",
    re.DOTALL,
)
_SCOPES = {
    ast.Module,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
}


class Literal(NamedTuple):
    """A comment, or a text with its quotation marks; neither has the letters before them, as in `rb""`."""

    line: int
    text: str


class Name(NamedTuple):
    """What a line names: a `class`, `function`, `variable`, `attribute`, `parameter` or `keyword`."""

    line: int
    name: str
    kind: str


class Description(NamedTuple):
    """The docstring of a class or function."""

    line: int
    name: str
    text: str


class LastingName(NamedTuple):
    """A vague name, with the first and the last line that has it in its scope."""

    first: int
    last: int
    name: str


class _Place(NamedTuple):
    """A variable or parameter in a tree, with the scopes around it, the innermost last."""

    name: str
    line: int
    scopes: tuple[ast.AST, ...]
    binds: bool
    """Whether the name gets a value there"""


@dataclass
class SourceFacts:
    """What one file says."""

    text: str
    """Source"""
    description: str = ""
    """Docstring of the module"""
    names: list[Name] = field(default_factory=list)
    descriptions: list[Description] = field(default_factory=list)
    attribute_texts: list[tuple[int, str]] = field(default_factory=list)
    """Line and text of each string that describes the attribute or constant above it"""
    vague_names: list[LastingName] = field(default_factory=list)
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


@cache
def literals(path: Path) -> tuple[Literal, ...]:
    """Comments and texts of a Python file, in their order."""
    text = path.read_text(encoding="utf-8")
    out, line, end = [], 1, 0
    for match in _LITERAL.finditer(text):
        line += text.count("\n", end, match.start())
        end = match.start()
        out.append(Literal(line, match[0]))
    return tuple(out)


def _gathered(text: str) -> SourceFacts:
    tree = ast.parse(text)
    out = SourceFacts(text, ast.get_docstring(tree) or "")
    vague: list[_Place] = []
    for node, scopes in _nodes(tree):
        if record := _RECORDS.get(node.__class__):
            record(node, out)
        if isinstance(node, ast.Name) and node.id in VAGUE_NAMES:
            vague.append(_Place(node.id, node.lineno, scopes, isinstance(node.ctx, ast.Store)))
        elif isinstance(node, ast.arg) and node.arg in VAGUE_NAMES:
            vague.append(_Place(node.arg, node.lineno, scopes, True))
    out.attribute_texts += _texts_of_attributes(tree.body)
    out.constants = list(_constants(tree))
    out.vague_names = [LastingName(place.line, _last_line(place, vague), place.name) for place in vague if place.binds]
    return out


def _variable(node: ast.Name, out: SourceFacts) -> None:
    if isinstance(node.ctx, ast.Store):
        out.names.append(Name(node.lineno, node.id, "variable"))


def _attribute(node: ast.Attribute, out: SourceFacts) -> None:
    if isinstance(node.ctx, ast.Store):
        out.names.append(Name(node.lineno, node.attr, "attribute"))


def _parameter(node: ast.arg, out: SourceFacts) -> None:
    out.names.append(Name(node.lineno, node.arg, "parameter"))


def _keyword(node: ast.keyword, out: SourceFacts) -> None:
    if node.arg:
        out.names.append(Name(node.value.lineno, node.arg, "keyword"))


def _text(node: ast.Constant, out: SourceFacts) -> None:
    if isinstance(node.value, str):
        out.texts.append(node.value)


def _definition(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, out: SourceFacts) -> None:
    out.names.append(Name(node.lineno, node.name, "class" if isinstance(node, ast.ClassDef) else "function"))
    if description := ast.get_docstring(node, clean=False):
        out.descriptions.append(Description(node.lineno, node.name, description.strip()))
    out.attribute_texts += _texts_of_attributes(node.body)


def _import(node: ast.Import, out: SourceFacts) -> None:
    out.imports += [(alias.name, ()) for alias in node.names]


def _import_from(node: ast.ImportFrom, out: SourceFacts) -> None:
    out.imports.append((str(node.module), tuple(alias.name for alias in node.names)))


_RECORDS: dict[type[ast.AST], Callable[[Any, SourceFacts], None]] = {
    ast.Name: _variable,
    ast.Attribute: _attribute,
    ast.arg: _parameter,
    ast.keyword: _keyword,
    ast.Constant: _text,
    ast.ClassDef: _definition,
    ast.FunctionDef: _definition,
    ast.AsyncFunctionDef: _definition,
    ast.Import: _import,
    ast.ImportFrom: _import_from,
}


def _nodes(tree: ast.AST) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """All nodes that have fields, in no order, each with the scopes around it: half of the nodes of a tree are
    `Load()`.
    """
    pending: list[tuple[ast.AST, tuple[ast.AST, ...]]] = [(tree, ())]
    while pending:
        node, scopes = pending.pop()
        if node.__class__ in _SCOPES:
            scopes = (*scopes, node)
        yield node, scopes
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                pending += [(each, scopes) for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and value._fields:
                pending.append((value, scopes))


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


def _last_line(place: _Place, places: list[_Place]) -> int:
    """The last line that has the name of a place in its scope, or in a scope within it."""
    scope = place.scopes[-1]
    return max(each.line for each in places if each.name == place.name and scope in each.scopes)
