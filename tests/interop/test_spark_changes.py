"""Whatever Spark does to a table: a search answers as brute force over Spark's own rows, before and after a refresh."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from icepuffin.ops.index.definitions.ddl import create_index, load_definition
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.table.live_files import live_files
from tests.draws import amount
from tests.interop import changes as by
from tests.interop.changes import Lake
from tests.selection import some

pytestmark = [pytest.mark.jvm, pytest.mark.services]

CHANGES: list[Callable[[Lake], None]] = [
    by.insert,
    by.delete,
    by.update,
    by.update_vectors,
    by.merge,
    by.rewrite_position_deletes,
    by.compact,
    by.delete,
    by.roll_back,
    by.compact_sorted,
    by.rewrite_manifests,
    by.write_audit_publish,
    by.branch_and_fast_forward,
    by.rename_column,
    by.change_columns,
    by.widen,
    by.partition,
    by.overwrite_partitions,
    by.expire,
    by.upgrade,
    by.delete,
    by.update,
    by.compact,
    by.expire,
    by.delete_everything,
]
ALWAYS = (by.compact_sorted, by.delete_everything)


@pytest.mark.parametrize("version", some(["2", "3"], 1))
def test_every_change_that_spark_makes_is_followed(
    spark: Any, changes_catalog: Catalog, version: str, seed: str
) -> None:
    """Two thirds of the changes, all of them with ICEPUFFIN_DRAWS=2."""
    others = [number for number, change in enumerate(CHANGES) if change not in ALWAYS]
    left_out = random.Random(seed).sample(others, max(0, len(CHANGES) - amount(17)))
    lake = Lake(spark, changes_catalog, f"v{version}")
    lake.sql(
        "CREATE TABLE {t} (id long, section string, {v} array<float>) USING iceberg TBLPROPERTIES ("
        f"'format-version'='{version}', 'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read', "
        "'write.merge.mode'='merge-on-read')"
    )
    for _ in range(4):
        lake.insert(60)
    create_index(
        lake.table,
        IndexDefinition(
            name="e", column="embedding", metric="l2", max_degree=16, search_list=48, shards=2, target_recall=0.5
        ),
    )
    lake.definition = load_definition(lake.table, "e")
    lake.index()
    for number, change in enumerate(CHANGES):
        if number in left_out:
            continue
        change(lake)
        rows = lake.rows()
        lake.check(rows)
        lake.reports[change.__name__] = lake.index()
        assert lake.check(rows).coverage is Coverage.EXACT_VERSION, change.__name__
        assert lake.reports[change.__name__].rows == len(rows), change.__name__
    assert lake.rows().keys() == rows.keys(), "an index changes no row"
    compacted = lake.reports["compact_sorted"]
    assert (compacted.inserted, compacted.shards_rebuilt) == (0, 0)
    assert live_files(lake.table, lake.table.metadata.current_snapshot_id or 0).record_count == 25
