"""LangChain over a table: its rows as documents, for a prompt, under a condition, and as it was."""

import numpy as np
from lake import packages
from langchain_core.embeddings import Embeddings

from icepuffin.langchain import IcepuffinVectorStore


class WordsOfTheTable(Embeddings):
    """Stands in for a model, so that the example needs no download: the mean of rows whose text has the word."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        rows = packages().scan(selected_fields=("description", "embedding")).to_arrow()
        chosen = [text.lower() in words.lower() for words in rows["description"].to_pylist()]
        return list(np.mean(rows.filter(chosen)["embedding"].to_pylist(), axis=0))


def main() -> None:
    columns = {"text_column": "description", "metadata_column": None, "metadata_columns": ["name", "section"]}
    store = IcepuffinVectorStore(packages(), WordsOfTheTable(), **columns)
    for document in store.as_retriever().invoke("relational database"):
        print(f"{document.metadata['name']}: {document.page_content}")
    found = store.similarity_search("relational database", k=2, filter="section = 'web'")
    print("for the web:", ", ".join(document.metadata["name"] for document in found))
    store.close()


if __name__ == "__main__":
    main()
