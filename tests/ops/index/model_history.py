"""A table whose embedding model changes all the time, by every way of docs/changing-the-model.md, as chance has it."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.table import Table
from pyiceberg.types import FloatType, ListType

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding.expiration import expire_packs
from icepuffin.ops.index.definitions.ddl import create_index, drop_index
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.result import Coverage
from tests.conftest import STORAGE
from tests.naive.vectors import exact_distances
from tests.ops.index.history_steps import expire_all_that_may_be, roll_back

Vectors = npt.NDArray[np.float32]

MAX_ROWS = 4_000
"""Rows that a table ever has"""
MIN_ROWS = 80
DIMS = (8, 10, 12, 16, 24)
"""Dimensions that rotated codes take, too"""
K = 10
QUERIES = 8
SAMPLING_ERROR = 0.15
"""Largest error of recall@10 by the gate's 64 rows, and by so few queries"""
NO_DISTANCE = 1e-12
"""Distance of equal vectors, at most: cosine's is a square of roundings"""
OTHERS = ("append", "append", "delete", "delete merge-on-read", "compact", "roll back")


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingModel:
    """The vectors of all rows that a table ever has, by their ids."""

    vectors: Vectors
    without: int
    """Every such row has no vector; 0: all have one"""

    @classmethod
    def drawn(cls, rng: np.random.Generator, dims: int) -> "EmbeddingModel":
        clusters = int(rng.choice([1, 3, 8, 8, 30]))
        centers = rng.standard_normal((clusters, dims)) + rng.choice([0, 0, 3])
        noise = rng.choice([0.2, 0.5, 1.0]) * rng.standard_normal((MAX_ROWS, dims))
        vectors = 10 ** rng.uniform(-1, 1) * (centers[rng.integers(0, clusters, MAX_ROWS)] + noise)
        return cls(vectors.astype(np.float32), int(rng.choice([0, 0, 23, 3])))

    @property
    def dims(self) -> int:
        return self.vectors.shape[1]

    def of(self, ids: Sequence[int]) -> list[list[float] | None]:
        return [None if self.without and row % self.without == 0 else self.vectors[row].tolist() for row in ids]


@dataclass(frozen=True, slots=True)
class Migration:
    """A change of the model that is under way."""

    column: str
    way: str
    """How rows are written: copy-on-write, merge-on-read, overwrite"""
    share: float
    """Share of the rows that one commit takes"""
    metric: Metric | None = None
    """Metric of the index from the end on, where it is to be another one"""


class ModelHistory:
    """A table, its indexes, and commits of it that chance chooses."""

    def __init__(self, table: Table, rng: random.Random, counts: Counter[str]) -> None:
        self.table = table
        self.counts = counts
        self.random = rng
        self.numpy = np.random.default_rng(rng.getrandbits(64))
        self.models = {"embedding": EmbeddingModel.drawn(self.numpy, rng.choice(DIMS))}
        """Model that each vector column has, or comes to have"""
        self.migration: Migration | None = None
        self.beside: IndexDefinition | None = None
        """Index of the column that is filled beside the old one, from the first batch on"""
        self.next_id = 0
        self.columns = 1
        """Vector columns that the table has ever had"""
        self.shares: list[float] = []
        """Share of all rows whose vectors each commit of a new model has changed"""
        self.recalls: list[tuple[float, float]] = []
        """(recall, that promised) of the answers of versions with graphs"""
        self._scanned: tuple[object, pa.Table, dict[str, dict[int, list[float] | None]]] | None = None
        """The rows of the head that was scanned last, and vectors by row, for the columns that were asked for"""
        self._append(rng.randint(200, 1_200))
        self.definition = create_index(table, self._drawn_definition())

    @property
    def indexes(self) -> list[IndexDefinition]:
        return [self.definition, *([self.beside] if self.beside else [])]

    def commit(self, kind: str) -> None:
        """Write by one of the kinds in OTHERS, or by the next step of a change of the model."""
        steps = {
            "delete": lambda: self._delete(in_place=False),
            "delete merge-on-read": lambda: self._delete(in_place=True),
            "compact": self._compact,
            "roll back": lambda: roll_back(self.table, self.random.randint(1, 3)),
            "re-embed": lambda: self._re_embed() or True,
        }
        if kind in steps and steps[kind]():
            self.counts[kind] += 1
        else:
            self._append(self.random.choice([1, 5, 20, 60, 60]))
            self.counts["append"] += 1
        self.table.refresh()

    def expire(self) -> None:
        expire_all_that_may_be(self.table)
        expire_packs(self.table)
        collect_garbage(self.table, storage=STORAGE, grace=timedelta(0))
        self.table.refresh()
        self.counts["expire"] += 1

    def lengths(self, definition: IndexDefinition) -> list[int]:
        """Numbers of dimensions of the live vectors of an index's column."""
        lists = self._vectors(definition.column).values()
        return sorted({len(vector) for vector in lists if vector is not None})

    def compare(self, definition: IndexDefinition) -> Coverage | None:
        """Compare the nearest rows of the head with brute force over PyIceberg's own scan.

        None: vectors have several lengths, and the search was refused. Where it is not, the answer is that of the rows
        of the query's length, and says that there are others.
        """
        lists, lengths = self._vectors(definition.column), self.lengths(definition)
        dims = self.random.choice(lengths or [self.models[definition.column].dims])
        live = [row for row, vector in lists.items() if vector is not None and len(vector) == dims]
        vectors = np.array([lists[row] for row in live], np.float32).reshape(len(live), dims)
        queries = self._queries(vectors, dims)
        rerank = True if definition.has_graphs and definition.vectors != "f32" else None
        reader = open_index(self.table, definition, storage=STORAGE)
        try:
            answer = reader.search(queries, K, columns=["id"], rerank=rerank)
        except QueryError:
            assert len(lengths) > 1
            self.counts["searches of two lengths refused"] += 1
            return None
        assert bool(answer.warnings) == (len(lengths) > 1), answer.warnings
        place = {row: number for number, row in enumerate(live)}
        found = []
        for number, query in enumerate(queries):
            of_query = answer.rows.filter(pa.array(np.asarray(answer.rows["query"]) == number))
            ids, reported = of_query["id"].to_pylist(), np.asarray(of_query["distance"], np.float64)
            assert len(ids) == len(set(ids)) == min(K, len(live))
            true = exact_distances(query, vectors, definition.metric.value).astype(np.float64)
            size = float(np.abs(true).max(initial=0))
            own = true[[place[row] for row in ids]]
            np.testing.assert_allclose(reported, own, rtol=1e-4, atol=1e-5 * size + NO_DISTANCE)
            if ids:
                farthest = np.sort(true)[len(ids) - 1]
                found.append(float((own <= farthest + 1e-6 * size).mean()))
        recall = float(np.mean(found or [1.0]))
        if answer.coverage is Coverage.EXACT_SCAN or not definition.has_graphs:
            assert recall == 1
        else:
            assert recall >= definition.target_recall - SAMPLING_ERROR
            self.recalls.append((recall, definition.target_recall))
        self.counts[f"answers: {answer.coverage}"] += 1
        return answer.coverage

    # ----------------------------------------------------------------------------------------------- another model

    def _re_embed(self) -> None:
        """The next batch of the change that is under way, or the first one of another. It changes vectors."""
        if not len(self._rows()):  # a rollback led to between the two commits of an overwrite
            self._append(MIN_ROWS)
        migration = self.migration or self._begun()
        while not (waiting := self._waiting(migration.column)):
            self._end(migration)
            migration = self._begun()
        self.migration = migration
        before = self._vectors(migration.column)
        count = math.ceil(migration.share * len(before))
        self._write(migration, waiting[0], waiting[:count][-1])
        after = self._vectors(migration.column)
        changed = sum(vector != before[row] for row, vector in after.items())
        assert after.keys() == before.keys()
        assert changed
        self.shares.append(changed / len(after))
        self.counts[f"re-embedded: {migration.way}"] += 1
        if migration.column != self.definition.column and self.beside is None:
            made = replace(self.definition, name=f"i{self.columns}", column=migration.column, field_id=None)
            self.beside = create_index(self.table, made)
        if not self._waiting(migration.column):
            self._end(migration)

    def _begun(self) -> Migration:
        column, share = self.definition.column, self.random.choice([1.0, 1.0, 0.5, 0.34])
        way = self.random.choice(["copy-on-write", "merge-on-read"])
        if self._waiting(column):  # a rollback took the last change back
            return Migration(column, way, share)
        old = self.models[column].dims
        dims = self.random.choice([old, self.random.choice(DIMS)])
        self.counts[f"dimensions {'equal' if dims == old else 'up' if dims > old else 'down'}"] += 1
        model = EmbeddingModel.drawn(self.numpy, dims)
        if self.random.random() < 0.35:
            return Migration(self._added_column(model), way, share)
        self.models[column] = model
        if dims != old and self.random.random() < 0.75:  # nothing is indexed while there are vectors of both
            share = 1.0
        metric = None
        if share == 1:
            way = self.random.choice([way, "overwrite"])
            others = [one for one in (Metric.L2, Metric.COSINE) if one is not self.definition.metric]
            metric = self.random.choice([None, self.random.choice(others)])
        return Migration(column, way, share, metric)

    def _added_column(self, model: EmbeddingModel) -> str:
        """Name of a column for a model, beside the one that is indexed; those of earlier changes are dropped."""
        name = f"embedding_{self.columns}"
        self.columns += 1
        with self.table.update_schema() as update:
            for other in self.models.keys() - {self.definition.column}:
                update.delete_column(other)
            update.add_column(name, ListType(90, FloatType(), element_required=False))
        self.models = {self.definition.column: self.models[self.definition.column], name: model}
        self.counts["columns added"] += 1
        return name

    def _end(self, migration: Migration) -> None:
        """Readers get the index of the new column, or the index that they name gets that column or another metric."""
        self.migration = None
        beside, self.beside = self.beside, None
        if beside is not None:
            by_readers = self.random.random() < 0.5
            drop_index(self.table, self.definition.name if by_readers else beside.name)
            if by_readers:
                self.definition = beside
            else:
                self._redefine(replace(self.definition, column=beside.column, field_id=None))
            self.counts[f"switched by {'readers' if by_readers else 'definition'}"] += 1
        elif migration.metric is not None:
            self._redefine(replace(self.definition, metric=migration.metric))
            self.counts["metric changed"] += 1

    def _redefine(self, definition: IndexDefinition) -> None:
        drop_index(self.table, definition.name)
        self.definition = create_index(self.table, definition)

    def _waiting(self, column: str) -> list[int]:
        """Ids of the live rows that do not have the vector of the column's model, in order."""
        vectors = self._vectors(column)
        ids = sorted(vectors)
        return [row for row, own in zip(ids, self.models[column].of(ids), strict=True) if vectors[row] != own]

    # ------------------------------------------------------------------------------------------------------- writes

    def _write(self, migration: Migration, first: int, last: int) -> None:
        """Write rows with the vectors of the column's model, the others as they are."""
        is_overwrite = migration.way == "overwrite"
        rows = self._rows() if is_overwrite else self.table.scan(_between(first, last)).to_arrow()
        lists = self.models[migration.column].of(rows["id"].to_pylist())
        place = rows.schema.get_field_index(migration.column)
        rows = rows.set_column(place, migration.column, pa.array(lists, pa.list_(pa.float32())))
        rows = rows.cast(self.table.schema().as_arrow())
        if is_overwrite:
            self.table.overwrite(rows)
        elif migration.way == "copy-on-write":
            self.table.overwrite(rows, _between(first, last))
        else:
            self._delete_positions(first, last)
            self.table.append(rows)

    def _append(self, count: int) -> None:
        ids = range(self.next_id, self.next_id + count)
        self.next_id += count
        columns = {field.name: pa.array([""] * count) for field in self.table.schema().fields}
        columns |= {"id": pa.array(ids)}
        of_models = {name: pa.array(model.of(ids), pa.list_(pa.float32())) for name, model in self.models.items()}
        self.table.append(pa.table(columns | of_models).cast(self.table.schema().as_arrow()))

    def _delete(self, *, in_place: bool) -> bool:
        ids = sorted(self._rows()["id"].to_pylist())
        count = int(len(ids) * self.random.choice([0.02, 0.1, 0.3])) + 1
        if len(ids) - count < MIN_ROWS:
            return False
        first = self.random.randrange(len(ids) - count)
        bounds = ids[first], ids[first + count - 1]
        if in_place:
            self._delete_positions(*bounds)
        else:
            self.table.delete(_between(*bounds))
        return True

    def _delete_positions(self, first: int, last: int) -> None:
        """Delete rows by the positions that they have in their files."""
        positions = {}
        for task in self.table.scan().plan_files():
            ids = self._read(task.file.file_path, "id")
            hit = (ids >= first) & (ids <= last)
            for file in task.delete_files:
                hit[self._read(file.file_path, "pos")] = False  # each is of one data file
            if hit.any():
                positions[task.file.file_path] = np.flatnonzero(hit)
        append_position_deletes(self.table, positions)
        self.table.refresh()

    def _compact(self) -> bool:
        self.table.overwrite(self._rows().cast(self.table.schema().as_arrow()))
        return True

    # -------------------------------------------------------------------------------------------------------- parts

    def _drawn_definition(self) -> IndexDefinition:
        draw = self.random.choice
        if self.random.random() < 0.15:
            metric = draw(["l2", "cosine"])
            return IndexDefinition(name="i0", column="embedding", metric=metric, method="centroid")
        return IndexDefinition(
            name="i0",
            column="embedding",
            metric=draw(["l2", "l2", "cosine", "ip"]),
            vectors=draw(["f32", "f32", "f16", "rq8", "none"]),
            cells=draw(["none", "none", "sq8"]),
            max_degree=draw([12, 24]),
            search_list=48,
            shards=draw([1, 2, 4, 8]),
            target_recall=0.8,
            max_deltas=draw([4, 1, 0]),
            delta_share=draw([0.25, 1.0]),
            pq_m=8,
        )

    def _queries(self, vectors: Vectors, dims: int) -> Vectors:
        """f32[QUERIES, dims] near to rows, as the gate takes rows."""
        if not len(vectors):
            return np.ones((QUERIES, dims), np.float32)
        near = vectors[self.numpy.integers(0, len(vectors), QUERIES)]
        noise = 0.05 * vectors.std(axis=0) * self.numpy.standard_normal((QUERIES, dims))
        return (near + noise).astype(np.float32)

    def _rows(self) -> pa.Table:
        """The head's rows, read once: by PyIceberg's own scan."""
        metadata = self.table.refresh().metadata
        state = metadata.current_snapshot_id, metadata.current_schema_id
        if self._scanned is None or self._scanned[0] != state:
            self._scanned = state, self.table.scan().to_arrow(), {}
        return self._scanned[1]

    def _vectors(self, column: str) -> dict[int, list[float] | None]:
        """The head's vectors, by the ids of their rows."""
        rows = self._rows()
        assert self._scanned is not None
        if column not in self._scanned[2]:
            self._scanned[2][column] = dict(zip(rows["id"].to_pylist(), rows[column].to_pylist(), strict=True))
        return self._scanned[2][column]

    def _read(self, path: str, column: str) -> npt.NDArray[np.int64]:
        with self.table.io.new_input(path).open() as file:
            return np.asarray(pq.read_table(file, columns=[column])[column], np.int64)


def _between(first: int, last: int) -> BooleanExpression:
    return And(GreaterThanOrEqual("id", first), LessThanOrEqual("id", last))
