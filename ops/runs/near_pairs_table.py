"""Pairs of near rows of snapshots, in an Iceberg table of their own."""

from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.expressions import EqualTo

from icepuffin.ops.errors import TableStateError
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.search.near_pairs import NearPairs
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.tasks.task_runner import RunContext

_OWNER = "icepuffin.near-pairs-of"
"""Property of such a table: the uuid of the indexed table, and the index"""


class PairsTableError(TableStateError):
    """Raised where the table for pairs is another one's, has other columns, or cannot be made."""

    retryable = False


def publish_pairs(
    run: RunContext,
    definition: IndexDefinition,
    snapshot_id: SnapshotId,
    catalog: Catalog,
    name: str,
    *,
    within: float,
    columns: Sequence[str],
    limit: int,
) -> NearPairs:
    """Find the pairs of a snapshot, and replace its rows of the table of that name, in one commit.

    The table is made where it is not there. Raises PairsTableError, QueryError where there are more pairs than `limit`,
    and what `open_index` and the catalog raise.
    """
    threads = run.runner.task_threads
    reader = open_index(run.table, definition, snapshot=snapshot_id, storage=run.storage, threads=threads)
    found = reader.pairs(within, columns=columns, limit=limit)
    rows = found.rows.add_column(0, "snapshot_id", pa.array([snapshot_id] * len(found), pa.int64()))
    owner = f"{run.table.metadata.table_uuid}/{definition.name}"
    try:
        table = catalog.create_table_if_not_exists(name, rows.schema, properties={_OWNER: owner})
    except NoSuchNamespaceError as error:
        raise PairsTableError(f"{name}, for near pairs: there is no such namespace; create it") from error
    if table.properties.get(_OWNER) != owner:
        raise PairsTableError(f"{name} was not made for near pairs of this index: name another table in near_pairs")
    if [field.name for field in table.schema().fields] != rows.column_names:
        raise PairsTableError(f"{name} has near pairs with other columns: drop it, or name another table in near_pairs")
    of_snapshot = EqualTo(term="snapshot_id", value=snapshot_id)
    with table.transaction() as change:
        if next(iter(table.scan(of_snapshot).plan_files()), None) is not None:
            change.delete(of_snapshot)
        change.append(rows)
    return found
