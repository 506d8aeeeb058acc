"""What try_containers.py runs inside of the service `code`: `python - append ROWS | state | search`. Prints JSON."""

import json
import sys
from contextlib import suppress

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.table import Table

import icepuffin
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.theta.ndv import read_ndv
from icepuffin.orchestration.settings import load

NAME, INDEX = "demo.packages", "embedding"
DIMS, QUERIES, K = 32, 50, 10
SMALL_FILES = {"write.target-file-size-bytes": str(4 << 20)}
"""Several data files in an append: the first stage of a build is divided by files"""


def main() -> None:
    catalog = load_catalog("lake", **load().catalogs["lake"].properties)
    action, *arguments = sys.argv[1:]
    if action == "append":
        result = append(catalog, int(arguments[0]))
    else:
        result = {"state": state, "search": search}[action](catalog)
    sys.stdout.write(json.dumps(result) + "\n")


def append(catalog: Catalog, rows: int) -> dict[str, object]:
    """Append rows with new ids and vectors in clusters; make the table where there is none."""
    try:
        table, first = catalog.load_table(NAME), row_count(catalog.load_table(NAME))
    except NoSuchTableError:
        table, first = None, 0
    random = np.random.default_rng(first)
    centers = np.random.default_rng(7).standard_normal((256, DIMS))
    vectors = (centers[random.integers(256, size=rows)] + 0.6 * random.standard_normal((rows, DIMS))).astype("f4")
    offsets = pa.array(np.arange(0, vectors.size + 1, DIMS, np.int32))
    column = pa.ListArray.from_arrays(offsets, pa.array(vectors.reshape(-1)))
    batch = pa.table({"id": pa.array(np.arange(first, first + rows)), "embedding": column})
    if table is None:
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace("demo")
        table = catalog.create_table(NAME, schema=batch.schema, properties=SMALL_FILES)
    table.append(batch)
    return {"snapshot": str(head(table)), "rows": row_count(table)}


def state(catalog: Catalog) -> dict[str, object]:
    """The newest snapshot, the snapshots that have a version of the index, and those columns whose NDV is fresh."""
    table = catalog.load_table(NAME)
    versions = [str(version.base_snapshot_id) for version in index_versions(table, INDEX)]
    fresh = [name for name, entry in read_ndv(table).entries.items() if entry.fresh]
    return {"snapshot": str(head(table)), "rows": row_count(table), "versions": versions, "fresh": fresh}


def search(catalog: Catalog) -> dict[str, object]:
    """Recall@10 of the index against all rows, by NumPy; rows of the table; ids that are twice or missing in it."""
    table = catalog.load_table(NAME)
    rows = table.scan().to_arrow().combine_chunks()
    ids = rows["id"].to_numpy()
    vectors = np.asarray(rows["embedding"].combine_chunks().flatten()).reshape(-1, DIMS)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    random = np.random.default_rng(1)
    noise = 0.1 * random.standard_normal((QUERIES, DIMS))
    queries = (vectors[random.integers(len(vectors), size=QUERIES)] + noise).astype("f4")
    scores = queries @ unit.T
    nearest = [set(ids[np.argpartition(-score, K)[:K]]) for score in scores]
    result = icepuffin.open_index(table, INDEX).search(queries, k=K, columns=["id"])
    answers: list[set[int]] = [set() for _ in range(QUERIES)]
    for row in result.rows.to_pylist():
        answers[row["query"]].add(row["id"])
    correct = sum(len(answer & truth) for answer, truth in zip(answers, nearest, strict=True))
    return {
        "recall": correct / (QUERIES * K),
        "coverage": str(result.coverage),
        "rows": len(ids),
        "distinct": len(np.unique(ids)),
    }


def row_count(table: Table) -> int:
    return sum(task.file.record_count for task in table.scan().plan_files())


def head(table: Table) -> int:
    snapshot = table.current_snapshot()
    if snapshot is None:
        sys.exit(f"{NAME} has no snapshot")
    return snapshot.snapshot_id


if __name__ == "__main__":
    main()
