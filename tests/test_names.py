"""Names and descriptions in the code: what each stands for, in the words of the glossary."""

import ast
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.repository import PACKAGES, REPOSITORY, modules, nodes, scripts, tracked
from tests.vocabulary import ACTIVITIES, BRIEF_NAMES, IDIOMS, SPEAKING_WITH_ANOTHER, VAGUE_NAMES

ANY_IDIOM = re.compile("|".join(f"(?:{idiom})" for idiom in IDIOMS.values()))


@pytest.fixture(autouse=True, scope="module")
def _trees_are_kept_for_this_module_alone() -> Iterator[None]:
    yield
    nodes.cache_clear()
    prose.cache_clear()


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(REPOSITORY))
        for path in modules()
        if not any(isinstance(node, ast.Module) and ast.get_docstring(node) for node in nodes(path)[:1])
        and path.read_text(encoding="utf-8").strip()
    ]
    assert silent == []


def test_no_module_is_named_for_nothing() -> None:
    empty_names = {"utils", "util", "helpers", "helper", "common", "misc", "tools", "base_utils"}
    assert [path for path in modules() if path.stem in empty_names or path.parent.name in empty_names] == []


def test_a_module_is_named_by_a_noun() -> None:
    """The last word of its name is no participle, no verb and no preposition; `ACTIVITIES` are nouns of the field."""
    others = re.compile(r".*(?:ed|ing|ize)|warm|evaluate|create|drop|load|open|find|make|by|of|at|on|in|to|for|with")
    words = {path: path.stem.strip("_").rsplit("_", 1)[-1] for path in modules()}
    assert [path for path, word in words.items() if others.fullmatch(word) and word not in ACTIVITIES] == []


def test_a_class_name_stands_for_one_class() -> None:
    """A private name is read as the public one that it resembles."""
    places: dict[str, list[str]] = {}
    for path in modules():
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.lstrip("_"), []).append(f"{path.relative_to(REPOSITORY)}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_class_is_named_by_a_participle() -> None:
    """`ChangedTable`, not `Changed`."""
    names = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}: {node.name}"
        for path in tracked()
        if path.suffix == ".py"
        for node in nodes(path)
        if isinstance(node, ast.ClassDef) and words_of(node.name).endswith("ed")
    ]
    assert names == []


def test_the_description_of_an_attribute_is_a_noun_phrase() -> None:
    """One that a reader understands without the line above it: none that begins with "Of" or a verb, or points at the
    attribute before it by "these" or "of it".
    """
    dependent = re.compile(
        r"(?:Of|That|Theirs|Whose|By|For|Where|When|Why|Under|Or|As|Those|These|Likewise|The same|Its?|Nothing"
        r"|Not|Empty|None|True|False|Relative to|May|Is|Has|Stands|Starts|Ends|Gives|Takes|Waits|Called|Scan|Read)\b"
        r"|[^.;:,]*\b(?:these\b|those (?:columns|files|nodes|queries|rows|searches|shards)\b"
        r"|(?:of|in|by) (?:it|them)(?=$|[.,;:]))"
    )
    fragments = [
        f"{path.relative_to(REPOSITORY)}:{text.lineno}: {text.value.value}"
        for path in (*modules(), *scripts())
        for node in nodes(path)
        for before, text in pairwise(node.body if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) else ())
        if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(text, ast.Expr)
        if isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
        if dependent.match(text.value.value)
    ]
    assert fragments == []


def test_the_description_of_a_function_is_no_fragment() -> None:
    """It names what is returned or done. "Of one table." needs the name before it."""
    dependent = re.compile(
        r"(?:Of|That|Theirs|Whose|By|For which|Under|Or|As|Those|Likewise|Such as|Its|Their|Without)\b"
    )
    fragments = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}: {node.name}: {text}"
        for path in modules()
        for node in nodes(path)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if (text := ast.get_docstring(node)) and dependent.match(text)
    ]
    assert fragments == []


def test_a_name_says_what_it_holds() -> None:
    names = []
    for path in modules():
        for node in nodes(path):
            name, allowed = "", set[str]()
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name, allowed = node.id, {*BRIEF_NAMES, "gone"}  # a key of JSON reports
            elif isinstance(node, ast.arg):
                name, allowed = node.arg, set(BRIEF_NAMES)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = node.name
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                name = node.attr
            if name.lstrip("_") in set(VAGUE_NAMES) - allowed:
                names.append(f"{path.relative_to(REPOSITORY)}:{node.lineno}: {name}")
    assert names == []


def test_a_vague_name_lives_for_three_lines_at_most() -> None:
    """Outside of the packages, too. A name of a comprehension lives within it. `left` is a side, beside `right`."""
    scopes = (
        ast.Module,
        ast.FunctionDef,
        ast.AsyncFunctionDef,
        ast.Lambda,
        ast.ListComp,
        ast.SetComp,
        ast.DictComp,
        ast.GeneratorExp,
    )
    lasting = [
        f"{path.relative_to(REPOSITORY)}:{first}-{last}: {name}"
        for path in tracked()
        if path.suffix == ".py"
        for scope in nodes(path)
        if isinstance(scope, scopes)
        for name, first in bound_names(scope, scopes)
        if name in VAGUE_NAMES and (last := last_line_of(name, scope)) > first + 2
        if name != "left" or not re.search(r"\bright\b|\bleft side\b", path.read_text(encoding="utf-8"))
    ]
    assert lasting == []


def identifiers(path: Path) -> set[tuple[int, str]]:
    """(line, name) of the functions, classes, variables, parameters, attributes and keywords that a file names."""
    names = set()
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add((node.lineno, node.name))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add((node.lineno, node.id))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add((node.lineno, node.attr))
        elif isinstance(node, ast.arg):
            names.add((node.lineno, node.arg))
        elif isinstance(node, ast.keyword) and node.arg:
            names.add((node.value.lineno, node.arg))
    return names


def words_of(name: str) -> str:
    """`LostRaceError` and `lost_race_error` as "lost race error"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").lower().strip()


def test_no_identifier_has_a_private_idiom() -> None:
    """Names of tests are read as sentences, and so are held to the words of sentences."""
    idioms = [
        f"{path.relative_to(REPOSITORY)}:{line}: {name}: write {plain}"
        for path in tracked()
        if path.suffix == ".py"
        for line, name in sorted(identifiers(path))
        if ANY_IDIOM.search(words_of(name))
        for plain, idiom in IDIOMS.items()
        if re.search(idiom, words_of(name))
    ]
    assert idioms == []


def test_no_part_of_a_name_is_vague() -> None:
    """`found_files` leaves open which files they are. In the names of tests such words are verbs."""
    vague = set(VAGUE_NAMES) - SPEAKING_WITH_ANOTHER
    parts = [
        f"{path.relative_to(REPOSITORY)}:{line}: {name}"
        for path in tracked()
        if path.suffix == ".py"
        for line, name in sorted(identifiers(path))
        if not name.startswith("test_") and " " in words_of(name) and vague & set(words_of(name).split())
    ]
    assert parts == []


def test_the_rules_show_the_list_of_vague_names() -> None:
    rules = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = re.search(r"^- A value is named for its content\..*?(?=^- )", rules, re.MULTILINE | re.DOTALL)
    assert listed is not None
    never, _, briefly = listed[0].partition("three lines")
    assert sorted(re.findall(r"`(\w+)`", never)) == sorted(VAGUE_NAMES)
    assert sorted(re.findall(r"`(\w+)`", briefly)) == sorted(BRIEF_NAMES)


def bound_names(scope: ast.AST, scopes: tuple[type[ast.AST], ...]) -> Iterator[tuple[str, int]]:
    """(name, line) of each variable and parameter of a scope, without those of the scopes within it."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif not isinstance(node, scopes):
            yield from bound_names(node, scopes)


def last_line_of(name: str, scope: ast.AST) -> int:
    return max(
        node.lineno
        for node in ast.walk(scope)
        if (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.arg) and node.arg == name)
    )


@cache
def prose(path: Path) -> tuple[tokenize.TokenInfo, ...]:
    """Comments and texts of a file."""
    with path.open(encoding="utf-8") as lines:
        tokens = tokenize.generate_tokens(lines.readline)
        return tuple(token for token in tokens if token.type in {tokenize.COMMENT, tokenize.STRING})


def test_the_prose_of_code_has_no_private_idiom() -> None:
    """Comments, descriptions and messages. Keys that others read are words of their own: `told` in the cursor."""
    texts = [
        (path, token.start[0], re.sub(r"`[^`]*`|^[^ ]*$|\s+", " ", token.string))
        for path in (*modules(), *scripts())
        if path.name != "vocabulary.py"
        for token in prose(path)
    ]
    idioms = [
        f"{path.relative_to(REPOSITORY)}:{number}: write {plain}: {text}"
        for path, number, text in texts
        if ANY_IDIOM.search(text)
        for plain, idiom in IDIOMS.items()
        if re.search(idiom, text)
    ]
    assert idioms == []


def test_the_comments_of_configuration_have_no_private_idiom() -> None:
    kinds = {".cfg", ".ini", ".sh", ".toml", ".yaml", ".yml"}
    idioms = [
        f"{path.relative_to(REPOSITORY)}:{number}: write {plain}: {comment[0]}"
        for path in tracked()
        if path.suffix in kinds or path.name in {"Dockerfile", "Makefile", "run"}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (comment := re.search(r"(?:^|\s)#.*", line))
        for plain, idiom in IDIOMS.items()
        if re.search(idiom, re.sub(r"`[^`]*`", "", comment[0]))
    ]
    assert idioms == []


def test_a_description_has_no_arrow() -> None:
    """An arrow is the notation of types. A description says what a function returns."""
    arrows = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}: {node.name}"
        for path in (*modules(), *scripts())
        for node in nodes(path)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if re.search(r"(?:^|[;.]\s+)-> ", ast.get_docstring(node) or "")
    ]
    assert arrows == []


def test_a_module_is_named_from_the_root() -> None:
    """`icepuffin.ops.search`, as it is imported: whoever reads an error or a description has not seen the folders."""
    folders = "|".join(PACKAGES)
    bare = [
        f"{path.relative_to(REPOSITORY)}:{token.start[0]}: {text[0]}"
        for path in (*modules(), *scripts())
        for token in prose(path)
        if (text := re.search(rf"`(?:{folders})\.\w[^`]*`", token.string))
    ]
    assert bare == []
