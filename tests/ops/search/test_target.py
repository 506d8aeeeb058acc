"""How a version that answers covers the snapshot that is searched."""

from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.schema import Schema

from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.model import FileNumber, LiveFile, LiveFiles, SnapshotId
from icepuffin.ops.search.result import Coverage, StalePolicy
from icepuffin.ops.search.target import Restriction, SearchTarget, SnapshotCoverage, VersionChoice, is_own
from icepuffin.ops.table.blob_kind import BlobKind

BASE, DERIVED, OTHER = SnapshotId(7), SnapshotId(8), SnapshotId(9)
VERSION = DerivedVersion(BlobKind.INDEX, "e", DERIVED, BASE, "build", "s3://lake/e.puffin", 1, 0, 1, ("ann_e",))
WARNING = "a version could not be read"
MISSING = "up to 30 rows of snapshot 9 are not in the index that answered"


def coverage(
    snapshot: SnapshotId,
    covered: set[int],
    policy: StalePolicy,
    *,
    opened: bool = True,
    restriction: Restriction | None = None,
) -> SnapshotCoverage:
    """Of three files of 10, 20 and 10 rows."""
    files = tuple(LiveFile(f"{number}.parquet", 100, rows, 1, "PARQUET") for number, rows in enumerate((10, 20, 10)))
    live = LiveFiles("db.t", "uuid", "s3://lake/t", snapshot, 1, 0, files)
    nothing: Any = None
    target = SearchTarget(nothing, live, nothing, 4, nothing, nothing, nothing, restriction)
    version: Any = SimpleNamespace(bound=VERSION) if opened else None
    loaded: Any = SimpleNamespace(covered=frozenset(map(FileNumber, covered)), dims=4) if opened else None
    return SnapshotCoverage.from_choice(target, VersionChoice(version, loaded, "", (WARNING,)), policy)


def test_a_version_is_that_of_its_data_snapshot_and_of_its_own() -> None:
    """The latter stands for the data snapshot once that has expired."""
    assert [is_own(VERSION, snapshot) for snapshot in (BASE, DERIVED, OTHER)] == [True, True, False]


@pytest.mark.parametrize("policy", [StalePolicy.COMPLETE, StalePolicy.EXACT, StalePolicy.NEAREST_ONLY])
@pytest.mark.parametrize("snapshot", [BASE, DERIVED])
def test_a_version_of_the_snapshot_that_covers_all_files_is_exact(snapshot: SnapshotId, policy: StalePolicy) -> None:
    assert coverage(snapshot, {0, 1, 2}, policy) == SnapshotCoverage(Coverage.EXACT_VERSION, (), (WARNING,))


@pytest.mark.parametrize(
    ("snapshot", "covered", "tail"), [(BASE, {0, 1}, (2,)), (OTHER, {0}, (1, 2)), (OTHER, {0, 1, 2}, ())]
)
def test_files_that_it_does_not_cover_are_scanned(
    snapshot: SnapshotId, covered: set[int], tail: tuple[int, ...]
) -> None:
    kind = Coverage.NEAREST_VERSION_AND_TAIL
    assert coverage(snapshot, covered, StalePolicy.COMPLETE) == SnapshotCoverage(kind, tail, (WARNING,))  # type: ignore[arg-type]


def test_where_they_are_not_scanned_a_warning_says_how_many_rows_are_missing() -> None:
    kind, policy = Coverage.NEAREST_VERSION_ONLY, StalePolicy.NEAREST_ONLY
    assert coverage(OTHER, {0}, policy) == SnapshotCoverage(kind, (), (MISSING, WARNING))
    assert coverage(OTHER, {0, 1, 2}, policy) == SnapshotCoverage(kind, (), (WARNING,))


def test_how_many_rows_are_missing_is_not_told_where_some_are_hidden() -> None:
    hidden = Restriction("db.t", EqualTo("a", 1), frozenset(), Schema(), Schema(), "filters its rows")
    told = coverage(OTHER, {0}, StalePolicy.NEAREST_ONLY, restriction=hidden).warnings
    assert told == ("rows of snapshot 9 are not in the index that answered", WARNING)


def test_without_a_version_every_file_is_scanned() -> None:
    expected = SnapshotCoverage(Coverage.EXACT_SCAN, (0, 1, 2), (WARNING,))  # type: ignore[arg-type]
    assert coverage(BASE, set(), StalePolicy.NEAREST_ONLY, opened=False) == expected
