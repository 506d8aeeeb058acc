"""What a refresh adds to a table's metadata: the figures of docs/writers.md."""

from collections.abc import Callable
from pathlib import Path

from pyiceberg.table import Table

from icepuffin import create_index, refresh
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, index_head


def test_a_refresh_takes_these_commits_and_bytes(table_factory: Callable[..., Table]) -> None:
    table = table_factory()

    def growth(act: Callable[[], object]) -> tuple[int, int, int]:
        """(commits, snapshots, bytes of the metadata file) that an act adds."""
        states = []
        for step in (lambda: None, act):
            step()
            metadata = table.refresh().metadata
            text = Path(table.metadata_location.removeprefix("file://")).read_text(encoding="utf-8")
            size = len(text.replace(table.location(), "s3://bucket/warehouse/db.db/documents"))
            states.append((len(metadata.metadata_log), len(metadata.snapshots), size))
        commits, snapshots, size = (after - before for before, after in zip(*states, strict=True))
        return commits, snapshots, size

    def append(first: int) -> None:
        table.append(make_rows(first, first + 60))

    def sketch() -> None:
        head = table.metadata.current_snapshot_id or 0
        count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), head).publish()

    append(0)
    create_index(table, DEFINITION)
    refresh(table, sketches=False, storage=STORAGE, threads=1)
    *first_sketches, kept = growth(sketch)
    *appends, appended = growth(lambda: append(60))
    *indexes, indexed = growth(lambda: index_head(table))
    *sketches, sketched = growth(sketch)
    append(120)
    *all_together, refreshed = growth(lambda: refresh(table, storage=STORAGE, threads=1))
    assert (first_sketches, appends, indexes) == ([1, 1], [1, 1], [1, 1])
    assert (sketches, all_together) == ([1, 0], [1, 1])
    assert 1_750 < kept < 1_900
    assert 650 < appended < 800
    assert 1_100 < indexed < 1_250
    assert 880 < sketched < 980
    assert 1_900 < refreshed < 2_030
