"""Format v3: Spark writes which row is which, and a compaction is followed without a vector being read."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog

from icepuffin.ops.index import moved_rows
from icepuffin.ops.index.definitions.ddl import create_index, load_definition
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.model import LiveFile
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.matching.match_hashes import HashTask, hash_files
from icepuffin.ops.tasks.matching.match_lineage import row_versions
from icepuffin.ops.tasks.staged_blocks import StagedRows
from tests.conftest import STORAGE
from tests.interop import changes as by
from tests.interop.changes import Lake

pytestmark = [pytest.mark.jvm, pytest.mark.services]
FILES, ROWS_PER_FILE = 4, 80
ROWS = FILES * ROWS_PER_FILE


def files_of(lake: Lake) -> tuple[LiveFile, ...]:
    return live_files(lake.table, lake.table.metadata.current_snapshot_id or 0).files


def path_of(file: LiveFile) -> Path:
    return Path("/" + file.path.removeprefix("file:").lstrip("/"))


def new_lake(spark: Any, catalog: Catalog, name: str, version: int) -> Lake:
    """A table of a few files, indexed."""
    lake = Lake(spark, catalog, name)
    lake.sql(
        f"CREATE TABLE {{t}} (id long, section string, {{v}} array<float>) USING iceberg TBLPROPERTIES ("
        f"'format-version'='{version}', 'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read')"
    )
    for _ in range(FILES):
        lake.insert(ROWS_PER_FILE)
    create_index(lake.table, IndexDefinition(name="e", column="embedding", metric="l2", shards=2, target_recall=0.5))
    lake.definition = load_definition(lake.table, "e")
    lake.index()
    return lake


@pytest.fixture
def lake(spark: Any, changes_catalog: Catalog, request: pytest.FixtureRequest) -> Lake:
    return new_lake(spark, changes_catalog, request.node.name.removeprefix("test_"), version=3)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows whose vectors were read to know them again, of each refresh that did so."""
    counts: list[int] = []

    def counting(task: HashTask) -> StagedRows:
        result = hash_files(task)
        counts.append(sum(rows for _, rows in result.live_rows))
        return result

    monkeypatch.setattr(moved_rows, "hash_files", counting)
    return counts


def versions_by_id(lake: Lake) -> dict[int, int]:
    """As we read them out of manifests and data files."""
    matches = {}
    for file in files_of(lake):
        ids = pq.read_table(path_of(file), columns=["id"])["id"].to_numpy()
        for positions, versions in row_versions(file, STORAGE):
            matches |= dict(zip(ids[positions].tolist(), versions.tolist(), strict=True))
    return matches


def versions_in_spark(lake: Lake) -> dict[int, int]:
    spread = 0x9E3779B97F4A7C15
    rows = lake.sql("SELECT id, _row_id, _last_updated_sequence_number FROM {t}")
    return {number: (row + commit * spread) * spread % 2**64 for number, row, commit in rows}


def test_a_compaction_is_followed_without_its_vectors(lake: Lake, hashed: list[int]) -> None:
    for change in (by.compact, by.delete, by.insert, by.compact_sorted, by.compact):
        change(lake)
        rows = lake.rows()
        report = lake.index()
        assert lake.check(rows).coverage is Coverage.EXACT_VERSION
        lake.check_within(rows)
        assert report.rows == len(rows)
        if change is not by.insert:
            assert (report.inserted, hashed) == (0, []), change.__name__
    assert report.remapped == len(rows)


def test_rows_that_changed_since_are_recognised_by_their_vectors(
    lake: Lake, hashed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moved_rows, "HASHES_AT_ONCE", ROWS // 3)
    by.update(lake)
    by.update_vectors(lake)
    by.compact(lake)
    rows = lake.rows()
    report = lake.index()
    assert hashed == [len({*range(1, ROWS, 11), *range(2, ROWS, 13)})]
    assert report.inserted == len(range(2, ROWS, 13))
    assert report.remapped == len(rows) - report.inserted
    lake.check(rows)
    lake.check_within(rows)


def test_rows_whose_old_file_is_gone_are_recognised_by_their_vectors(lake: Lake, hashed: list[int]) -> None:
    by.compact(lake)
    (old,) = files_of(lake)
    lake.index()
    by.insert(lake)
    lake.index()
    by.compact_sorted(lake)
    path_of(old).unlink()
    rows = lake.rows()
    assert lake.index().remapped == len(rows)
    assert hashed == [ROWS]
    lake.check(rows)


def test_a_wrong_lineage_is_not_trusted(lake: Lake, hashed: list[int], caplog: pytest.LogCaptureFixture) -> None:
    by.compact(lake)
    rows = lake.rows()
    (file,) = files_of(lake)
    stored = pq.read_table(path_of(file))
    truth = stored.select(["id", "section", "embedding"])
    backwards = stored.take(np.arange(len(stored))[::-1]).drop_columns(truth.column_names)
    pq.write_table(pa.table([*truth.columns, *backwards.columns], stored.schema), path_of(file))
    assert lake.index().remapped == ROWS
    assert "matched by their vectors" in caplog.text
    assert hashed == [ROWS]
    lake.check(rows)


def test_row_ids_are_those_that_spark_gives(spark: Any, changes_catalog: Catalog, hashed: list[int]) -> None:
    lake = new_lake(spark, changes_catalog, "upgraded", version=2)
    by.upgrade(lake)
    by.compact(lake)
    assert lake.index().remapped == ROWS
    assert hashed == [ROWS], "the version before was made when rows had no ids"
    for change in (by.insert, by.delete, by.update, by.rewrite_manifests, by.compact, by.update_vectors):
        assert versions_by_id(lake) == versions_in_spark(lake)
        change(lake)
    assert versions_by_id(lake) == versions_in_spark(lake)
