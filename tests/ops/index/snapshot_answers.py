"""Answers of one snapshot of a history's table, compared with brute force over PyIceberg's own scan."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from icepuffin.ops.cache import use_settings
from icepuffin.ops.cache.cache_settings import CacheSettings
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import Coverage, SearchResult
from tests.conftest import STORAGE, queries

DIMS = 8
K = 10
CONDITIONS = 5
SECTIONS = 5
TAGS = 6
COUNTS: Counter[str] = Counter()
MISSES: list[float] = []
"""Share of the true neighbours that each query missed"""


@dataclass(frozen=True, eq=False)
class SnapshotAnswers:
    """A snapshot's rows, and what searches of it give."""

    table: Table
    definition: IndexDefinition
    snapshot_id: int
    number: int
    """Number of this comparison in its history: it chooses the condition, and what the condition names"""
    wide: bool
    """Whether the vectors are doubles, which answers of an index are not exact for"""

    @cached_property
    def rows(self) -> pa.Table:
        """By PyIceberg's own scan."""
        return self.table.scan(snapshot_id=self.snapshot_id).to_arrow()

    def compare(self) -> SearchResult:
        """Compare the nearest of all rows, and of those that one of the conditions allows, which take turns."""
        if self.definition.cell_bits:
            self._compare_cold()
        reader = self.open()
        conditions: tuple[Callable[[IndexReader], None], ...] = (
            self._compare_section,
            self._compare_two_columns,
            self._compare_tag,
            self._compare_without_tag,
            self._compare_condition_per_query,
        )
        conditions[self.number % CONDITIONS](reader)
        columns = ["name", "tags", self._section_column, "id"]
        answer = self._search(reader, columns=columns)
        self._require_nearest(answer, self.rows)
        own = {row["id"]: row for row in self.rows.select(columns).to_pylist()}
        assert answer.rows.select(columns).to_pylist() == [own[row["id"]] for row in answer]
        return answer

    def open(self) -> IndexReader:
        """A new reader."""
        return open_index(self.table, self.definition, snapshot=self.snapshot_id, storage=STORAGE)

    def require_attributes(self) -> None:
        """A condition on the columns that the definition names reads no data file."""
        reader = self.open()
        for name in self._names(self.definition.filter_ids):
            result = reader.search(queries(1, DIMS), 1, columns=[], where=f"{name} is not null")
            assert result.profile.condition == f"by the index's values of {name}"

    def require_included(self) -> None:
        """Rows with the columns that the definition includes read no data file."""
        names = self._names(self.definition.include_ids)
        profile = self.open().search(queries(1, DIMS), K, columns=names).profile
        assert profile.bytes_read["rows"] == 0
        assert all(profile.included_rows[name] <= K for name in names)
        COUNTS["rows of the index"] += sum(profile.included_rows.values())

    def _compare_cold(self) -> None:
        """The answers of a process that has no shard."""
        use_settings(replace(CacheSettings.off(), prefetch="never"))
        answer = self._search(self.open())
        COUNTS["answers by cells"] += answer.profile.cold is not None
        self._require_nearest(answer, self.rows)
        use_settings(None)

    def _compare_section(self, reader: IndexReader) -> None:
        matching = self.rows.filter(pc.equal(self._sections, self._section))
        self._require_nearest(self._search(reader, self._of_section), matching)

    def _compare_two_columns(self, reader: IndexReader) -> None:
        name, lowest = self._section_column, self._turn * len(self.rows) // SECTIONS % max(1, len(self.rows))
        where = f"id >= {lowest} and ({name} is null or {name} != '{self._section}')"
        unlike = pc.or_kleene(pc.is_null(self._sections), pc.not_equal(self._sections, self._section))
        matching = self.rows.filter(pc.and_(unlike, pc.greater_equal(self.rows["id"], lowest)))
        self._require_nearest(self._search(reader, where), matching)

    def _compare_tag(self, reader: IndexReader) -> None:
        matching = self.rows.filter(self._have_tag)
        self._require_nearest(self._search(reader, f"array_contains(tags, '{self._tag}')"), matching)

    def _compare_without_tag(self, reader: IndexReader) -> None:
        lists = self.rows["tags"].to_pylist()
        without = [tags is not None and not {self._tag, None} & {*tags} for tags in lists]
        matching = self.rows.filter(pa.array(without, pa.bool_()))
        self._require_nearest(self._search(reader, f"not array_contains(tags, '{self._tag}')"), matching)

    def _compare_condition_per_query(self, reader: IndexReader) -> None:
        """The answers are those of one call per condition."""
        has_tag = f"array_contains(tags, '{self._tag}')"
        both = f"{self._of_section} and {has_tag}"
        conditions = (self._of_section, f"not {has_tag}", None, both)
        vectors, rerank = queries(len(conditions), DIMS), self._rerank
        parts = []
        for place, where in enumerate(conditions):
            rows = reader.search(vectors[place], K, columns=["id"], rerank=rerank, where=where).rows
            parts.append(rows.set_column(0, "query", pa.array([place] * len(rows), pa.int32())))
        result = reader.search(vectors, K, columns=["id"], rerank=rerank, where=conditions)
        assert result.rows.equals(pa.concat_tables(parts))
        result = reader.search(vectors, K, columns=["id"], rerank=rerank, where=[both] * len(vectors))
        of_section = pc.equal(self._sections, self._section)
        self._require_nearest(result, self.rows.filter(pc.and_(of_section, self._have_tag)))

    def _search(self, reader: IndexReader, where: str | None = None, columns: list[str] | None = None) -> SearchResult:
        columns = columns or ["id"]
        result = reader.search(queries(4, DIMS), K, columns=columns, rerank=self._rerank, where=where)
        COUNTS[f"condition {result.profile.condition.split(';')[0]}"] += where is not None
        return result

    def _require_nearest(self, result: SearchResult, rows: pa.Table) -> None:
        """No row that is not live, no wrong distance, as many rows as there are; the share of true ones is kept."""
        query_vectors = queries(4, DIMS)
        ids = np.asarray(rows["id"], np.int64)
        vectors = np.array(rows[rows.column_names[3]].to_pylist(), np.float32).reshape(len(ids), DIMS)
        rounded = self.wide and result.coverage is not Coverage.EXACT_SCAN
        assert all(rounded and "doubles" in warning for warning in result.warnings), result.warnings
        distances = np.linalg.norm(vectors[None].astype(np.float64) - query_vectors[:, None], axis=2)
        for query in range(len(query_vectors)):
            answer = result.rows.filter(pa.array(np.asarray(result.rows["query"]) == query))
            answer_ids, reported = np.asarray(answer["id"], np.int64), np.asarray(answer["distance"])
            assert len(answer_ids) == len(set(answer_ids.tolist())) == min(K, len(ids))
            truth = dict(zip(ids.tolist(), distances[query].tolist(), strict=True))
            np.testing.assert_allclose(reported, [truth[row] for row in answer_ids.tolist()], rtol=1e-4, atol=1e-5)
            if len(ids):
                limit = np.sort(distances[query])[: min(K, len(ids))].max()
                missed = float((reported > limit * (1 + 1e-4)).mean())
                assert self.definition.has_graphs or not missed
                MISSES.append(missed)

    @property
    def _rerank(self) -> bool | None:
        """What codes or rounded vectors rank is ranked by the table's vectors, whose distances can be compared."""
        return (self.definition.has_graphs and self.definition.vectors != "f32") or None

    @property
    def _turn(self) -> int:
        """Number of this comparison among those with the same condition."""
        return self.number // CONDITIONS

    @property
    def _section_column(self) -> str:
        name: str = self.rows.column_names[2]
        return name

    @property
    def _section(self) -> str:
        return f"section {self._turn % SECTIONS}"

    @property
    def _sections(self) -> pa.ChunkedArray:
        return self.rows[self._section_column]

    @property
    def _of_section(self) -> str:
        return f"{self._section_column} = '{self._section}'"

    @property
    def _tag(self) -> str:
        return f"tag {self._turn % TAGS}"

    @property
    def _have_tag(self) -> pa.Array:
        return pa.array([self._tag in (tags or ()) for tags in self.rows["tags"].to_pylist()], pa.bool_())

    def _names(self, field_ids: tuple[int, ...] | None) -> list[str]:
        """Names of columns in the snapshot's schema."""
        snapshot = self.table.snapshot_by_id(self.snapshot_id)
        assert snapshot is not None
        schema = self.table.schemas()[snapshot.schema_id or 0]
        return [schema.find_field(field_id).name for field_id in field_ids or ()]
