"""Answers by cells, of a process that does not have the shards: few bytes, and rows that are live, with distances that
are those of the index.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.codes import cells
from icepuffin.ann_kernels.codes.cells import ROWS
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.cache import ShardCache, use_settings
from icepuffin.ops.cache.cache_settings import CacheSettings
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.search import tuning
from icepuffin.ops.search.indexed import cold_shards
from icepuffin.ops.search.indexed.cold_shards import ColdReads
from icepuffin.ops.search.indexed.loaded_version import LoadedVersion, ShardsOnDemand
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import explain
from icepuffin.ops.shards.masked_shards import ShardMasker
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.storage import StorageError
from icepuffin.ops.storage.local_storage import LocalStorage, to_path
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.puffin import puffin_writer
from icepuffin.puffin.blobs import shard_blob
from icepuffin.puffin.blobs.cells_blob import CellDirectory
from icepuffin.puffin.blobs.shard_header import Section
from icepuffin.puffin.footer import BlobMetadata, Footer
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.index.comparison import answer_with_recall, index_head
from tests.puffin import samples
from tests.repository import REPOSITORY
from tests.selection import some

CELLS = IndexDefinition(
    name="e", column="embedding", metric="l2", max_degree=16, search_list=40, shards=2, target_recall=0.8, cells="sq8"
)


@pytest.fixture(autouse=True)
def _cold(monkeypatch: pytest.MonkeyPatch) -> None:
    use_settings(replace(CacheSettings.off(), prefetch="never"))
    monkeypatch.setattr("icepuffin.ops.tasks.written_cells.PROBES", (3, 6, 12))


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    """3,000 rows in two files."""
    new_table = table_factory()
    new_table.append(make_rows(0, 1_500))
    new_table.append(make_rows(1_500, 3_000))
    return new_table


def opened(table: Table, definition: IndexDefinition = CELLS, **options: Any) -> IndexReader:
    return open_index(table.refresh(), definition, storage=STORAGE, **options)


def warm(table: Table, definition: IndexDefinition = CELLS) -> IndexReader:
    """A reader of all shards."""
    reader = opened(table, definition)
    shards = reader._choice.loaded.shards  # type: ignore[union-attr]
    assert isinstance(shards, ShardsOnDemand)
    shards.take(range(len(shards)))
    return reader


def distances(reader: IndexReader, query: np.ndarray, k: int, **options: Any) -> dict[int, float]:
    rows = reader.search(query, k, columns=["id"], **options).rows
    return dict(zip(rows["id"].to_pylist(), rows["distance"].to_pylist(), strict=True))


def compact(table: Table) -> None:
    """All rows rewritten into one file, and indexed."""
    table.overwrite(table.refresh().scan().to_arrow().sort_by("id"))
    index_head(table, CELLS)


def recall(table: Table, definition: IndexDefinition = CELLS, k: int = 10, count: int = 20, **options: Any) -> float:
    """Recall of cold answers, of rows that are live, with the distances of the shards."""
    exact, whole = opened(table, definition), warm(table, definition)
    live = set(table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())
    hits = 0
    for query in queries(count):
        cold = opened(table, definition)
        answer = cold.search(query, k, columns=["id"], **options)
        assert answer.profile.strategy == "cells"
        ids = answer.rows["id"].to_pylist()
        assert {*ids} <= live
        assert len({*ids}) == min(k, len(live))
        true = exact.search(query, k, columns=["id"], where="id >= 0").rows["id"].to_pylist()
        hits += len({*true} & {*ids})
        expected = distances(whole, query, k)
        if definition.holds_vectors or options.get("rerank"):
            own = distances(cold, query, k, **options)
            assert all(own[row] == expected[row] for row in expected.keys() & own.keys())
    return hits / (k * count)


@pytest.mark.parametrize(("cells", "vectors"), some(list(product(["sq4", "sq8"], ["f32", "f16", "rq8", "none"])), 3))
def test_most_of_the_nearest_rows_are_found_whatever_shards_hold(table: Table, cells: str, vectors: str) -> None:
    definition = replace(CELLS, cells=cells, vectors=vectors)
    index_head(table, definition)
    least = 0.8 if vectors == "rq8" and cells == "sq4" else 0.95
    assert recall(table, definition) >= least


@pytest.mark.parametrize("metric", [Metric.COSINE, Metric.INNER_PRODUCT])
@pytest.mark.parametrize("vectors", ["f32", "rq8"])
def test_distances_are_those_of_the_metric(table: Table, metric: Metric, vectors: str) -> None:
    definition = replace(CELLS, metric=metric, vectors=vectors)
    index_head(table, definition)
    assert recall(table, definition) >= 0.9
    for query in queries(5):
        cold = distances(opened(table, definition), query, 10)
        true = distances(opened(table, definition), query, 10, rerank=True, oversample=2)
        assert all(cold[row] == pytest.approx(true[row], abs=0.05) for row in cold.keys() & true.keys())


def test_no_shard_is_loaded_and_few_bytes_are_read_in_three_rounds(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_head(table, CELLS)
    monkeypatch.setattr(ShardCache, "shard", lambda *_: pytest.fail("a shard was loaded"))
    reader, real, requests = opened(table), LocalStorage.read_ranges, []

    def counted(self: LocalStorage, path: str, ranges: Any) -> list[bytes]:
        requests.extend(ranges)
        return real(self, path, ranges)

    monkeypatch.setattr(LocalStorage, "read_ranges", counted)
    answer = reader.search(queries(1), 10, columns=[])
    cold = answer.profile.cold
    assert cold is not None
    assert cold.requests == len(requests) > cold.rounds
    assert (cold.shards, cold.left_out, cold.rounds) == (2, 0, 3)
    assert answer.profile.bytes_read["index"] == cold.bytes < 250_000
    assert 0.9 <= cold.recall <= 1
    assert dict(explain(answer))["cells"].startswith(f"{cold.cells} of 2 shards that this process does not have")


def test_directories_are_read_once(table: Table) -> None:
    index_head(table, CELLS)
    reader = opened(table)
    rounds = [reader.search(query, 10, columns=[]).profile.cold.rounds for query in queries(2)]  # type: ignore[union-attr]
    assert rounds == [3, 2]


def test_directories_that_are_longer_than_expected_take_a_further_round(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_head(table, CELLS)
    expected = opened(table).search(queries(1), 10, columns=["id"])
    monkeypatch.setattr(cold_shards.ColdShards, "_directory_bytes", lambda *_: 99)
    answer = opened(table).search(queries(1), 10, columns=["id"])
    assert answer.rows.equals(expected.rows)
    assert (answer.profile.cold.shards, answer.profile.cold.rounds) == (2, 4)  # type: ignore[union-attr]


def test_the_nearest_of_many_shards_are_searched(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = replace(CELLS, shards=6)
    index_head(table, definition)
    monkeypatch.setattr(cold_shards, "_DIRECTORY_BYTES", 1_500)
    answer = opened(table, definition).search(queries(1), 10, columns=[])
    assert answer.profile.cold is not None
    assert answer.profile.cold.shards + answer.profile.cold.left_out == 6
    assert 0 < answer.profile.cold.left_out < 6
    assert "farther ones were left out" in dict(explain(answer))["cells"]


@pytest.mark.parametrize("vectors", ["f32", "none"])
def test_cells_without_a_live_row_have_no_answer(table: Table, vectors: str) -> None:
    definition = replace(CELLS, vectors=vectors, rebuild_ratio=1.0)
    index_head(table, definition)
    files = live_files(table, table.metadata.current_snapshot_id).files
    left = files[0].path  # with one row
    append_position_deletes(table, {file.path: np.arange(file.path == left, file.record_count) for file in files})
    index_head(table, definition)
    answer = opened(table, definition).search(queries(2), 10, columns=[])
    assert (len(answer), answer.profile.strategy) == (2, "cells")
    assert opened(table, definition).search(queries(1), 10, columns=[], certified=True).profile.cold is not None


def test_so_many_shards_are_searched_that_they_have_k_rows(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = replace(CELLS, shards=6)
    table = table_factory()
    table.append(make_rows(0, 60))
    index_head(table, definition)
    monkeypatch.setattr(cold_shards, "_DIRECTORY_BYTES", 1)
    for query in queries(3):
        answer = opened(table, definition).search(query, 30, columns=[])
        assert answer.profile.cold is not None
        assert answer.profile.cold.left_out > 0
        assert len(answer) == 30


def test_cells_of_further_shards_are_read_where_those_of_a_target_have_too_few_rows(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "_ROWS_PER_CENTROID", 1)
    definition = replace(CELLS, shards=6)
    table = table_factory()
    table.append(make_rows(0, 400))
    index_head(table, definition)
    few, many = (opened(table, definition).search(queries(1), k, columns=["id"], target_recall=0.2) for k in (10, 100))
    assert (len(few), len(many), many.profile.strategy) == (10, 100, "cells")
    assert few.profile.cold is not None
    assert many.profile.cold is not None
    assert (few.profile.cold.shards, few.profile.cold.rounds) == (1, 3)
    assert (many.profile.cold.shards, many.profile.cold.left_out, many.profile.cold.rounds) == (6, 0, 6)
    assert many.profile.cold.rows == 400
    assert many.profile.cold.bytes == many.profile.bytes_read["index"] > few.profile.cold.bytes
    assert 0.9 <= many.profile.cold.recall <= 1
    assert len({*many.rows["id"].to_pylist()}) == 100


def test_what_two_searches_read_is_added_up_and_their_recall_weighted_by_rows() -> None:
    names = "shards", "left_out", "cells", "bytes", "requests", "rounds"
    one, other = (ColdReads(**dict(zip(names, numbers, strict=True))) for numbers in (range(1, 7), range(10, 70, 10)))
    added = replace(one, recall=0.5, rows=30).plus(replace(other, recall=0.9, rows=10))
    assert [getattr(added, name) for name in names] == [11, 22, 33, 44, 55, 66]
    assert (added.recall, added.rows) == (pytest.approx(0.6), 40)


def test_the_recall_of_several_shards_is_the_mean_over_their_rows(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_head(table, CELLS)
    read = CellDirectory.checked

    def with_recall(*arguments: Any) -> CellDirectory:
        """The recall of a shard of half of the rows is 0.5."""
        return replace(read(*arguments), recall=arguments[3] / 3_000)

    monkeypatch.setattr(CellDirectory, "checked", staticmethod(with_recall))
    shares = [shard.count / 3_000 for shard in open_version(index_versions(table, "e")[-1], STORAGE).routing.shards]
    assert shares[0] != shares[1]
    cold = opened(table).search(queries(1), 10, columns=[]).profile.cold
    assert cold is not None
    assert cold.recall == pytest.approx(sum(share**2 for share in shares))


def test_a_delta_does_not_stand_for_the_nearest_shard(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = replace(CELLS, shards=1, max_deltas=4)
    index_head(table, definition)
    table.append(make_rows(3_000, 3_040))
    index_head(table, definition)
    monkeypatch.setattr(cold_shards, "_DIRECTORY_BYTES", 1)
    assert opened(table, definition).search(queries(1), 10, columns=[]).profile.cold.shards == 2  # type: ignore[union-attr]
    assert recall(table, definition, count=5) >= 0.95


def test_the_nearest_shard_of_each_query_is_searched(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = replace(CELLS, shards=6)
    index_head(table, definition)
    monkeypatch.setattr(cold_shards, "_DIRECTORY_BYTES", 1)
    rows = opened(table, definition).search(queries(8), 10, columns=[]).rows
    together = np.array(rows["distance"].to_pylist()).reshape(8, 10)
    for query, own in zip(queries(8), together, strict=True):
        alone = opened(table, definition).search(query, 10, columns=[]).rows
        assert (own <= np.array(alone["distance"].to_pylist())).all()


def test_more_cells_are_read_where_few_of_their_rows_are_live(table: Table) -> None:
    index_head(table, CELLS)
    nearest = distances(opened(table), queries(1), 100)
    table.delete(f"id in ({', '.join(map(str, nearest))})")
    table.refresh()
    index_head(table, CELLS)
    assert recall(table, k=10, count=5) >= 0.95
    table.delete("id >= 60")
    index_head(table.refresh(), replace(CELLS, rebuild_ratio=1.0))
    answer = opened(table).search(queries(1), 100, columns=["id"])
    assert answer.profile.strategy == "cells"
    remaining = table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()
    assert sorted(answer.rows["id"].to_pylist()) == sorted(remaining)


@pytest.mark.parametrize("deltas", [0, 4])
def test_later_rows_are_found_too(table: Table, deltas: int) -> None:
    definition = replace(CELLS, max_deltas=deltas)
    index_head(table, definition)
    table.append(make_rows(3_000, 3_400))
    table.delete("id < 100")
    index_head(table, definition)
    assert recall(table, definition) >= 0.95
    table.append(make_rows(3_400, 3_450))
    assert recall(table, definition, count=5) >= 0.95, "with a freshness tail"


def test_rows_that_have_moved_are_found_where_they_lie_now(table: Table) -> None:
    index_head(table, CELLS)
    compact(table)
    version = open_version(index_versions(table, "e")[-1], STORAGE)
    assert all(shard.addresses for shard in version.shards)
    assert recall(table) >= 0.95


def test_many_new_addresses_are_not_read_for_a_few_rows(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    index_head(table, CELLS)
    compact(table)
    monkeypatch.setattr(cold_shards, "_ADDRESSES_BYTES", 100)
    answer = opened(table).search(queries(1), 10, columns=["id"])
    assert answer.profile.strategy == "beam"
    assert answer.profile.cold is None


def test_what_needs_all_rows_is_answered_by_shards(table: Table) -> None:
    index_head(table, CELLS)
    assert opened(table).search(queries(1), 10, columns=[], where="id < 1000").profile.cold is None
    assert opened(table).search(queries(9), 10, columns=[]).profile.strategy == "beam"
    assert opened(table).search(queries(1), 101, columns=[]).profile.strategy == "beam"
    assert opened(table).search(queries(8), 100, columns=[]).profile.strategy == "cells"


def test_an_index_without_cells_is_read_as_ever(table: Table) -> None:
    definition = replace(CELLS, cells="none")
    index_head(table, definition)
    assert opened(table, definition).search(queries(1), 10, columns=[]).profile.strategy == "beam"
    version = open_version(index_versions(table, "e")[-1], STORAGE)
    headers = [open_shard(shard, STORAGE).header for shard in version.shards]
    assert [header.features for header in headers] == [1, 1]


def test_a_shard_of_few_rows_has_one_cell(table_factory: Callable[..., Table]) -> None:
    table = table_factory()
    table.append(make_rows(0, 7))
    index_head(table, replace(CELLS, shards=1))
    assert recall(table, replace(CELLS, shards=1), k=7, count=3) == 1.0


def test_shards_are_fetched_in_the_background_and_answer_then(table: Table) -> None:
    use_settings(CacheSettings.from_environment())
    index_head(table, CELLS)
    reader = opened(table)
    assert reader.search(queries(1), 10, columns=[]).profile.strategy == "cells"
    shards = reader._choice.loaded.shards  # type: ignore[union-attr]
    assert isinstance(shards, ShardsOnDemand)
    assert shards._fetching is not None
    shards._fetching.join()
    assert reader.search(queries(1), 10, columns=[]).profile.strategy == "beam"
    other = opened(table)
    assert other.search(queries(1), 10, columns=[]).profile.strategy == "beam", "the cache has them"


def test_the_search_after_a_shard_could_not_be_fetched_says_why(
    table: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use_settings(CacheSettings.from_environment())
    index_head(table, CELLS)
    reader = opened(table)

    def fail(*_: object, **__: object) -> None:
        raise StorageError("the store is busy")

    monkeypatch.setattr(ShardMasker, "read", fail)
    assert reader.search(queries(1), 10, columns=[]).profile.strategy == "cells"
    reader._choice.loaded.shards._fetching.join()  # type: ignore[union-attr]
    assert [record.getMessage().count("could not be fetched") for record in caplog.records] == [1, 1]
    answer = reader.search(queries(1), 10, columns=[])
    assert "the store is busy" in answer.warnings[0]
    assert "cells" not in answer.profile.strategy


def damage(table: Table, section: Section, offset: int = 200) -> None:
    """Flip a bit of each cell, or of the directory, of each shard."""
    version = open_version(index_versions(table, "e")[-1], STORAGE)
    for shard in version.shards:
        entry = open_shard(shard, STORAGE).header.find(section)
        assert entry is not None
        path = to_path(shard.path)
        data = bytearray(path.read_bytes())
        start = shard.blob.offset + entry.offset
        for at in range(start + offset, start + entry.stored_length, ROWS):
            data[at] ^= 4
        path.write_bytes(data)


def test_a_certified_answer_starts_from_cells_and_is_exact(table: Table) -> None:
    index_head(table, CELLS)
    answer = opened(table).search(queries(1), 10, columns=["id"], certified=True)
    assert answer.profile.strategy == "cells + certified"
    exact = opened(table).search(queries(1), 10, columns=["id"], where="id >= 0")
    assert answer.rows.equals(exact.rows)


@pytest.mark.parametrize("section", [Section.CELLS, Section.CELL_DIRECTORY])
def test_damaged_cells_are_noticed(table: Table, section: Section) -> None:
    index_head(table, CELLS)
    damage(table, section)
    answer = opened(table).search(queries(1), 10, columns=[])
    assert "cells" not in answer.profile.strategy
    assert any("checksum" in warning or "sha256" in warning for warning in answer.warnings)
    assert check_integrity(RunContext(table, STORAGE), index_versions(table, "e")[-1]).faults


def test_what_a_later_release_adds_and_nobody_need_know_is_passed_over(
    table: Table, table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, encode_footer = shard_blob.encode, puffin_writer.encode_footer
    written = []

    def later_shard(shard: shard_blob.Shard) -> list[bytes]:
        return [samples.with_section(b"".join(encode(shard)), 32_768, bytes(500))]

    def later_footer(footer: Footer) -> bytes:
        blobs = [replace(blob, properties={**blob.properties, "ann.later": "[1]"}) for blob in footer.blobs]
        blobs.append(BlobMetadata("icepuffin-ann-later-v1", (), 1, 1, 4, 0, None, {}))
        written.append(len(blobs))
        return encode_footer(Footer(tuple(blobs), {**footer.properties, "later": ""}))

    plain = table_factory("plain")
    for start in (0, 1_500):
        plain.append(make_rows(start, start + 1_500))
    index_head(plain, CELLS)
    asked = queries(1)
    cold, whole = distances(opened(plain), asked, 10), distances(warm(plain), asked, 10)
    with monkeypatch.context() as patch:
        patch.setattr(shard_blob, "encode", later_shard)
        patch.setattr(puffin_writer, "encode_footer", later_footer)
        index_head(table, CELLS)
    assert written
    assert opened(table).search(asked, 10, columns=["id"]).profile.strategy == "cells"
    assert (distances(opened(table), asked, 10), distances(warm(table), asked, 10)) == (cold, whole)
    assert not check_integrity(RunContext(table, STORAGE), index_versions(table, "e")[-1]).faults
    table.append(make_rows(3_000, 3_100))
    index_head(table, CELLS)
    assert len(distances(opened(table), asked, 10)) == 10


def test_vectors_that_are_not_those_of_the_cells_are_noticed(table: Table) -> None:
    index_head(table, CELLS)
    version = open_version(index_versions(table, "e")[-1], STORAGE)
    for run in (run for shard in version.shards for run in shard.runs):
        path = to_path(run.location.path)
        data = bytearray(path.read_bytes())
        data[run.location.offset : run.location.offset + run.location.length] = bytes(run.location.length)
        path.write_bytes(data)
    answer = opened(table).search(queries(1), 10, columns=[])
    assert "cells" not in answer.profile.strategy
    assert answer.warnings


def test_codes_of_other_vectors_are_a_fault(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    real = cells.encode

    def other(vectors: np.ndarray, bits: int) -> cells.CodedCell:
        return real(vectors[::-1], bits)

    with monkeypatch.context() as patch:
        patch.setattr(cells, "encode", other)
        index_head(table, CELLS)
    faults = check_integrity(RunContext(table, STORAGE), index_versions(table, "e")[-1]).faults
    assert len(faults) == 2
    assert all("the codes of cell 0 are not those of the shard's vectors" in fault for fault in faults)


def test_cells_that_are_cut_off_are_noticed(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    index_head(table, CELLS)
    reader = opened(table)
    real = LocalStorage.read_ranges

    def short(self: LocalStorage, path: str, ranges: Any) -> list[bytes]:
        return [part[:-1] for part in real(self, path, ranges)] if "puffin" in path else real(self, path, ranges)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "read_ranges", short)
        assert isinstance(reader._choice.loaded, LoadedVersion)
        cold = reader._choice.loaded.cold
        assert cold is not None
        with pytest.raises(Exception, match="is cut off at"):
            cold.search([0, 1], {}, queries(1).astype(np.float64), 10)


def test_cells_whose_file_is_gone_give_way_to_the_data_files(table: Table) -> None:
    index_head(table, CELLS)
    reader = opened(table)
    to_path(index_versions(table, "e")[-1].puffin_path).unlink()
    answer = reader.search(queries(1), 10, columns=["id"])
    exact = opened(table, replace(CELLS, name="other")).search(queries(1), 10, columns=["id"])
    assert answer.rows.equals(exact.rows)
    assert any("does not exist" in warning for warning in answer.warnings)


def test_the_check_of_a_version_passes_and_cells_may_be_set_later(table: Table) -> None:
    index_head(table, replace(CELLS, cells="none"))
    assert answer_with_recall(table, definition=replace(CELLS, cells="none"))[1] > 0.8
    report = index_head(table, CELLS)
    assert {shard.how for shard in report.shard_reports} == {"built"}
    assert not check_integrity(RunContext(table, STORAGE), index_versions(table, "e")[-1]).faults
    assert recall(table, count=5) >= 0.95


_SHORT_LIVED = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.storage.local_storage import LocalStorage
from tests.ops.search.indexed.test_cold_shards import CELLS
LocalStorage.piece_bytes, real = 2048, LocalStorage.read_ranges
def slowly(self, path, ranges):
    time.sleep(0.05)
    return real(self, path, ranges)
LocalStorage.read_ranges = slowly
table = open_catalog("test", {"type": "sql", "uri": sys.argv[1], "warehouse": sys.argv[2]}).load_table("db.t")
print(open_index(table, CELLS).search([0.0] * 16, 10, columns=[]).profile.strategy)
ThreadPoolExecutor(1).submit(time.sleep, 1)  # the main thread waits for it, and executors refuse work meanwhile
"""


def test_a_process_that_ends_leaves_its_fetching_alone(table: Table, tmp_path: Path) -> None:
    index_head(table, CELLS)
    places = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    ended = subprocess.run(
        [sys.executable, "-c", _SHORT_LIVED, *places], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert (ended.stdout, ended.stderr) == ("cells\n", "")
