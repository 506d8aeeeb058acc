"""A LangChain vector store over an indexed table. Needs `pip install 'icepuffin[langchain]'`; nothing imports this."""

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import BooleanExpression, In
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, StringType

from icepuffin import FollowingReader, IndexReader, open_index
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.catalog.read_restrictions import pyiceberg_table, require_unrestricted
from icepuffin.ops.errors import ArgumentError
from icepuffin.ops.imports import remedy
from icepuffin.ops.index.definitions.ddl import load_definition, only_index
from icepuffin.ops.index.definitions.definition_columns import resolve_field
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.table.snapshots import SnapshotName, schema_at, table_name

try:
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import VectorStore
    from langchain_core.vectorstores.utils import maximal_marginal_relevance
except ModuleNotFoundError as error:
    if not remedy(error):
        raise
    raise ModuleNotFoundError(f"icepuffin.langchain needs {error.name}: {remedy(error)}", name=error.name) from error

_log = logging.getLogger(__name__)


class IcepuffinVectorStore(VectorStore):
    """Rows of an Iceberg table as LangChain's documents, searched by an index of the table.

    It follows the table: what others write is found after `interval` seconds at most, what it writes itself at once.
    `close` it where the process goes on. It is safe for threads. What answers warn of is logged. All searches take
    `filter`, an Iceberg row filter such as "section = 'web'", and the options of `IndexReader.search`.

    Parameters
    ----------
    table : pyiceberg.table.Table
        The table, loaded from its catalog.
    embedding : Embeddings
        The model that the vector column is made by.
    index : str, optional
        Name of the index. Default: the only one that the table has.
    id_column, text_column : str
        Columns of ids, which are strings or whole numbers, and of texts.
    metadata_column : str, optional
        Column of strings for metadata, each a JSON object; None where the table has none.
    metadata_columns : sequence of str
        Columns for the metadata of their names, which filters can name.
    words : bool
        Whether a query is searched for by its words, too, in the index's columns of texts.
    snapshot : int, str or datetime, optional
        Snapshot id, branch, tag or time to read; such a store writes nothing. Default: the head of `main`.
    interval : float
        Seconds from one look for newer snapshots to the next.

    Raises
    ------
    ArgumentError
        The table lacks a column, or has ids of another type.
    """

    def __init__(
        self,
        table: Table,
        embedding: Embeddings,
        index: str | None = None,
        *,
        id_column: str = "id",
        text_column: str = "text",
        metadata_column: str | None = "metadata",
        metadata_columns: Sequence[str] = (),
        words: bool = False,
        snapshot: SnapshotName = None,
        interval: float = 10.0,
    ) -> None:
        self._table, self._name = pyiceberg_table(table, "IcepuffinVectorStore"), table_name(table)
        self._embedding, self._words, self._interval, self._lock = embedding, words, interval, ProcessLock()
        self._id, self._text, self._json, self._own = id_column, text_column, metadata_column, tuple(metadata_columns)
        self._columns = list(dict.fromkeys(filter(None, (id_column, text_column, metadata_column, *metadata_columns))))
        schema = table.schema() if snapshot is None else schema_at(table, snapshot)
        kinds = {field.name: field.field_type for field in schema.fields}
        if missing := [name for name in self._columns if name not in kinds]:
            columns = "id_column, text_column, metadata_column (None for none) and metadata_columns"
            raise ArgumentError(f"{self._name} has no {missing[0]}, but {', '.join(kinds)}: name these by {columns}")
        if not isinstance(kinds[id_column], StringType | IntegerType | LongType):
            kind = kinds[id_column]
            raise ArgumentError(f"{self._name}: {id_column} is {kind}; ids are strings or whole numbers: name others")
        self._ids_are_texts = isinstance(kinds[id_column], StringType)
        self._definition = load_definition(table, only_index(table) if index is None else index)
        self._vector = str(schema.find_column_name(resolve_field(self._definition, schema, self._name)))
        self._reader: IndexReader | FollowingReader[IndexReader] | None = None
        if snapshot is not None:
            self._reader = open_index(table, self._definition.name, snapshot=snapshot)

    @classmethod
    def from_texts(
        cls, texts: list[str], embedding: Embeddings, metadatas: list[dict[str, Any]] | None = None, **options: Any
    ) -> Self:
        """A store to which texts were added. `options`: `ids`, and those of the constructor, `table` among them."""
        ids = options.pop("ids", None)
        store = cls(embedding=embedding, **options)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @property
    def embeddings(self) -> Embeddings:
        """The model."""
        return self._embedding

    def close(self) -> None:
        """Follow the table no more."""
        if isinstance(self._reader, FollowingReader):
            self._reader.close()

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **_: Any,
    ) -> list[str]:
        """Write documents in one commit, and return their ids: a UUID where none is given.

        A document replaces the one that has its id; of several with one id the last counts. Raises ArgumentError for
        values that a column does not take.
        """
        texts = list(texts)
        metadatas = [{} for _ in texts] if metadatas is None else metadatas
        named = [one or str(uuid4()) for one in ([None] * len(texts) if ids is None else ids)]
        if not len(texts) == len(metadatas) == len(named):
            raise ArgumentError(f"{len(texts)} texts, {len(metadatas)} metadatas, {len(named)} ids: give one of each")
        if texts:
            last = {one: (text, metadata) for one, text, metadata in zip(named, texts, metadatas, strict=True)}
            vectors = self._embedding.embed_documents([text for text, _ in last.values()])
            with self._writing():
                rows = self._arrow(last, vectors)
                there = self._having([one for one in ids or () if one])
                if self._rows(there, [self._id]):
                    self._table.overwrite(rows, there)
                else:
                    self._table.append(rows)
        return named

    def delete(self, ids: list[str] | None = None, **_: Any) -> bool:
        """Delete the documents that have these ids, in one commit. Raises ArgumentError without ids."""
        if ids is None:
            raise ArgumentError("delete takes ids; to delete all rows, call delete() of the PyIceberg table")
        with self._writing():
            if self._rows(there := self._having(ids), [self._id]):
                self._table.delete(there)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents that have these ids, in any order."""
        with self._lock:
            return [self._document(row) for row in self._rows(self._having(ids), self._columns)]

    def similarity_search_with_score(self, query: str, k: int = 4, **options: Any) -> list[tuple[Document, float]]:
        """The nearest documents and their distances; by words, too, the best documents and their scores."""
        vector, words = self._embedding.embed_query(query), query if self._words else None
        return [(self._document(row), score) for row, score in self._search(vector, k, words, **options)]

    def similarity_search(self, query: str, k: int = 4, **options: Any) -> list[Document]:
        """The documents of `similarity_search_with_score`."""
        return [document for document, _ in self.similarity_search_with_score(query, k, **options)]

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **options: Any) -> list[Document]:
        """The documents nearest to a vector."""
        return [self._document(row) for row, _ in self._search(embedding, k, **options)]

    def max_marginal_relevance_search(self, query: str, *arguments: Any, **options: Any) -> list[Document]:
        """`max_marginal_relevance_search_by_vector` with the vector of a query."""
        return self.max_marginal_relevance_search_by_vector(self._embedding.embed_query(query), *arguments, **options)

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **options: Any
    ) -> list[Document]:
        """Of the `fetch_k` nearest documents `k` that are unlike each other: with `lambda_mult` 1 the nearest."""
        rows = [row for row, _ in self._search(embedding, fetch_k, with_vectors=True, **options)]
        vectors = [row[self._vector] for row in rows]
        chosen = maximal_marginal_relevance(np.array(embedding), vectors, lambda_mult, k)
        return [self._document(rows[place]) for place in chosen]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        if self._words or self._definition.metric is not Metric.COSINE:
            raise ArgumentError("relevance is the cosine of an index by it, without words: search without a threshold")
        return self._cosine_relevance_score_fn

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A block that commits to the table as it is now; what it committed is found at once."""
        if isinstance(self._reader, IndexReader):
            raise ArgumentError(
                f"this store reads snapshot {self._reader.snapshot_id}: write by one without `snapshot`"
            )
        with self._lock:
            yield
            if self._reader is not None:
                self._reader.update()

    def _arrow(self, documents: Mapping[str, tuple[str, dict[str, Any]]], vectors: list[list[float]]) -> pa.Table:
        """Rows of the table, which is refreshed. `documents`: text and metadata by id."""
        texts, metadatas = zip(*documents.values(), strict=True)
        values: dict[str, Any] = {name: [metadata.get(name) for metadata in metadatas] for name in self._own}
        values |= {self._id: pa.array(documents), self._text: texts, self._vector: vectors}
        others = [{name: it for name, it in metadata.items() if name not in self._own} for metadata in metadatas]
        if self._json is not None:
            values[self._json] = [json.dumps(metadata) for metadata in others]
        elif left := sorted({name for metadata in others for name in metadata}):
            raise ArgumentError(f"no column takes the metadata {', '.join(left)}: name it in metadata_columns")
        schema, arrays = schema_to_pyarrow(self._table.refresh().schema(), include_field_ids=False), {}
        for name, column in values.items():
            kind = schema.field(name).type
            try:
                arrays[name] = column.cast(kind) if isinstance(column, pa.Array) else pa.array(column, kind)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                raise ArgumentError(f"{self._name}: {name} takes {kind}, give such values: {error}") from error
        return pa.table(arrays, pa.schema([schema.field(name) for name in arrays]))

    def _having(self, ids: Sequence[str]) -> BooleanExpression:
        """The condition of having one of these ids. A text that is no number is the id of no row."""
        keys = ids if self._ids_are_texts else [int(one) for one in ids if re.fullmatch(r"-?[0-9]{1,18}", one)]
        return In(term=self._id, literals=set(keys))

    def _rows(self, condition: BooleanExpression, columns: Sequence[str]) -> list[dict[str, Any]]:
        """The rows of the store's snapshot under a condition. Raises RestrictedTableError."""
        require_unrestricted(self._table)  # PyIceberg's scans show what the catalog hides
        at = self._reader.snapshot_id if isinstance(self._reader, IndexReader) else None
        scan = self._table.refresh().scan(condition, selected_fields=tuple(columns), snapshot_id=at)
        rows: list[dict[str, Any]] = scan.to_arrow().to_pylist()
        return rows

    def _search(
        self,
        vector: list[float],
        k: int,
        words: str | None = None,
        *,
        filter: str | BooleanExpression | None = None,  # noqa: A002  LangChain's word
        with_vectors: bool = False,
        **options: Any,
    ) -> list[tuple[dict[str, Any], float]]:
        """(columns, distance or score) of the rows that are found; none of a table without a snapshot."""
        with self._lock:
            if self._reader is None and self._table.refresh().current_snapshot() is not None:
                self._reader = open_index(self._table, self._definition.name).follow(interval=self._interval)
        if self._reader is None:
            return []
        columns = list(dict.fromkeys([*self._columns, self._vector])) if with_vectors else self._columns
        result = self._reader.search(vector, k, text=words, columns=columns, where=filter, **options)
        for warning in result.warnings:
            _log.warning("%s: %s", self._name, warning)
        scores = result.rows["distance" if words is None else "score"].to_pylist()
        width = result.rows.num_columns
        rows = result.rows.select(range(width - len(columns), width)).rename_columns(columns)  # one may be a "distance"
        return list(zip(rows.to_pylist(), scores, strict=True))

    def _document(self, row: dict[str, Any]) -> Document:
        metadata = {} if self._json is None else json.loads(row[self._json] or "{}")
        metadata |= {name: row[name] for name in self._own if row[name] is not None}
        return Document(id=str(row[self._id]), page_content=row[self._text] or "", metadata=metadata)
