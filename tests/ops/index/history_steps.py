"""Steps that random histories of tables share, and what holds of every refresh in them."""

from pyiceberg.table import Table

from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.index.planning.work_bounds import RefreshBounds
from icepuffin.ops.model import Action
from icepuffin.ops.table.snapshots import data_snapshots


def roll_back(table: Table, back: int) -> bool:
    """Take `main` back by so many data snapshots; False where it has no more than that."""
    lineage = data_snapshots(table)
    if len(lineage) <= back:
        return False
    table.manage_snapshots().rollback_to_snapshot(lineage[-1 - back].snapshot_id).commit()
    return True


def unnamed_snapshots(table: Table) -> list[int]:
    """Snapshots that no ref points at, oldest first: expiry may take them."""
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    return [item.snapshot_id for item in table.metadata.snapshots if item.snapshot_id not in kept]


def expire_all_that_may_be(table: Table) -> bool:
    """As an owner does with short retention: of the snapshots that versions were made of, too. False: there is none."""
    old = unnamed_snapshots(table)
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()
    return bool(old)


def require_within(bounds: RefreshBounds, report: IndexReport) -> None:
    """The run did no more than its tags had room for."""
    assert report.action is not Action.BUILT
    written = [shard for shard in report.shard_reports if shard.how.rewrites_nodes or shard.how.makes_graph]
    assert len(written) <= bounds.written
    assert max((shard.nodes for shard in written), default=0) <= bounds.largest
    assert report.inserted <= bounds.arriving
