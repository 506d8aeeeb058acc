"""Hybrid search: rows by words, by vectors, and by both, as of one snapshot."""

from lake import packages

import icepuffin


def main() -> None:
    table = packages()
    reader = icepuffin.open_index(table)  # whose definition in lake.py has text=("name", "description")
    query = table.scan("name = 'postgresql'").to_arrow()["embedding"][0].as_py()

    for row in reader.search(text="database servers", k=3, columns=["name"]):
        print(f"by words {row['score']:.2f}  {row['name']}")
    for row in reader.search(query, 10, text="database servers", columns=["name"]):
        print(f"{row['score']:.4f}  vector {row['vector_rank']}, words {row['text_rank']}  {row['name']}")


if __name__ == "__main__":
    main()
