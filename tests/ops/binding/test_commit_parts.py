"""Parts of one commit have outcomes of their own."""

from collections.abc import Callable

import pytest
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.table import Table
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import AddSnapshotUpdate, SetStatisticsUpdate, TableRequirement, TableUpdate

from icepuffin.ops.binding import bindings
from icepuffin.ops.binding.bindings import VersionPart
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.binding.errors import LostRaceError
from icepuffin.ops.binding.joint_commit import commit_together
from icepuffin.ops.binding.statistics import StatisticsPart, find_statistics
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.snapshots import TableUnavailableError
from tests.conftest import ROWS, make_rows
from tests.ops.catalog.bindings import binding


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    made = table_factory()
    made.append(make_rows(0, 3))
    return made.refresh()


def statistics(table: Table, path: str, over: str | None = None) -> StatisticsPart:
    head = table.metadata.current_snapshot_id or pytest.fail("empty")
    sizes = {"file_size_in_bytes": 10, "file_footer_size_in_bytes": 4}
    return StatisticsPart(
        StatisticsFile(snapshot_id=head, statistics_path=path, blob_metadata=[], **sizes),  # type: ignore[arg-type]
        over,
    )


def registered(table: Table) -> str | None:
    entry = find_statistics(table.refresh(), SnapshotId(table.metadata.current_snapshot_id or 0))
    return entry.statistics_path if entry else None


def test_an_index_that_lost_its_race_does_not_keep_statistics_back(table: Table) -> None:
    late, part = VersionPart(binding(table)), statistics(table, "s3://ours")
    first = bindings.publish(table.catalog.load_table(table.name()), binding(table, 1))
    commit_together(table, (late, part))
    with pytest.raises(LostRaceError):
        late.outcome()
    assert part.outcome()
    assert registered(table) == "s3://ours"
    assert index_versions(table, "e") == (first,)


def test_statistics_that_lost_their_race_do_not_keep_an_index_back(table: Table) -> None:
    part = statistics(table, "s3://ours")
    commit_together(table.catalog.load_table(table.name()), (statistics(table, "s3://others"),))
    version = bindings.publish(table, binding(table), (part,))
    assert not part.outcome()
    assert registered(table) == "s3://others"
    assert index_versions(table, "e") == (version,)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_table_that_went_meanwhile_takes_no_part(table: Table, is_replaced: bool) -> None:
    parts = VersionPart(binding(table)), statistics(table, "s3://ours")
    table.catalog.drop_table(table.name())
    if is_replaced:
        table.catalog.create_table(table.name(), ROWS)
    with pytest.raises(TableUnavailableError, match="another table" if is_replaced else "was dropped"):
        commit_together(table, parts)
    assert not any(part.is_settled for part in parts)
    if is_replaced:
        other = table.catalog.load_table(table.name())
        assert (other.metadata.snapshots, other.metadata.statistics) == ([], [])


@pytest.mark.parametrize("refused", ["version", "statistics"])
def test_a_part_that_the_catalog_refuses_for_good_does_not_keep_the_other_back(
    table: Table, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    version, part = VersionPart(binding(table)), statistics(table, "s3://ours")
    through = table.catalog.commit_table

    def commit(at: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]) -> object:
        adds_version = any(isinstance(update, AddSnapshotUpdate) for update in updates)
        paths = {it.statistics.statistics_path for it in updates if isinstance(it, SetStatisticsUpdate)}
        if adds_version if refused == "version" else "s3://ours" in paths:
            raise ForbiddenError("no")
        return through(at, requirements, updates)

    monkeypatch.setattr(table.catalog, "commit_table", commit)
    commit_together(table, (version, part))
    kept, lost = (part, version) if refused == "version" else (version, part)
    assert kept.outcome()
    with pytest.raises(ForbiddenError):
        lost.outcome()
    assert (registered(table), len(index_versions(table, "e"))) == (("s3://ours", 0) if kept is part else (None, 1))
