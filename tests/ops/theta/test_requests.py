"""What a snapshot costs in requests: the file sketches of all live files lie side by side, and are read so."""

from collections.abc import Sequence
from typing import Any

import pytest
from pyiceberg.table import Table

from icepuffin.ops.storage.base import ObjectSource
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.storage.prefetch import GAP, coalesced
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta import file_sketches, sketch_packs
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.ops.theta.conftest import STORAGE, ThreadlessRunner, append, rows


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(path, bytes) of each range that is read from the store: one request to a distant one."""
    calls: list[tuple[str, int]] = []
    through = LocalStorage.read_ranges

    def read_ranges(self: LocalStorage, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        calls.extend((path, length) for _, length in ranges)
        return through(self, path, ranges)

    monkeypatch.setattr(LocalStorage, "read_ranges", read_ranges)
    return calls


def materialize(table: Table, snapshot: int) -> Any:
    return count_theta_sketches(RunContext(table, STORAGE, ThreadlessRunner()), snapshot).publish()


def test_one_more_file_costs_the_same_few_requests_however_many_there_are(
    table: Table, requests: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketch_packs, "PACK_BYTES", 20_000)
    with table.transaction() as many:
        for start in range(0, 3_000, 50):
            many.append(rows(start, start + 50))
    last = table.refresh().current_snapshot()
    assert last is not None
    materialize(table, last.snapshot_id)
    snapshot = append(table.refresh(), 3_000, 3_010)
    requests.clear()
    report = materialize(table, snapshot)
    assert (report.files_reused, report.files_sketched, report.ndv["id"]) == (60, 1, 3_010)
    kept = [length for path, length in requests if "theta-" in path]
    assert len(kept) <= 3 * 2, "the two ends of the version's file and of its pack"
    assert sum(kept) < 70_000, "no sketch of the files of before"
    united = [path for path, _ in requests if path.endswith(".stats")]
    assert len(united) <= 3, "its two ends, and one range of sketches"


def test_no_version_before_the_nearest_is_opened_for_new_files(table: Table, requests: list[tuple[str, int]]) -> None:
    counts = []
    for start in range(0, 90, 10):
        snapshot = append(table, start, start + 10)
        requests.clear()
        materialize(table, snapshot)
        counts.append(len([path for path, _ in requests if "theta-" in path]))
    assert max(counts) == counts[1] <= 3


def test_sketches_are_read_in_groups_however_small(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sketches, "_FETCHED", 1)
    append(table, 0, 30)
    first = append(table, 30, 60)
    materialize(table, first)
    report = materialize(table, append(table, 60, 90))
    assert (report.files_reused, report.ndv["id"], report.note) == (2, 90, "")


def test_near_ranges_are_joined_up_to_a_length() -> None:
    assert coalesced([]) == []
    assert GAP == 2**20
    assert coalesced([(10, 5), (0, 10), (15 + GAP, 1), (17 + 2 * GAP, 1)]) == [(0, 16 + GAP), (17 + 2 * GAP, 1)]
    assert coalesced([(0, 100), (10, 5)]) == [(0, 100)]
    assert coalesced([(0, 6), (6, 6), (12, 30)], longest=12) == [(0, 12), (12, 30)]


def test_what_was_fetched_is_read_from_memory_and_the_rest_from_the_store(
    tmp_path: Any, requests: list[tuple[str, int]]
) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(100)))
    source = ObjectSource(LocalStorage(), f"file://{path}")
    source.fetch([(10, 5), (15, 5)])
    assert source.read_range(12, 8) == bytes(range(12, 20))
    assert len(requests) == 1
    assert source.read_range(5, 10) == bytes(range(5, 15))
    assert source.read_range(18, 5) == bytes(range(18, 23))
    assert len(requests) == 3
