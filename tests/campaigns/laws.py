"""What holds of a table at which many have worked at once, once they are done."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta

from icepuffin.ops.binding.bound_versions import index_versions, sketch_versions
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.table.snapshots import data_snapshots
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.ndv import read_ndv
from icepuffin.ops.theta.requested_statistics import RequestedStatistics
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.ops.theta.theta_report import ThetaReport
from tests.conftest import STORAGE
from tests.interop.lakes import Lake
from tests.interop.test_concurrency import index_files, index_head
from tests.ops.index.comparison import DEFINITION, answer_with_recall

SKETCHED = ("name", "section")


def sketch(lake: Lake) -> ThetaReport:
    """Sketch the head."""
    table = lake.load("t")
    head = data_snapshots(table)[-1].snapshot_id
    run, requested = RunContext(table, STORAGE, LocalRunner(1)), RequestedStatistics(ndv=SKETCHED)
    return count_theta_sketches(run, head, requested=requested).publish()


def named_files(lake: Lake, names: Sequence[str]) -> set[str]:
    """Files of the versions and file sketches, and those of their packs that have not expired."""
    table = lake.load("t")
    versions = [*sketch_versions(table), *(version for name in names for version in index_versions(table, name))]
    packs_of = {pack.path for version in versions for pack in version.packs if pack.path}
    return {version.puffin_path for version in versions} | packs_of


def require_whole(
    lake: Lake, ids: Collection[int], names: Sequence[str], analyzed: Sequence[str] = (), lost: Collection[str] = ()
) -> None:
    """All laws of this module. Raises AssertionError, as each of them does."""
    require_rows(lake, ids)
    require_found(lake, ids, names)
    require_counted(lake, analyzed)
    require_collected(lake, names, lost)


def require_rows(lake: Lake, ids: Collection[int]) -> None:
    """Each row of the writers is there once."""
    assert sorted(lake.load("t").scan().to_arrow()["id"].to_pylist()) == sorted(ids)


def require_found(lake: Lake, ids: Collection[int], names: Sequence[str]) -> None:
    """After one more refresh each index has all rows, and finds the nearest."""
    for name in names:
        assert index_head(lake, name).rows == len(ids), f"rows of index {name}"
        result, recall = answer_with_recall(lake.load("t"), definition=replace(DEFINITION, name=name))
        assert not result.warnings, f"index {name} warns: {result.warnings}"
        assert recall >= DEFINITION.target_recall, f"recall {recall} of index {name}"


def require_counted(lake: Lake, analyzed: Sequence[str] = ()) -> None:
    """After one more run the sketches count what the table holds; those of `analyzed` columns are another engine's."""
    rows = lake.load("t").scan().to_arrow()
    others = tuple(name for name in analyzed if name not in SKETCHED)
    assert sketch(lake).merged_columns == others, "columns of the other engine's last ANALYZE"
    counted = {name: (entry.ndv, entry.fresh) for name, entry in read_ndv(lake.load("t")).entries.items()}
    distinct = {name: len(rows[name].unique()) for name in {*SKETCHED, *analyzed}}
    assert counted == {name: (distinct[name], name in SKETCHED) for name in distinct}, "distinct values"


def require_collected(lake: Lake, names: Sequence[str], lost: Collection[str] = ()) -> None:
    """`gc` leaves what is named and nothing else; `lost` is what older versions may name, and is gone."""
    collect_garbage(lake.load("t"), storage=STORAGE, grace=timedelta(0))
    assert set(index_files(lake)) == named_files(lake, names).difference(lost), "files of indexes and sketches"
