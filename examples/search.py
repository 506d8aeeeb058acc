"""Search a table: nearest rows, with a condition, within a distance, and what the answer says of itself."""

from lake import packages

import icepuffin


def main() -> None:
    table = packages()
    reader = icepuffin.open_index(table)
    print(reader)

    query = table.scan("name = 'postgresql'").to_arrow()["embedding"][0].as_py()

    print("\nthe nearest five")
    result = reader.search(query, k=5, columns=["name", "section"])
    print(result.to_pandas())

    print("\nthe nearest five web servers")
    print(reader.search(query, k=5, columns=["name", "section"], where="section = 'httpd'").to_pandas())

    print("\nevery package within cosine distance 0.35")
    for row in reader.within(query, 0.35, columns=["name"]):
        print(f"{row['distance']:.3f}  {row['name']}")

    print("\nhow the first answer was made")
    print(result.explain())


if __name__ == "__main__":
    main()
