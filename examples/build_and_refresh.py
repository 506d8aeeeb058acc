"""Build an index by hand, change the table, and refresh the index at the cost of the change."""

from pathlib import Path

from lake import catalog, rows

import icepuffin

NAME = "demo.refreshed"


def main() -> None:
    lake = catalog(Path("lake"))
    lake.create_namespace_if_not_exists("demo")
    if lake.table_exists(NAME):
        lake.purge_table(NAME)
    everything = rows()
    table = lake.create_table(NAME, everything.schema, properties={"format-version": "2"})
    table.append(everything.slice(0, 5_500))

    icepuffin.create_index(table, icepuffin.IndexDefinition(name="embedding", column="embedding"))
    changes = (
        ("5,500 rows", lambda: None),
        ("an append of 500 rows", lambda: table.append(everything.slice(5_500))),
        ("the games are deleted", lambda: table.delete("section = 'games'")),
    )
    for what, change in changes:
        change()
        index = icepuffin.refresh(table).indexes["embedding"]
        print(f"{what}: {index.action}, {index.rows:,} rows, recall {index.recall:.3f}, {index.seconds:.2f} s")
        print(f"  inserted {index.inserted:,}, tombstones {index.tombstones:,}, wrote {index.bytes_written:,} bytes")

    print("\ndistinct values (estimates), for query planners")
    for name, column in icepuffin.read_ndv(table).entries.items():
        print(f"{name:>12}  {column.ndv:,}{'' if column.fresh else ', not fresh: ' + column.why}")


if __name__ == "__main__":
    main()
