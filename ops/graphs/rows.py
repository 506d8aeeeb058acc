"""How large a snapshot is, from its metadata alone."""

from pyiceberg.table import Table


def snapshot_rows(table: Table, snapshot_id: int) -> int:
    """Live rows of the snapshot as its summary tells; 0 where there is no such snapshot or it does not say."""
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    if snapshot is None or snapshot.summary is None:
        return 0
    totals = snapshot.summary.additional_properties
    return int(totals.get("total-records", 0)) - int(totals.get("total-position-deletes", 0))
