from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icepuffin.ops.model import LiveFile
from icepuffin.ops.tasks.match_lineage import row_versions
from tests.conftest import STORAGE


def data_file(
    path: Path, rows: int, first_row_id: int | None, commit: int, lineage: dict[str, list[int | None]]
) -> LiveFile:
    ids = {"_row_id": b"2147483540", "_last_updated_sequence_number": b"2147483539"}
    fields = [pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})]
    fields += [pa.field(name, pa.int64(), metadata={b"PARQUET:field_id": ids[name]}) for name in lineage]
    pq.write_table(pa.table([list(range(rows)), *lineage.values()], pa.schema(fields)), path)
    return LiveFile(
        f"file://{path}",
        path.stat().st_size,
        rows,
        commit,
        "PARQUET",
        first_row_id=first_row_id,
        file_sequence_number=commit,
    )


def read(file: LiveFile, deleted: list[int] | None = None) -> dict[int, int]:
    gone = None if deleted is None else np.array(deleted, np.int64)
    parts = list(row_versions(file, STORAGE, gone))
    return {
        int(at): int(version) for positions, versions in parts for at, version in zip(positions, versions, strict=True)
    }


def test_a_row_that_was_moved_keeps_its_version(tmp_path: Path) -> None:
    plain = read(data_file(tmp_path / "old.parquet", 4, 10, 3, {}))
    moved = {"_row_id": [13, None, 10], "_last_updated_sequence_number": [3, 3, None]}
    result = read(data_file(tmp_path / "new.parquet", 3, 20, 7, moved))
    assert result[0] == plain[3]
    assert result[1] not in plain.values(), "it has an id of the new file"
    assert result[2] not in plain.values(), "it was changed by the commit of the new file"


def test_a_file_may_have_ids_alone(tmp_path: Path) -> None:
    plain = read(data_file(tmp_path / "old.parquet", 2, 0, 5, {}))
    assert read(data_file(tmp_path / "new.parquet", 2, 20, 5, {"_row_id": [1, 0]})) == {0: plain[1], 1: plain[0]}


def test_deleted_rows_have_no_version(tmp_path: Path) -> None:
    file = data_file(tmp_path / "old.parquet", 4, 0, 1, {})
    assert read(file, [1, 2]).keys() == {0, 3}


def test_versions_of_different_rows_and_commits_differ(tmp_path: Path) -> None:
    rows, commits = np.meshgrid([*range(300), *range(10**12, 10**12 + 300)], range(1, 400))
    pairs = {"_row_id": rows.ravel().tolist(), "_last_updated_sequence_number": commits.ravel().tolist()}
    file = data_file(tmp_path / "all.parquet", rows.size, 0, 1, pairs)
    assert len(set(read(file).values())) == rows.size


def test_rows_without_ids_have_no_version(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no row ids"):
        read(data_file(tmp_path / "v2.parquet", 1, None, 1, {}))
