"""Search a table as it was: each snapshot has the index version that was made for it."""

from lake import packages

import icepuffin


def main() -> None:
    table = packages()
    query = table.scan("name = 'postgresql'").to_arrow()["embedding"][0].as_py()
    before = icepuffin.open_index(table)
    nearest = [row["name"] for row in before.search(query, k=5, columns=["name"])]

    print(f"deleting {nearest[1]}")
    table.delete(f"name = '{nearest[1]}'")
    icepuffin.refresh(table)

    for snapshot in (None, before.snapshot_id):  # a tag, a branch or a time will do as well
        reader = icepuffin.open_index(table, snapshot=snapshot)
        names = [row["name"] for row in reader.search(query, k=5, columns=["name"])]
        print(f"snapshot {reader.snapshot_id}, {reader.coverage}: {', '.join(names)}")


if __name__ == "__main__":
    main()
