"""SQL texts -> statements. Queries are parsed by sqlglot (Spark's dialect), the four statements on indexes here."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import sqlglot
from sqlglot.errors import SqlglotError

from ops.sql.errors import NotIndexableError, SqlError
from ops.sql.queries import read_query
from ops.sql.statements import (
    CreateIndex,
    DropIndex,
    Explain,
    Foreign,
    RefreshIndex,
    ShowIndexes,
    Statement,
)
from ops.sql.values import Values, name_parameters

_PART = r"(?:\w+|`[^`]+`)"
_NAME = rf"(?P<name>{_PART}(?:\.{_PART})*)"
_TABLE = rf"(?P<table>{_PART}(?:\.{_PART})*)"
_EXPLAIN = re.compile(r"\s*EXPLAIN\s+(?P<analyze>ANALYZE\s+)?(?P<rest>.+)", re.IGNORECASE | re.DOTALL)
_CREATE = re.compile(
    rf"\s*CREATE\s+INDEX\s+{_NAME}\s+ON\s+{_TABLE}\s+USING\s+(?P<kind>\w+)\s*\(\s*(?P<column>{_PART})\s*\)"
    r"(?:\s*WITH\s*\((?P<options>.*)\))?\s*;?\s*",
    re.IGNORECASE | re.DOTALL,
)
_REFRESH = re.compile(rf"\s*REFRESH\s+INDEX\s+{_NAME}\s+ON\s+{_TABLE}\s*;?\s*", re.IGNORECASE)
_DROP = re.compile(rf"\s*DROP\s+INDEX\s+{_NAME}\s+ON\s+{_TABLE}\s*;?\s*", re.IGNORECASE)
_SHOW = re.compile(rf"\s*SHOW\s+INDEXES\s+(?:ON|FROM|IN)\s+{_TABLE}\s*;?\s*", re.IGNORECASE)
_OPTION = re.compile(r"\s*'?(?P<key>[\w.]+)'?\s*=\s*(?P<value>'[^']*'|[^\s,]+)\s*")


def parse(text: str, parameters: Mapping[str, Any] | Sequence[Any] | None = None) -> Statement:
    """Raises SqlError for a text that is no SQL, or a statement on indexes that is incomplete."""
    if found := _EXPLAIN.fullmatch(text):
        return Explain(parse(found["rest"], parameters), bool(found["analyze"]))
    if found := _CREATE.fullmatch(text):
        if found["kind"].lower() != "diskann":
            raise SqlError(f"USING {found['kind']}: the only kind of index is diskann")
        return CreateIndex(
            _bare(found["table"]), _bare(found["name"]), _bare(found["column"]), _options(found["options"] or "")
        )
    for pattern, kind in ((_REFRESH, RefreshIndex), (_DROP, DropIndex)):
        if found := pattern.fullmatch(text):
            return kind(_bare(found["table"]), _bare(found["name"]))
    if found := _SHOW.fullmatch(text):
        return ShowIndexes(_bare(found["table"]))
    if re.match(r"\s*(CREATE|REFRESH|DROP)\s+INDEX\b", text, re.IGNORECASE):
        raise SqlError(
            "write CREATE INDEX name ON ns.t USING diskann (column) [WITH (metric = 'l2', ...)], "
            "REFRESH INDEX name ON ns.t or DROP INDEX name ON ns.t"
        )
    try:
        named, given = name_parameters(text, parameters)
        query = sqlglot.parse_one(named, dialect="spark")
    except SqlglotError as error:
        line = str(error).splitlines()[0]
        raise SqlError(f"the statement cannot be read: {_plain(line)}") from error
    try:
        return read_query(query, Values(given))
    except NotIndexableError as error:
        return Foreign(text, str(error), query, given)


def _bare(name: str) -> str:
    """Without the backticks that SQL wants around spaces and reserved words."""
    return name.replace("`", "")


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _options(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in filter(str.strip, text.split(",")):
        option = _OPTION.fullmatch(part)
        if option is None:
            raise SqlError(f"WITH ({part.strip()}): write knob = value")
        found[option["key"].lower()] = option["value"].strip("'")
    return found
