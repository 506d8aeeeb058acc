"""Commits of others between a publication's look at the table and its own commit, where it brings a pack."""

from collections.abc import Callable

import numpy as np
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding import joint_commit
from icepuffin.ops.binding.commit import CommitOutcome, attempt_commit
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.table.live_files import live_files
from tests.conftest import make_rows
from tests.ops.index.comparison import index_head

TableFactory = Callable[..., Table]


@pytest.mark.parametrize("commits", [1, 5])
def test_a_pack_takes_no_sequence_number_back(
    table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    """Iceberg refuses a number that was taken, but not of a snapshot without a parent, such as a holder snapshot."""
    monkeypatch.setattr(index_packs, "PACK_BYTES", 1)
    table = table_factory()
    table.append(make_rows(0, 200))
    outcomes: list[CommitOutcome] = []

    def commit(*args: object) -> CommitOutcome:
        if not outcomes:
            other = table.catalog.load_table(table.name())
            for first in range(200, 200 + 10 * commits, 10):
                other.append(make_rows(first, first + 10))
        outcomes.append(attempt_commit(*args))  # type: ignore[arg-type]
        return outcomes[-1]

    monkeypatch.setattr(joint_commit, "attempt_commit", commit)
    index_head(table)
    metadata = table.refresh().metadata
    numbers = [snapshot.sequence_number or 0 for snapshot in metadata.snapshots]
    assert outcomes == [CommitOutcome.REFUSED, CommitOutcome.DONE]
    assert numbers == [*range(1, commits + 2), commits + 1, commits + 1], "version and pack take none"
    assert metadata.last_sequence_number == max(numbers)
    newest = live_files(table, metadata.current_snapshot_id or 0).files[-1]
    append_position_deletes(table, {newest.path: np.arange(newest.record_count)})
    assert len(table.refresh().scan().to_arrow()) == 200 + 10 * commits - newest.record_count
