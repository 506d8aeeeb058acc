"""What SQL texts mean here, as data."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.index.definitions.index_definition import METHODS

if TYPE_CHECKING:
    from icepuffin.ops.sql.postprocessing import Output, PostprocessingStep
    from icepuffin.ops.sql.row_filters import RowFilter
    from icepuffin.ops.text.word_condition import HasWord


@dataclass(frozen=True, slots=True)
class SearchHints:
    """The index of a search and its search parameters, as hints give them; None leaves the choice open."""

    index: str | None = None
    search_list: int | None = None
    shards: int | None = None
    oversample: int | None = None
    target_recall: float | None = None
    recall_share: float | None = None
    rerank: bool | None = None
    certified: bool = False

    @property
    def parameters(self) -> dict[str, Any]:
        """Search parameters by name, of those that are given"""
        items = {key: value for key, value in asdict(self).items() if key != "index"}
        return {key: value for key, value in items.items() if value is not None and (key != "certified" or value)}


@dataclass(frozen=True, slots=True)
class Nearest:
    """The k nearest rows of one table, or all within a distance, and what is done with them. Rows may be ranked by
    words, too, or by these alone.
    """

    table: str
    snapshot: int | str | datetime | None
    """Snapshot id, ref or time; None is the head of main"""
    limit: int | None
    """k; None for all rows within the distance"""
    steps: "tuple[PostprocessingStep, ...]"
    """Steps over the nearest rows; the first one reads the table's columns"""
    vector_column: str = ""
    """Name of the column; empty where rows are ranked by words alone"""
    metric: Metric | None = None
    """Metric of the distances; None without a vector column"""
    query: tuple[float, ...] | bytes | None = None
    """Numbers, or bytes as a column of bytes has them; None without a vector column"""
    words: "HasWord | None" = None
    """Words that rows are ranked by, alone or beside a vector"""
    text_weight: float | None = None
    """Share of the words in a fused score; None to fuse by ranks"""
    having: "tuple[HasWord, ...]" = ()
    """Words of which rows have at least one each"""
    where: "RowFilter | None" = None
    """Condition on the rows among which the search is done"""
    within: float | None = None
    """Largest distance, smaller being nearer; with a limit the first step applies it"""
    inclusive: bool = False
    negated: bool = False
    """Whether the function is the negated distance or score: of `inner_product` and `hybrid`"""
    ties: bool = False
    """Whether all rows at the distance of the last one are needed: further keys of ORDER BY choose among them"""
    absent: frozenset[str] = frozenset()
    """Names, in lower case, that would be ambiguous if the table had such columns"""
    hints: SearchHints = SearchHints()
    otherwise: "SparkStatement | None" = field(default=None, compare=False)
    """The statement for Spark, where no index can answer it"""

    @property
    def outputs(self) -> "tuple[Output, ...] | None":
        """Outputs of the query that reads the table; None for every column (`*`)"""
        return self.steps[0].outputs

    @property
    def words_columns(self) -> frozenset[str]:
        """Names of the columns whose words it needs"""
        matches = (*self.having, *((self.words,) if self.words else ()))
        return frozenset(column for match in matches for column in match.columns)


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """CREATE [OR REPLACE] INDEX [IF NOT EXISTS] name ON table USING method (column) [WITH (parameter = value, ...)]."""

    table: str
    name: str
    column: str
    options: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False
    """Whether an index of that name that exists is no error (IF NOT EXISTS)"""
    method: str = METHODS[0]
    """Method of the index, as `IndexDefinition.method`"""
    replace: bool = False
    """Whether an index of that name takes over the parameters (OR REPLACE)"""
    build: bool = True
    """Whether the version of the newest snapshot is built, too; else the index is only defined"""


@dataclass(frozen=True, slots=True)
class RefreshIndex:
    """REFRESH INDEX name ON table."""

    table: str
    name: str


@dataclass(frozen=True, slots=True)
class DropIndex:
    """DROP INDEX [IF EXISTS] name ON table."""

    table: str
    name: str
    if_there: bool = False


@dataclass(frozen=True, slots=True)
class ShowIndexes:
    """SHOW INDEXES ON table."""

    table: str


@dataclass(frozen=True, slots=True)
class Explain:
    """EXPLAIN: which path would answer a statement, and why."""

    statement: "Statement"
    analyze: bool = False
    """Whether to run it, and report what it cost"""


@dataclass(frozen=True, slots=True)
class SparkStatement:
    """Any other statement: one for Spark."""

    text: str
    why: str
    """Reason why no index answers the statement"""
    parameters: Mapping[str, Any] = field(default_factory=dict, compare=False)
    placeholders: frozenset[str] = field(default=frozenset(), compare=False)
    """The names in the text that stand for parameters"""
    hints: tuple[str, ...] = field(default=(), compare=False)
    """Names of its hints to a search, which Spark would ignore"""
    functions: tuple[str, ...] = field(default=(), compare=False)
    """Names of the functions in it that an index alone answers"""
    tables: frozenset[str] = field(default=frozenset(), compare=False)
    """Names in the places of tables, quoted: of tables, and of what the statement itself defines. All names of several
    parts where the statement has no tree of tables"""


Statement = Nearest | CreateIndex | RefreshIndex | DropIndex | ShowIndexes | Explain | SparkStatement
