"""Hybrid search: BM25 by Tantivy's full-text index and nearest rows by ours, fused by reciprocal rank."""

import pyarrow as pa
import tantivy
from lake import packages

import icepuffin

DEPTH = 50
CONSTANT = 60  # Cormack, Clarke, Buettcher: Reciprocal Rank Fusion (SIGIR 2009)


def main() -> None:
    table = packages()
    reader = icepuffin.open_index(table)
    query = table.scan("name = 'postgresql'").to_arrow()["embedding"][0].as_py()
    by_vector = [row["id"] for row in reader.search(query, DEPTH, columns=["id"])]

    # the same snapshot for both rankings
    texts = table.scan(selected_fields=("id", "name", "description"), snapshot_id=reader.snapshot_id).to_arrow()
    by_words = ranked_by_words(texts, "database server")

    scores: dict[int, float] = {}
    for ranking in (by_vector, by_words):
        for rank, number in enumerate(ranking, start=1):
            scores[number] = scores.get(number, 0.0) + 1 / (CONSTANT + rank)
    names = dict(zip(texts["id"].to_pylist(), texts["name"].to_pylist(), strict=True))
    for number in sorted(scores, key=scores.__getitem__, reverse=True)[:10]:
        print(f"{scores[number]:.4f}  {names[number]}")


def ranked_by_words(texts: pa.Table, words: str) -> list[int]:
    schema = tantivy.SchemaBuilder().add_integer_field("id", stored=True).add_text_field("text").build()
    index = tantivy.Index(schema)
    writer = index.writer()
    for row in texts.to_pylist():
        writer.add_document(tantivy.Document(id=row["id"], text=f"{row['name']} {row['description']}"))
    writer.commit()
    index.reload()
    searcher = index.searcher()
    hits = searcher.search(index.parse_query(words, ["text"]), DEPTH).hits
    return [searcher.doc(address)["id"][0] for _, address in hits]


if __name__ == "__main__":
    main()
