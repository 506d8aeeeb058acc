"""A process that warms the kernels, then builds and searches: `python -m tests.ops.process.kernel_cache_use FOLDER`.

Prints JSON: the kernels that met types of arguments for which `icepuffin.ops.process.kernel_cache` had not compiled
them, and those that the cache does not hold for all types that it compiled.
"""

import gc
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numba.core.dispatcher import Dispatcher

import icepuffin
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.process import kernel_cache
from tests.orchestration.lake import DIMS, make_lake

METRICS = ("cosine", "l2", "ip")
INDEXES = (*((metric, metric, "f32") for metric in METRICS), ("f16", "l2", "f16"), ("rq4", "l2", "rq4"))
QUERIES = np.random.default_rng(1).standard_normal((16, DIMS)).astype(np.float32)  # more than are compared in place


def main() -> None:
    lake = make_lake(Path(sys.argv[1]), snapshots=1)
    table = lake.table.refresh()
    for name, metric, vectors in INDEXES:
        definition = IndexDefinition(name=name, column="embedding", metric=metric, vectors=vectors, filters=("name",))
        icepuffin.create_index(table, definition)
    rows = table.scan().to_arrow()
    column = rows["embedding"].cast(pa.list_(pa.float64()))
    doubles = lake.catalog.create_table("demo.doubles", pa.schema([("embedding", column.type)]))
    doubles.append(pa.table({"embedding": column}))
    earlier = compiled()
    kernel_cache.main()
    for part in kernel_cache.PARTS:
        part()
    uncached = {name: forms - earlier.get(name, set()) for name, forms in compiled().items()}
    before = signatures()
    icepuffin.refresh(table)
    lake.append()
    icepuffin.refresh(table)
    lake.table.refresh().delete("id < 9")
    icepuffin.refresh(table.refresh())  # recall without the nodes of the rows that are gone
    table.refresh()
    for name, metric, _ in INDEXES:
        reader = icepuffin.open_index(table, name)
        reader.search(QUERIES, k=3)
        reader.search(QUERIES[0], k=3)
        reader.search(QUERIES, k=3, where="name = 'package 1'")
        reader.search(QUERIES, k=3, where=["name = 'package 1'"] * len(QUERIES))
        reader.within(QUERIES[0], 0.3)
        reader = icepuffin.open_exact(doubles, "embedding", metric)
        reader.search(QUERIES, k=3)
        reader.search(QUERIES[0], k=3)
        reader.within(QUERIES[0], 0.3)
    after = signatures()
    missing = {name: (after[name] - before.get(name, set())) | uncached[name] for name in after}
    sys.stdout.write("\n" + json.dumps({name: sorted(types) for name, types in missing.items() if types}) + "\n")


def kernels() -> dict[str, Any]:
    """The kernels by their names."""
    every: list[Any] = [found for found in gc.get_objects() if isinstance(found, Dispatcher)]
    ours = [kernel for kernel in every if kernel.py_func.__module__.startswith("icepuffin.")]
    return {f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}": kernel for kernel in ours}


def signatures() -> dict[str, set[str]]:
    """Kernel -> the types of arguments that its compiled forms take."""
    return {name: {str(types) for types in kernel.signatures} for name, kernel in kernels().items()}


def compiled() -> dict[str, set[str]]:
    """The same, of the forms that this process has compiled."""
    return {name: {str(types) for types in kernel.stats.cache_misses} for name, kernel in kernels().items()}


if __name__ == "__main__":
    main()
