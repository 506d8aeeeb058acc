"""Columns that a seed draws for the benchmark of conditions, and conditions on them of known matches.

Columns of keywords have one of some texts per row, equally frequent. `price` is uniform, in cents; `tags` are three
texts per row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.lake import SCHEMA, Lake, arrow_rows
from icepuffin.ann_kernels.codes import kmeans

_CLUSTERS = 10
_SAMPLE = 20_000

KEYWORDS = {"half": 2, "fifth": 5, "tenth": 10, "hundredth": 100, "fifth_b": 5, "tenth_b": 10, "rare": 83}
"""Number of keywords of each column; all are equally frequent"""
CLUSTER = "cluster"
_PRICES = 100_000
"""Different prices, from 0.00 on"""
_TAGS_PER_ROW = 3
_TAGS = 300
COLUMNS = (
    *(pa.field(name, pa.string()) for name in (*KEYWORDS, CLUSTER)),
    pa.field("price", pa.float64()),
    pa.field("tags", pa.list_(pa.string())),
)


class Columns:
    """The columns as numbers, and the numbers that the condition of each query names."""

    def __init__(self, base: npt.NDArray[np.float32], queries: npt.NDArray[np.float32], seed: int) -> None:
        rng = np.random.default_rng([seed, len(base)])
        self.keywords = {name: rng.integers(0, keywords, len(base)) for name, keywords in KEYWORDS.items()}
        centroids = kmeans.train(base[:: max(1, len(base) // _SAMPLE)], _CLUSTERS, seed=seed)
        self.keywords[CLUSTER] = kmeans.assign(base, centroids)[0].astype(np.int64)
        used = np.unique(self.keywords[CLUSTER])
        distances = np.linalg.norm(queries[:, None] - centroids[None, used], axis=2)
        self.nearest, self.farthest = used[distances.argmin(axis=1)], used[distances.argmax(axis=1)]
        self.drawn = {name: rng.integers(0, keywords, len(queries)) for name, keywords in KEYWORDS.items()}
        self.cents = rng.integers(0, _PRICES, len(base))
        self.tags = rng.integers(0, _TAGS, (len(base), _TAGS_PER_ROW))
        self.drawn_place = rng.random(len(queries))
        self.drawn_tag = rng.integers(0, _TAGS, len(queries))
        self._unused = count()

    def of_rows(self, rows: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
        """The columns of some rows."""
        arrays = {}
        for name, numbers in self.keywords.items():
            texts = pa.array([_keyword(name, number) for number in range(100)])
            arrays[name] = texts.take(pa.array(numbers[rows]))
        arrays["price"] = pa.array(self.cents[rows] / 100)
        tags = pa.array([_tag(number) for number in range(_TAGS)]).take(pa.array(self.tags[rows].ravel()))
        arrays["tags"] = pa.ListArray.from_arrays(np.arange(len(rows) + 1, dtype=np.int32) * _TAGS_PER_ROW, tags)
        return arrays

    def unused(self) -> int:
        """Another number for each call, so that no two conditions are the same."""
        return next(self._unused)


class Shape(Protocol):
    """A kind of condition. No two calls of `condition` give the same; the same rows satisfy all for one query."""

    @property
    def name(self) -> str: ...

    def condition(self, columns: Columns, query: int) -> str:
        """The condition of a query."""

    def matching(self, columns: Columns, query: int) -> npt.NDArray[np.int64]:
        """Rows that satisfy the condition of a query."""


@dataclass(frozen=True, slots=True)
class Keyword:
    """Rows with one keyword each in some columns."""

    name: str
    columns: tuple[str, ...]
    farthest: bool = False
    """Whether a cluster is the one farthest from the query, not the one that it lies in"""

    def condition(self, columns: Columns, query: int) -> str:
        first, *others = (f"'{_keyword(name, self._number(columns, name, query))}'" for name in self.columns)
        rest = [f" and {name} = {value}" for name, value in zip(self.columns[1:], others, strict=True)]
        return f"{self.columns[0]} in ({first}, 'unused {columns.unused()}')" + "".join(rest)

    def matching(self, columns: Columns, query: int) -> npt.NDArray[np.int64]:
        masks = [columns.keywords[name] == self._number(columns, name, query) for name in self.columns]
        return np.flatnonzero(np.logical_and.reduce(masks))

    def _number(self, columns: Columns, name: str, query: int) -> int:
        clusters = columns.farthest if self.farthest else columns.nearest
        return int(clusters[query] if name == CLUSTER else columns.drawn[name][query])


@dataclass(frozen=True, slots=True)
class Range:
    """Rows whose price lies between two bounds."""

    name: str
    share: float

    def condition(self, columns: Columns, query: int) -> str:
        between_cents = 0.001 + 1e-9 * columns.unused()
        low, high = (bound / 100 - between_cents for bound in self._cents(columns, query))
        return f"price >= {low!r} and price < {high!r}"

    def matching(self, columns: Columns, query: int) -> npt.NDArray[np.int64]:
        low, high = self._cents(columns, query)
        return np.flatnonzero((columns.cents >= low) & (columns.cents < high))

    def _cents(self, columns: Columns, query: int) -> tuple[int, int]:
        width = round(self.share * _PRICES)
        low = int(columns.drawn_place[query] * (_PRICES - width))
        return low, low + width


@dataclass(frozen=True, slots=True)
class Tag:
    """Rows of which one tag has a text."""

    name: str

    def condition(self, columns: Columns, query: int) -> str:
        tag, unused = _tag(int(columns.drawn_tag[query])), f"unused {columns.unused()}"
        return f"(array_contains(tags, '{tag}') or array_contains(tags, '{unused}'))"

    def matching(self, columns: Columns, query: int) -> npt.NDArray[np.int64]:
        return np.flatnonzero((columns.tags == columns.drawn_tag[query]).any(axis=1))


SHAPES: Sequence[Shape] = (
    Keyword("keyword 50 %", ("half",)),
    Keyword("keyword 20 %", ("fifth",)),
    Keyword("keyword 10 %", ("tenth",)),
    Keyword("keyword 1 %", ("hundredth",)),
    Keyword("two keywords 4 %", ("fifth", "fifth_b")),
    Keyword("two keywords 1 %", ("tenth", "tenth_b")),
    Keyword("two keywords .012 %", ("hundredth", "rare")),
    Keyword("correlated", (CLUSTER,)),
    Keyword("anti-correlated", (CLUSTER,), farthest=True),
    Range("range 50 %", 0.5),
    Range("range 10 %", 0.1),
    Range("range 1 %", 0.01),
    Range("range .1 %", 0.001),
    Tag("tag 1 %"),
)


def _keyword(column: str, number: int) -> str:
    return f"{column} keyword {number:02}"


def _tag(number: int) -> str:
    return f"tag {number:03}"


class FilterLake(Lake):
    """A table with these columns beside its vectors."""

    schema = pa.schema([*SCHEMA, *COLUMNS])

    def __init__(self, columns: Columns, *arguments: Any, **options: Any) -> None:
        self._columns = columns
        super().__init__(*arguments, **options)

    def rows_of(self, ids: npt.NDArray[np.int64], vectors: npt.NDArray[Any]) -> pa.Table:
        rows = arrow_rows(ids, vectors)
        for name, values in self._columns.of_rows(ids).items():
            rows = rows.append_column(name, values)
        return rows
