"""SQL texts -> statements. Queries are parsed by sqlglot (Spark's dialect), the four statements on indexes here."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError

from icepuffin.ops.index.definitions.index_definition import METHODS
from icepuffin.ops.sql.errors import NotIndexableError, SqlError
from icepuffin.ops.sql.statements import (
    CreateIndex,
    DropIndex,
    Explain,
    RefreshIndex,
    ShowIndexes,
    SparkStatement,
    Statement,
)
from icepuffin.ops.sql.tokens import HINTS, HYBRID, MATCH, hints_of, name_parameters, trees_of

_STATEMENTS = (
    "Statements are SELECT, EXPLAIN, CREATE INDEX, REFRESH INDEX, DROP INDEX and SHOW INDEXES; with a Spark session "
    "(`spark=`, on the command line --spark), also what Spark runs"
)
TOO_DEEP = "it is nested too deeply"
_PART = r"(?:\w+|`[^`]+`)"
_NAME = rf"(?P<name>{_PART}(?:\.{_PART})*)"
_TABLE = rf"(?P<table>{_PART}(?:\.{_PART})*)"
_QUOTED_TEXT = r"""(?<!\w)[rR](?:'[^']*'|"[^"]*")|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
"""In r'...' a backslash escapes nothing"""
_PASSAGE = re.compile(rf"(?P<quoted>{_QUOTED_TEXT}|`[^`]*`)|--(?:\\\n|[^\r\n])*|(?P<bracket>/\*(?!\+))", re.DOTALL)
"""A quoted text, within which nothing is a comment, a comment of one line, or the begin of another. A backslash at the
end of a line takes the next line into the comment
"""
_BRACKET = re.compile(r"/\*(?!\+)|\*/")
_DOTTED = re.compile(rf"{_QUOTED_TEXT}|((?!\d){_PART}(?:\s*\.\s*{_PART})+)|`[^`]*`", re.DOTALL)
"""What is quoted, or a name of several parts, its group"""
_HINTED = re.compile(rf"/\*\+[^*]*?\b({'|'.join(HINTS)})\b", re.IGNORECASE)
"""A hint to a search, its group, in a text that has no tree"""
_CALLED = re.compile(rf"{_QUOTED_TEXT}|`[^`]*`|(?<![\w.])({MATCH}|{HYBRID})\s*\(", re.DOTALL | re.IGNORECASE)
"""What is quoted, or a call of a function that an index alone answers, its group"""
_EXPLAIN = re.compile(
    r"\s*EXPLAIN\s+(?:(?P<analyze>ANALYZE)\s+|(?:EXTENDED|FORMATTED|COST|CODEGEN)\s+)?(?P<rest>.+)",
    re.IGNORECASE | re.DOTALL,
)
_CREATE = re.compile(
    rf"\s*CREATE\s+(?P<replace>OR\s+REPLACE\s+)?INDEX\s+(?P<unless>IF\s+NOT\s+EXISTS\s+)?{_NAME}\s+ON\s+{_TABLE}"
    rf"\s+USING\s+(?P<kind>\w+)\s*\(\s*(?P<column>{_PART})\s*\)"
    r"(?:\s*WITH\s*\((?P<options>.*)\))?\s*;?\s*",
    re.IGNORECASE | re.DOTALL,
)
_REFRESH = re.compile(rf"\s*REFRESH\s+INDEX\s+{_NAME}\s+ON\s+{_TABLE}\s*;?\s*", re.IGNORECASE)
_DROP = re.compile(rf"\s*DROP\s+INDEX\s+(?P<if>IF\s+EXISTS\s+)?{_NAME}\s+ON\s+{_TABLE}\s*;?\s*", re.IGNORECASE)
_SHOW = re.compile(rf"\s*SHOW\s+INDEX(?:ES)?\s+(?:ON|FROM|IN)\s+{_TABLE}\s*;?\s*", re.IGNORECASE)
_QUOTED = r"""'[^']*'|"[^"]*"|`[^`]*`"""
_OPTION = re.compile(
    rf"\s*'?(?P<key>[\w.]+)'?\s*=\s*"
    rf"(?:(?:ARRAY\s*)?[\[(](?P<list>(?:{_QUOTED}|[^\[\]()'\"`])*)[\])]|(?P<value>{_QUOTED}|[^\s,\[\]()]+))\s*(?:,|$)",
    re.IGNORECASE,
)
_ELEMENT = re.compile(rf"\s*(?P<element>{_QUOTED}|\w+)\s*(?:,|$)")

_BOOLEANS = {"true": True, "false": False}


def parse(
    text: str, parameters: Mapping[str, Any] | Sequence[Any] | None = None, *, has_spark: bool = False
) -> Statement:
    """Raises SqlError for a text that is no SQL, or a statement on indexes that is incomplete.

    has_spark: whether a statement of a grammar that is not known here is Spark's, and no error.
    """
    text = _without_comments(text)
    if match := _EXPLAIN.fullmatch(text):
        return Explain(parse(match["rest"], parameters, has_spark=has_spark), bool(match["analyze"]))
    return _on_an_index(text) or _query(text, parameters, has_spark)


def require_syntax(
    text: str, parameters: Mapping[str, Any] | Sequence[Any] | None = None, *, has_spark: bool = False
) -> CreateIndex | RefreshIndex | DropIndex | ShowIndexes | None:
    """Raise SqlError for what `parse` cannot read, before importing what it needs for queries.

    Returns the statement where it is one on an index.
    """
    text = _without_comments(text)
    if match := _EXPLAIN.fullmatch(text):
        require_syntax(match["rest"], parameters, has_spark=has_spark)
        return None
    statement = _on_an_index(text)
    if statement is None:
        _text_and_tree(text, parameters, has_spark)
    return statement


def _query(text: str, parameters: Mapping[str, Any] | Sequence[Any] | None, has_spark: bool) -> Statement:
    otherwise, tree = _text_and_tree(text, parameters, has_spark)
    if tree is None:
        return otherwise
    from icepuffin.ops.sql.queries import read_query  # noqa: PLC0415  imports PyArrow; what no parser reads needs none
    from icepuffin.ops.sql.values import Values  # noqa: PLC0415

    try:
        return replace(read_query(tree, Values(otherwise.parameters)), otherwise=otherwise)
    except NotIndexableError as error:
        return replace(otherwise, why=str(error))
    except RecursionError:
        return replace(otherwise, why=TOO_DEEP)


def _text_and_tree(
    text: str,
    parameters: Mapping[str, Any] | Sequence[Any] | None,
    has_spark: bool,
) -> tuple[SparkStatement, Any]:
    """The statement as Spark takes it, and its tree; None for one that only Spark can read. Raises SqlError."""
    try:
        named, values = name_parameters(text, parameters)
    except SqlglotError as error:
        raise _unreadable(text, error) from error
    try:
        trees = trees_of(named)
    except (RecursionError, NotIndexableError, SqlglotError) as error:
        why = TOO_DEEP if isinstance(error, RecursionError) else str(error)
        if isinstance(error, ParseError) and has_spark:
            why = "only Spark knows its grammar"
        elif isinstance(error, SqlglotError):
            raise _unreadable(text, error) from error
        hints = tuple(_HINTED.findall(named))
        return SparkStatement(named, why, values, frozenset(values), hints, _called(named), _dotted(named)), None
    if not trees:
        raise SqlError(f"the statement is empty. {_STATEMENTS}")
    if len(trees) != 1:
        raise SqlError(f"give one statement, not {len(trees)}")
    nodes = list(trees[0].find_all(exp.Placeholder, exp.TableAlias))
    placeholders = frozenset(node.name for node in nodes if isinstance(node, exp.Placeholder))
    if any(isinstance(node, exp.TableAlias) and isinstance(node.this, exp.Parameter) for node in nodes):  # of t@17
        raise SqlError("a table is followed by @: write VERSION AS OF a snapshot, a tag or a branch")
    hints = tuple(name for name, _ in hints_of(trees[0]))
    functions = [call for call in trees[0].find_all(exp.Anonymous) if not isinstance(call.parent, exp.Dot)]
    called = tuple(call.name.lower() for call in functions if call.name.lower() in (MATCH, HYBRID))
    calls = (call for call in functions if call.name.upper() == "TABLE")
    arguments = (argument for call in calls for argument in call.expressions if isinstance(argument, exp.Column))
    tables = frozenset(
        ".".join(f"`{part.name.replace('`', '``')}`" for part in table.parts)
        for table in (*trees[0].find_all(exp.Table), *arguments)  # arguments: of a table function, TABLE(ns.t)
        if all(isinstance(part, exp.Identifier) for part in table.parts)  # not a function
    )
    return SparkStatement(named, "", values, placeholders, hints, called, tables or _dotted(named)), trees[0]


def _called(text: str) -> tuple[str, ...]:
    """The functions that an index alone answers, in a text that has no tree."""
    return tuple(name.lower() for name in _CALLED.findall(text) if name)


def _dotted(text: str) -> frozenset[str]:
    """The names of several parts in a text whose tables no tree shows, quoted: those of tables are among them."""
    names = (re.findall(_PART, name) for name in _DOTTED.findall(text) if name)
    return frozenset(".".join(part if part[0] == "`" else f"`{part}`" for part in parts) for parts in names)


def _without_comments(text: str) -> str:
    """Raises SqlError for a comment without an end."""
    kept, offset = [], 0
    while passage := _PASSAGE.search(text, offset):
        kept += [text[offset : passage.start()], passage["quoted"] or " "]
        offset = _end_of_comment(text, passage.end()) if passage["bracket"] else passage.end()
    return "".join((*kept, text[offset:]))


def _end_of_comment(text: str, start: int) -> int:
    """The offset after a comment whose content begins at `start`: it may have others in it."""
    depth = 1
    for bracket in _BRACKET.finditer(text, start):
        depth += -1 if bracket[0] == "*/" else 1
        if not depth:
            return bracket.end()
    raise SqlError("the statement cannot be read: a comment has no end, */")


def _on_an_index(text: str) -> CreateIndex | RefreshIndex | DropIndex | ShowIndexes | None:
    """One of the four statements on indexes; None for other texts."""
    if match := _CREATE.fullmatch(text):
        method = match["kind"].lower()
        if method not in METHODS:
            raise SqlError(f"USING {match['kind']}: the kinds of indexes are {', '.join(METHODS)}")
        if match["replace"] and match["unless"]:
            raise SqlError("CREATE OR REPLACE INDEX IF NOT EXISTS: leave OR REPLACE out, or IF NOT EXISTS")
        options = _options(match["options"] or "")
        build = options.pop("build", "true").lower()
        if build not in _BOOLEANS:
            raise SqlError(f"WITH (build = {build}): it takes true or false")
        return CreateIndex(
            _bare(match["table"]),
            _bare(match["name"]),
            _bare(match["column"]),
            options,
            if_not_exists=bool(match["unless"]),
            replace=bool(match["replace"]),
            method=method,
            build=_BOOLEANS[build],
        )
    if match := _REFRESH.fullmatch(text):
        return RefreshIndex(_bare(match["table"]), _bare(match["name"]))
    if match := _DROP.fullmatch(text):
        return DropIndex(_bare(match["table"]), _bare(match["name"]), if_there=bool(match["if"]))
    if match := _SHOW.fullmatch(text):
        return ShowIndexes(_bare(match["table"]))
    if re.match(r"\s*(CREATE(\s+OR\s+REPLACE)?|REFRESH|DROP|ALTER|SHOW)\s+INDEX(ES)?\b", text, re.IGNORECASE):
        raise SqlError(
            "write CREATE [OR REPLACE] INDEX [IF NOT EXISTS] name ON ns.t USING diskann (column) "
            "[WITH (metric = 'l2', ...)] (or USING centroid), "
            "REFRESH INDEX name ON ns.t, DROP INDEX [IF EXISTS] name ON ns.t or SHOW INDEXES ON ns.t"
        )
    return None


def _bare(name: str) -> str:
    """The name without the backticks that SQL needs around spaces and reserved words."""
    if any("." in quoted for quoted in re.findall(r"`([^`]*)`", name)):
        raise SqlError(f"{name}: a name with a dot in it cannot be written here; quote each part, as in `ns`.`t`")
    return name.replace("`", "")


def _unreadable(text: str, error: SqlglotError) -> SqlError:
    """What is wrong: the first word, where SQL has no such word, else what the parser says."""
    first = text.split(maxsplit=1)[0]
    if first.isidentifier() and first.upper() not in Spark.Tokenizer.KEYWORDS:
        return SqlError(f"the statement cannot be read: no statement begins with {first!r}. {_STATEMENTS}")
    fault = _missing(error) or _plain(str(error).splitlines()[0]).rstrip(".")
    return SqlError(f"the statement cannot be read: {fault}")


def _missing(error: SqlglotError) -> str:
    """Where an expression is missing; empty for other errors. sqlglot names its class for the operator there."""
    fault = error.errors[0] if isinstance(error, ParseError) and error.errors else {}
    if not str(fault.get("description")).startswith("Required keyword"):
        return ""
    side = "before" if fault["end_context"].strip() else "after"
    return f"an expression is missing {side} {fault['highlight']!r}. Line {fault['line']}, Col: {fault['col']}"


def _plain(text: str) -> str:
    """The message without colours and without the names of sqlglot's classes."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return re.sub(r"<Token .*?text: (.*?), line:.*?>", r"\1", text).replace("SENTINEL", "its end")


def _options(text: str) -> dict[str, str]:
    """Values by parameter; a list such as `['a', 'b']` as JSON."""
    options: dict[str, str] = {}
    while text.strip():
        option = _OPTION.match(text)
        names = None if option is None or option["list"] is None else _elements(option["list"])
        if option is None or (names is None and option["value"] is None):
            raise SqlError(
                f"WITH ({text.strip()}): write parameter = value, or parameter = ['column', ...] for columns"
            )
        if option["key"].lower() in options:
            raise SqlError(f"WITH ({option[0].strip()}): {option['key']} is given twice")
        options[option["key"].lower()] = _unquoted(option["value"]) if names is None else json.dumps(names)
        text = text[option.end() :]
    return options


def _elements(text: str) -> list[str] | None:
    """The elements of a list; None where it cannot be read."""
    elements = []
    while text.strip():
        element = _ELEMENT.match(text)
        if element is None:
            return None
        elements.append(_unquoted(element["element"]))
        text = text[element.end() :]
    return elements


def _unquoted(text: str) -> str:
    return text[1:-1] if text[0] in "'\"`" else text
