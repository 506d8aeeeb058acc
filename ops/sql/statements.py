"""What SQL texts mean here, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyiceberg.expressions import BooleanExpression

from ann_kernels.metric import Metric


@dataclass(frozen=True, slots=True)
class Output:
    """One column of the answer."""

    column: str | None
    """Of the table; None is the distance."""
    name: str


@dataclass(frozen=True, slots=True)
class Nearest:
    """SELECT ... FROM table [AS OF ...] [WHERE ...] ORDER BY distance LIMIT k."""

    table: str
    snapshot: int | str | None
    """Snapshot id, ref or time; None is the head of main"""
    vector_column: str
    metric: Metric
    query: tuple[float, ...]
    limit: int
    outputs: tuple[Output, ...] | None
    """None: every column of the table, as `*` means it"""
    where: BooleanExpression | None = None
    negated: bool = False
    """`inner_product` is the negated distance"""


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """CREATE INDEX name ON table USING diskann (column) [WITH (knob = value, ...)]."""

    table: str
    name: str
    column: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RefreshIndex:
    """REFRESH INDEX name ON table."""

    table: str
    name: str


@dataclass(frozen=True, slots=True)
class DropIndex:
    """DROP INDEX name ON table."""

    table: str
    name: str


@dataclass(frozen=True, slots=True)
class ShowIndexes:
    """SHOW INDEXES ON table."""

    table: str


@dataclass(frozen=True, slots=True)
class Explain:
    """EXPLAIN statement: what would answer it, and why."""

    statement: "Statement"


@dataclass(frozen=True, slots=True)
class Foreign:
    """Anything else: for the engine."""

    text: str
    why: str
    """Why no index answers it"""


Statement = Nearest | CreateIndex | RefreshIndex | DropIndex | ShowIndexes | Explain | Foreign
