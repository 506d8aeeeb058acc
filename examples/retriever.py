"""A LangChain retriever over a table: documents for a prompt, each with the snapshot that it was read from."""

from typing import Any

import numpy as np
from lake import packages
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever

import icepuffin


class TableRetriever(BaseRetriever):
    """The nearest rows of an indexed table as documents. `embeddings` must be the model that the column was made by."""

    reader: Any
    embeddings: Embeddings
    k: int = 4

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        result = self.reader.search(self.embeddings.embed_query(query), self.k, columns=["name", "description"])
        source = {"snapshot": result.snapshot_id}
        return [Document(row["description"], metadata={**row, **source}) for row in result]


class WordsOfTheTable(Embeddings):
    """Stands in for a model, so that the example needs no download: the mean of rows whose text has the word."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        rows = packages().scan(selected_fields=("description", "embedding")).to_arrow()
        chosen = [text.lower() in words.lower() for words in rows["description"].to_pylist()]
        return list(np.mean(rows.filter(chosen)["embedding"].to_pylist(), axis=0))


def main() -> None:
    retriever = TableRetriever(reader=icepuffin.open_index(packages()), embeddings=WordsOfTheTable())
    for document in retriever.invoke("relational database"):
        print(f"{document.metadata['name']}: {document.page_content}")


if __name__ == "__main__":
    main()
