"""The way of a search by words: what is asked of them, alone or beside vectors, and the answer of both."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from icepuffin.ann_kernels.arrays import F64
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ops.index.definitions.definition_columns import has_texts, resolve_columns
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

_DEPTH = 100
"""Rows of each list that are fused, at least"""
_EMPTY = np.empty(0, np.int64)
_NO_ROWS = RankedRows(_EMPTY, _EMPTY, np.empty(0))


def texts_of(text: str | Sequence[str], text_weight: float | None, queries: int | None) -> list[str]:
    """The texts of a search, one a query. `queries`: number of its vectors; None without any. Raises QueryError."""
    texts = [text] if isinstance(text, str) else list(text) if isinstance(text, Iterable) else []
    if not texts or not all(isinstance(each, str) for each in texts):
        raise QueryError(f"text is {text!r:.80}; it is words to search for, or a list of such texts, one per query")
    if queries is not None and len(texts) != queries:
        raise QueryError(f"{len(texts)} texts for {queries} vectors: give one text per vector")
    if text_weight is not None and not 0 <= text_weight <= 1:
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
    def _index(self) -> TextIndex:
        """Raises QueryError where no words are indexed, RestrictedTableError where a column is masked."""
        target, definition = self._target, self._target.definition
        if definition is None or not definition.text:
            what = "there is no index" if definition is None else f"index {definition.name} is of vectors alone"
            raise QueryError(
                f"{what}, so that no words can be searched for: make one with columns of texts, such as "
                "text = ['title'], and refresh it"
            )
        columns = {field.field_id: field.name for field in target.schema.fields if has_texts(field)}
        ids = resolve_columns(definition, "text", target.schema, table_name(target.table))
        present = {field_id: columns[field_id] for field_id in ids if field_id in columns}
        if target.restriction is not None:
            target.restriction.require_visible(present.values())
        find = self._pipeline.conditions.matches
        return TextIndex(
            self._choice.opened, target.live, target.schema, target.storage, definition.analyzer, tuple(present),
            self._files, lambda: find(None, StageClock()),
        )  # fmt: skip

    def best(
        self,
        vectors: F64 | None,
        texts: Sequence[str],
        request: RowsRequest,
        where: Condition | list[Condition | None] | None,
        text_weight: float | None,
        costs: SearchCosts,
    ) -> tuple[Answer, dict[str, pa.Array]]:
        """(the k best rows of each query, their columns beside query and rank): by words, or by words and vectors.

        Raises QueryError, IndexUnavailableError, DataFileError, StorageError.
        """
        index, depth, nearest = self._index, request.k, None
        if vectors is not None:
            depth = min(max(_DEPTH, 2 * depth), max(depth, index.rows))
            nearest = self._pipeline.nearest(vectors, replace(request, k=depth), where, costs)
        conditions = where if isinstance(where, list) else [where] * len(texts)
        found: list[TextAnswer] = []
        for text, condition in zip(texts, conditions, strict=True):
            matches = self._pipeline.conditions.matches(condition, costs.clock)
            found.append(index.best(text, depth, matches))
            costs.clock.lap("words")
        costs.add_bytes(words=sum(each.bytes_read for each in found))
        parts = []
        for number, each in enumerate(found):
            by_vector = _NO_ROWS if nearest is None else _ranked(nearest, number)
            by_words = RankedRows(each.files, each.positions, each.scores)
            parts.append(fuse(by_vector, by_words, request.k, 1.0 if nearest is None else text_weight))
        hits, columns = answer_columns(parts, hybrid=nearest is not None)
        warnings = tuple(dict.fromkeys(warning for each in found for warning in each.warnings))
        if nearest is None:
            columns["score"] = pa.array(np.concatenate([part.text_scores for part in parts]), pa.float64())
            profile = Profile(
                why=self._choice.why, strategy="words", shards=0, nodes_expanded=0, distances=0,
                tail_rows=index.scanned_rows, milliseconds=costs.milliseconds, queries=len(texts),
                bytes_read=costs.bytes_read, included_rows=costs.included_rows, tail=index.scanned,
            )  # fmt: skip
            return Answer(hits, profile, warnings), columns
        profile = replace(nearest.profile, strategy=f"{nearest.profile.strategy} + words")
        return Answer(hits, profile, (*nearest.warnings, *warnings)), columns


def _ranked(nearest: Answer, query: int) -> RankedRows:
    """The rows of one query."""
    own = nearest.hits.queries == query
    return RankedRows(nearest.hits.files[own], nearest.hits.positions[own], nearest.hits.distances[own])
