"""The way of a search by words: what is asked of them, alone or beside vectors, and the answer of both."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from icepuffin.ann_kernels.arrays import F64
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ops.filters.matches import Matches
from icepuffin.ops.index.definitions.definition_columns import has_texts, resolve_columns
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.model import FileNumber
from icepuffin.ops.process.stage_clock import StageClock
from icepuffin.ops.search.arguments import Condition
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.fusion import RankedRows, answer_columns, fuse
from icepuffin.ops.search.pipeline import Answer, RowsRequest, SearchPipeline
from icepuffin.ops.search.result import Profile, SearchCosts
from icepuffin.ops.search.target import SearchTarget, VersionChoice
from icepuffin.ops.table.snapshots import table_name
from icepuffin.ops.text.text_index import TextAnswer, TextIndex
from icepuffin.ops.text.word_condition import HasWord

_DEPTH = 100
"""Rows of each list that are fused, at least"""
_EMPTY = np.empty(0, np.int64)
_NO_ROWS = RankedRows(_EMPTY, _EMPTY, np.empty(0))


def texts_of(
    text: str | Sequence[str] | None, text_weight: float | None, columns: Sequence[str] | None, queries: int | None
) -> list[str] | None:
    """The texts of a search, one a query; None without any. `queries`: number of its vectors. Raises QueryError."""
    if text is None:
        if columns is not None or text_weight is not None:
            raise QueryError("text_columns and text_weight are for a text: give one, or leave them out")
        return None
    texts = [text] if isinstance(text, str) else list(text) if isinstance(text, Iterable) else []
    if not texts or not all(isinstance(each, str) for each in texts):
        raise QueryError(f"text is {text!r:.80}; it is words to search for, or a list of such texts, one per query")
    if queries is not None and len(texts) != queries:
        raise QueryError(f"{len(texts)} texts for {queries} vectors: give one text per vector")
    if text_weight is not None and not (isinstance(text_weight, int | float | np.number) and 0 <= text_weight <= 1):
        raise QueryError(f"text_weight is {text_weight!r}; it is a share from 0 to 1, or None to fuse by ranks")
    if text_weight is not None and queries is None:
        raise QueryError("text_weight weighs words against vectors: give a vector, too, or leave it out")
    return texts


class TextSearch:
    """Searches by words of the snapshot of a pipeline. Thread-safe."""

    def __init__(
        self, target: SearchTarget, choice: VersionChoice, pipeline: SearchPipeline, files: Sequence[FileNumber]
    ) -> None:
        self._target = target
        self._choice = choice
        self._pipeline = pipeline
        self._files = files

    @cached_property
    def _definition(self) -> IndexDefinition:
        """Raises QueryError where no words are indexed."""
        definition = self._target.definition
        if definition is None or not definition.text:
            what = "there is no index" if definition is None else f"index {definition.name} is of vectors alone"
            raise QueryError(
                f"{what}, so that no words can be searched for: make one with columns of texts, such as "
                "text = ['title'], and refresh it"
            )
        return definition

    @cached_property
    def _columns(self) -> dict[str, int]:
        """Field ids of the columns with words, by name."""
        target = self._target
        columns = {field.field_id: field.name for field in target.schema.fields if has_texts(field)}
        ids = resolve_columns(self._definition, "text", target.schema, table_name(target.table))
        return {columns[field_id]: field_id for field_id in ids if field_id in columns}

    def _field_ids(self, columns: Sequence[str] | None) -> list[int]:
        """Field ids of some of the columns with words. Raises QueryError, RestrictedTableError."""
        names = list(self._columns) if columns is None else columns
        if isinstance(names, str) or (columns is not None and not names):
            raise QueryError(f"text_columns is {names!r}; it is a list of columns with words, or None for all of them")
        if unknown := [name for name in names if name not in self._columns]:
            raise QueryError(f"text_columns names {unknown[0]!r}; the index has words of: {', '.join(self._columns)}")
        if self._target.restriction is not None:
            self._target.restriction.require_visible(names)
        return [self._columns[name] for name in dict.fromkeys(names)]

    def having(self, condition: HasWord) -> Matches:
        """The rows that satisfy a condition on words. Raises QueryError, RestrictedTableError, DataFileError."""
        return self._index.having(condition.text, self._field_ids(condition.columns))

    @cached_property
    def _index(self) -> TextIndex:
        target, find = self._target, self._pipeline.conditions.matches
        return TextIndex(
            self._choice.opened, target.live, target.schema, target.storage, self._definition.analyzer, self._files,
            lambda: find(None, StageClock()),
        )  # fmt: skip

    def best(
        self,
        vectors: F64 | None,
        texts: Sequence[str],
        request: RowsRequest,
        where: Condition | list[Condition | None] | None,
        costs: SearchCosts,
        text_weight: float | None,
        columns: Sequence[str] | None,
    ) -> tuple[Answer, dict[str, pa.Array]]:
        """(the k best rows of each query, their columns beside query and rank): by words, or by words and vectors.

        Raises QueryError, IndexUnavailableError, DataFileError, StorageError.
        """
        field_ids, index, depth, nearest = self._field_ids(columns), self._index, request.k, None
        if vectors is not None:
            depth = min(max(_DEPTH, 2 * depth), max(depth, index.rows))
            nearest = self._pipeline.nearest(vectors, replace(request, k=depth), where, costs)
        conditions = where if isinstance(where, list) else [where] * len(texts)
        found: list[TextAnswer] = []
        warnings: dict[str, None] = {}
        if gone := len(self._definition.text) - len(self._columns):
            of_index = ", ".join(self._definition.text)
            warnings[f"the snapshot lacks {gone} of the columns with words, which are {of_index}"] = None
        for text, condition in zip(texts, conditions, strict=True):
            matches = self._pipeline.conditions.matches(condition, costs.clock)
            found.append(index.best(text, depth, matches, field_ids))
            warnings |= dict.fromkeys((*(matches.warnings if matches else ()), *found[-1].warnings))
            costs.clock.lap("words")
        costs.add_bytes(words=sum(each.bytes_read for each in found))
        parts = []
        for number, each in enumerate(found):
            by_vector = _NO_ROWS if nearest is None else _ranked(nearest, number)
            by_words = RankedRows(each.files, each.positions, each.scores)
            parts.append(fuse(by_vector, by_words, request.k, 1.0 if nearest is None else text_weight))
        hits, values = answer_columns(parts, hybrid=nearest is not None)
        if nearest is None:
            profile = Profile(
                why=self._choice.why, strategy="words", shards=0, nodes_expanded=0, distances=0,
                tail_rows=index.scanned_rows, milliseconds=costs.milliseconds, queries=len(texts),
                bytes_read=costs.bytes_read, included_rows=costs.included_rows, tail=index.scanned,
            )  # fmt: skip
            return Answer(hits, profile, tuple(warnings)), values
        profile = replace(nearest.profile, strategy=f"{nearest.profile.strategy} + words")
        return Answer(hits, profile, tuple(dict.fromkeys((*nearest.warnings, *warnings)))), values


def _ranked(nearest: Answer, query: int) -> RankedRows:
    """The rows of one query."""
    own = nearest.hits.queries == query
    return RankedRows(nearest.hits.files[own], nearest.hits.positions[own], nearest.hits.distances[own])
