"""What a refresh adds to a table's metadata: the figures of docs/writers.md."""

from collections.abc import Callable
from pathlib import Path

from pyiceberg.table import Table

from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import index_head


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

    def sketch_head() -> None:
        head = table.metadata.current_snapshot_id or 0
        count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), head).publish()

    for first in (0, 60):
        *append, appended = growth(lambda: table.append(make_rows(first, first + 60)))  # noqa: B023
        *index, indexed = growth(lambda: index_head(table))
        *sketches, sketched = growth(sketch_head)
    assert (append, index, sketches) == ([1, 1], [1, 1], [1, 1])
    assert 650 < appended < 800
    assert 1_150 < indexed < 1_300
    assert 1_700 < sketched < 1_850
