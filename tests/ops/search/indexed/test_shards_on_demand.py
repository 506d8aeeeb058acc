"""Shards that searches load when they need them: the same answers as with all shards loaded, or another path, said."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Semaphore

import numpy as np
import pytest
from pyiceberg.table import Table
from pyiceberg.types import DoubleType

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.cache import CacheSettings, ReadyShard, ShardCache, disk, use_settings
from icepuffin.ops.cache.fetching import FetchedShard
from icepuffin.ops.filters.matches import Matches
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.versions.version_reader import OpenVersion, open_version
from icepuffin.ops.model import ShardId
from icepuffin.ops.search import opening
from icepuffin.ops.search.errors import IndexUnavailableError
from icepuffin.ops.search.indexed import loaded_version
from icepuffin.ops.search.indexed.loaded_version import LoadedVersion, ShardsOnDemand
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import Coverage, SearchResult
from icepuffin.ops.shards.masked_shards import MaskedShard
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.tasks.task_runner import LocalRunner
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, index_head
from tests.patience import PATIENCE

SHARDED = replace(DEFINITION, shards=4)


@pytest.fixture(autouse=True)
def _every_index_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_version, "LOADED_AT_ONCE", -1)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Offsets of the shards that were loaded, in order."""
    offsets: list[int] = []
    real = ShardCache.shard

    def shard(self: ShardCache, key: object, *args: object, **named: object) -> ReadyShard:
        offsets.append(key.where.offset)  # type: ignore[attr-defined]
        return real(self, key, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(ShardCache, "shard", shard)
    return offsets


def opened(table: Table, definition: IndexDefinition = SHARDED, **options: object) -> IndexReader:
    return open_index(table.refresh(), definition, storage=STORAGE, **options)  # type: ignore[arg-type]


def loaded_at_once(table: Table, monkeypatch: pytest.MonkeyPatch, definition: IndexDefinition = SHARDED) -> IndexReader:
    with monkeypatch.context() as patch:
        patch.setattr(loaded_version, "LOADED_AT_ONCE", 1 << 40)
        return opened(table, definition)


def shards_of(reader: IndexReader) -> object:
    assert isinstance(reader._choice.loaded, LoadedVersion)
    return reader._choice.loaded.shards


def test_opening_loads_no_shard_and_a_search_those_that_it_probes(table: Table, loads: list[int]) -> None:
    index_head(table, SHARDED)
    loads.clear()
    reader = opened(table)
    assert loads == []
    assert reader.coverage is Coverage.EXACT_VERSION
    reader.search(queries(1), 3, shards=1, columns=[])
    assert len(loads) == 1
    reader.search(queries(1), 3, shards=1, columns=[])
    assert len(loads) == 1
    reader.search(queries(5), 3, columns=[])
    assert len(loads) == len(set(loads)) == 4


def test_shards_are_loaded_on_demand_from_a_byte_over_the_limit_on(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_head(table, SHARDED)
    version = open_version(index_versions(table.refresh(), SHARDED.name)[-1], STORAGE)
    size = sum(shard.length for shard in version.shards)
    found = []
    for limit in (size, size - 1):
        monkeypatch.setattr(loaded_version, "LOADED_AT_ONCE", limit)
        reader = opened(table)
        opening_cost = reader.search(queries(1), 1, columns=[]).opening
        found.append((isinstance(shards_of(reader), ShardsOnDemand), opening_cost and opening_cost.index_bytes))
    assert found == [(False, size), (True, 0)]


def test_tasks_search_an_index_of_which_this_process_has_some_shards_alone(table: Table) -> None:
    index_head(table, SHARDED)
    use_settings(CacheSettings(disk_bytes=0))
    tiers = []
    for shards in (1, 4):
        opened(table).search(queries(1), 3, shards=shards, columns=[])
        tiers.append(opened(table, runner=LocalRunner(1), in_process_mb=0).tier)
    assert tiers == ["distributed", "in-process"]


def change_nothing(_: Table) -> None: ...


def append(table: Table) -> None:
    table.append(make_rows(600, 650))


def delete(table: Table) -> None:
    append_position_deletes(table, {task.file.file_path: np.array([0, 5, 6]) for task in table.scan().plan_files()})


def overwrite(table: Table) -> None:
    table.delete("id < 100")


def refreshed_after(change: Callable[[Table], None]) -> Callable[[Table], None]:
    def refresh(table: Table) -> None:
        change(table)
        index_head(table, SHARDED)

    return refresh


CHANGES = {
    "none": change_nothing,
    "append": append,
    "delete": delete,
    "overwrite": overwrite,
    "append, refreshed": refreshed_after(append),
    "delete, refreshed": refreshed_after(delete),
    "overwrite, refreshed": refreshed_after(overwrite),
}


@pytest.mark.parametrize("vectors", ["f32", "none"])
@pytest.mark.parametrize("change", CHANGES)
def test_answers_are_those_of_shards_that_are_loaded_at_once(
    table: Table, monkeypatch: pytest.MonkeyPatch, change: str, vectors: str
) -> None:
    definition = replace(SHARDED, vectors=vectors, pq_m=4 if vectors == "none" else SHARDED.pq_m)
    index_head(table, definition)
    CHANGES[change](table.refresh())
    index = definition if "refreshed" not in change else SHARDED
    reader, other = opened(table, index), loaded_at_once(table, monkeypatch, index)
    assert isinstance(shards_of(reader), ShardsOnDemand) is (change not in ("delete", "overwrite"))
    assert not isinstance(shards_of(other), ShardsOnDemand)
    for answer in (
        lambda one: one.search(queries(1)[0], 3, shards=2),
        lambda one: one.search(queries(6), 7),
        lambda one: one.search(queries(6), 7, where="section = 'section 2'"),
        lambda one: one.search(queries(2), 5, target_recall=0.9),
        lambda one: one.within(queries(2), 20.0),
    ):
        result, expected = answer(reader), answer(other)
        assert result.rows.equals(expected.rows)
        assert (result.coverage, result.warnings) == (expected.coverage, expected.warnings)
    assert reader._choice.covered == other._choice.covered
    assert reader._choice.loaded.enclosed == other._choice.loaded.enclosed  # type: ignore[union-attr]
    assert reader._choice.loaded.exact == other._choice.loaded.exact  # type: ignore[union-attr]


def test_vectors_of_doubles_are_no_more_exact_on_demand(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    index_head(table, SHARDED)
    with table.refresh().update_schema() as change:
        change.update_column("embedding.element", DoubleType())
    reader, other = opened(table), loaded_at_once(table, monkeypatch)
    assert isinstance(shards_of(reader), ShardsOnDemand)
    result, expected = reader.search(queries(3), 5), other.search(queries(3), 5)
    assert result.rows.equals(expected.rows)
    assert result.warnings == expected.warnings
    assert "doubles" in result.warnings[0]
    assert reader.within(queries(2), 20.0).rows.equals(other.within(queries(2), 20.0).rows)


def test_a_routing_blob_whose_sums_differ_is_not_trusted(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    index_head(table, SHARDED)
    real = opening.without_files

    def one_row_less(version: OpenVersion, paths: frozenset[str]) -> OpenVersion:
        shards = list(version.routing.shards)
        shards[0] = replace(shards[0], live_rows=shards[0].live_rows - 1)
        return real(replace(version, routing=replace(version.routing, shards=tuple(shards))), paths)

    monkeypatch.setattr(opening, "without_files", one_row_less)
    assert not isinstance(shards_of(opened(table)), ShardsOnDemand)


def test_a_version_that_is_gone_at_the_first_search_is_done_without(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE", "off")
    index_head(table, SHARDED)
    reader = opened(table)
    version = reader.version or pytest.fail("gone")
    to_path(version.puffin_path).unlink()
    result = reader.search(queries(2), 5)
    assert result.coverage is Coverage.EXACT_SCAN
    assert any("is not a readable index version" in warning for warning in result.warnings)


def test_threads_load_each_shard_once(table: Table, loads: list[int]) -> None:
    index_head(table, SHARDED)
    loads.clear()
    reader = opened(table)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: reader.search(queries(3), 5), range(16)))
    assert len(loads) == len(set(loads)) == 4
    assert all(result.rows.equals(results[0].rows) for result in results)


def test_the_shards_of_a_search_are_loaded_side_by_side(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    both = Barrier(2, timeout=PATIENCE)
    real = ShardCache.shard

    def shard(self: ShardCache, *args: object, **named: object) -> ReadyShard:
        both.wait()
        return real(self, *args, **named)  # type: ignore[arg-type]

    definition = replace(DEFINITION, shards=2)
    index_head(table, definition)
    monkeypatch.setattr(ShardCache, "shard", shard)
    assert len(opened(table, definition, threads=2).search(queries(3), 5)) == 15


def test_a_reader_that_follows_has_loaded_all_shards_before_it_answers(table: Table, loads: list[int]) -> None:
    index_head(table, SHARDED)
    reader = opened(table)
    append(table.refresh())
    index_head(table, SHARDED)
    with reader.follow(interval=1e6) as following:
        assert following.update()
        assert not isinstance(shards_of(following.reader), ShardsOnDemand)
        loads.clear()
        following.search(queries(2), 3)
        assert loads == []


def damage(reader: IndexReader) -> int:
    """Flip a bit in the middle of one shard. Returns its offset."""
    version = reader._choice.opened
    assert version is not None
    shard = version.shards[2].blob
    path = to_path(shard.path)
    data = bytearray(path.read_bytes())
    data[shard.offset + shard.length // 2] ^= 1
    path.write_bytes(data)
    return shard.offset


CONDITION = "section = 'section 2'"
SEARCHES: dict[str, Callable[[IndexReader], SearchResult]] = {
    "search": lambda reader: reader.search(queries(4), 5),
    "within": lambda reader: reader.within(queries(1), 99.0, limit=7, columns=["id"], where=CONDITION),
    "certified": lambda reader: reader.search(  # the proof needs the others
        queries(1), 5, shards=1, certified=True, columns=["id"], where=CONDITION
    ),
}


@pytest.mark.parametrize("how", SEARCHES)
def test_a_damaged_shard_is_noticed_when_it_is_needed_and_another_version_serves(table: Table, how: str) -> None:
    index_head(table, SHARDED)
    append(table.refresh())
    index_head(table, SHARDED)
    with_cache_off = pytest.MonkeyPatch()
    with_cache_off.setenv("ICEPUFFIN_SHARD_CACHE", "off")
    try:
        reader, strict = opened(table), opened(table, stale="fail")
        damage(reader)
        result = SEARCHES[how](reader)
        assert result.coverage is Coverage.NEAREST_VERSION_AND_TAIL
        assert any("cannot be read" in warning for warning in result.warnings)
        expected = SEARCHES[how](open_exact(table, "embedding", SHARDED.metric, storage=STORAGE))
        if how != "search":
            assert result.rows.sort_by("distance")["id"].equals(expected.rows.sort_by("distance")["id"])
            assert result.rows.column_names == ["query", "rank", "distance", "id"]
        assert (result.profile.certificate is not None) == (how == "certified")
        with pytest.raises(IndexUnavailableError, match="has no version"):
            strict.search(queries(1), 5)
    finally:
        with_cache_off.undo()


@pytest.mark.parametrize("inclusive", [False, True])
def test_rows_at_the_very_distance_are_taken_as_requested_where_a_shard_is_damaged(
    table: Table, monkeypatch: pytest.MonkeyPatch, inclusive: bool
) -> None:
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE", "off")
    index_head(table, SHARDED)
    reader, exact = opened(table), open_exact(table, "embedding", SHARDED.metric, storage=STORAGE)
    third = exact.search(queries(1), 3, columns=[]).rows["distance"][2].as_py()
    damage(reader)
    result = reader.within(queries(1), third, inclusive=inclusive, columns=["id"])
    assert result.coverage is Coverage.EXACT_SCAN
    assert len(result) == (3 if inclusive else 2)


def test_what_serves_in_place_of_a_damaged_shard_is_opened_once(
    table: Table, monkeypatch: pytest.MonkeyPatch, loads: list[int]
) -> None:
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE", "off")
    index_head(table, SHARDED)
    append(table.refresh())
    index_head(table, SHARDED)
    reader = opened(table)
    damaged = damage(reader)
    version = reader._choice.opened
    assert version is not None
    reader.search(queries(2), 5)
    loads.clear()
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: reader.search(queries(2), 5), range(4)))
    counts = Counter(loads)
    assert counts.pop(damaged) == len(results), "the damaged one is tried again"
    assert counts.keys() <= {shard.blob.offset for shard in version.shards}, "of this reader's version alone"
    assert {*counts.values()} <= {1}, "which the first search had begun to load beside the damaged one, or had not"
    assert all(result.coverage is Coverage.NEAREST_VERSION_AND_TAIL for result in results)


def test_a_reader_that_follows_takes_up_a_version_whose_shard_is_mended(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE", "off")
    index_head(table, SHARDED)
    reader = opened(table)
    with reader.follow(interval=1e6) as following:
        damage(reader)
        assert following.search(queries(2), 5).coverage is Coverage.EXACT_SCAN
        assert following.update()
        assert following.reader.coverage is Coverage.EXACT_SCAN
        damage(reader)  # flips the bit back
        assert following.update()
        assert following.search(queries(2), 5).coverage is Coverage.EXACT_VERSION


def test_the_version_that_serves_in_place_of_another_is_searched_as_requested(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE", "off")
    halves = replace(SHARDED, vectors="f16")
    index_head(table, halves)
    append(table.refresh())
    index_head(table, halves)
    reader, exact = opened(table, halves), opened(table, halves, stale="exact")
    damage(reader)
    result = reader.search(queries(4), 5, rerank=True)
    assert result.coverage is Coverage.NEAREST_VERSION_AND_TAIL
    assert result.rows["distance"].equals(exact.search(queries(4), 5).rows["distance"])
    assert reader.search(queries(4), 5, search_list=77).profile.parameters.search_list == 77  # type: ignore[union-attr]


def other_live_rows(version: OpenVersion) -> OpenVersion:
    """As if one file had the live rows of another: their sum stays the same."""
    files = list(version.routing.files)
    files[0], files[1] = (replace(files[0], live_rows=files[0].live_rows - 1),
                          replace(files[1], live_rows=files[1].live_rows + 1))  # fmt: skip
    return replace(version, routing=replace(version.routing, files=tuple(files)))


def other_tombstones(version: OpenVersion) -> OpenVersion:
    """As if other nodes were tombstones, as many as there are."""
    shards = list(version.routing.shards)
    number = next(number for number, entry in enumerate(shards) if len(entry.tombstones))
    moved = np.setdiff1d(np.arange(shards[number].count), shards[number].tombstones)
    shards[number] = replace(shards[number], tombstones=moved[: len(shards[number].tombstones)])
    return replace(version, routing=replace(version.routing, shards=tuple(shards)))


def other_vectors(version: OpenVersion) -> OpenVersion:
    """As if shards held vectors as they are."""
    return replace(version, definition=replace(version.definition, vectors="f32"))


@pytest.mark.parametrize("lie", [other_live_rows, other_tombstones, other_vectors])
def test_what_the_routing_blob_says_is_counted_before_an_answer_of_all_shards(
    table: Table, monkeypatch: pytest.MonkeyPatch, lie: Callable[[OpenVersion], OpenVersion]
) -> None:
    """Then nodes decide, as they do where all shards are loaded at once."""
    definition = replace(SHARDED, vectors="f16") if lie is other_vectors else SHARDED
    append(table)
    index_head(table, definition)
    delete(table.refresh())
    index_head(table, definition)
    real = opening.without_files
    monkeypatch.setattr(opening, "without_files", lambda version, paths: lie(real(version, paths)))
    reader, other = opened(table, definition), loaded_at_once(table, monkeypatch, definition)
    assert isinstance(shards_of(reader), ShardsOnDemand)
    result, expected = reader.search(queries(6), 7), other.search(queries(6), 7)
    assert reader._reloaded is not None
    assert result.rows.equals(expected.rows)
    assert result.coverage is expected.coverage
    assert (result.coverage is Coverage.EXACT_VERSION) is (lie is not other_live_rows)


def test_a_search_does_not_wait_for_codes_and_later_ones_have_them(
    table: Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    definition = replace(DEFINITION, shards=2)
    index_head(table, definition)
    expected = loaded_at_once(table, monkeypatch, definition)
    monkeypatch.setattr("icepuffin.ops.cache.fetching.MIN_CODED", 1)
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE", str(tmp_path / "another-cache"))
    monkeypatch.setattr(disk, "_STRIPES", 1 << 40)  # so that no shard waits for the lock of another one
    codes_may_come, real = Semaphore(0), FetchedShard.with_codes

    def with_codes(self: FetchedShard, *args: object) -> object:
        assert codes_may_come.acquire(timeout=600)
        return real(self, *args)  # type: ignore[arg-type]

    matched, nodes = list[int](), Matches.nodes

    def nodes_of(self: Matches, shard_id: ShardId, shard: MaskedShard) -> Bitmap:
        matched.append(shard_id)
        return nodes(self, shard_id, shard)

    monkeypatch.setattr(FetchedShard, "with_codes", with_codes)
    monkeypatch.setattr(Matches, "nodes", nodes_of)
    reader = opened(table, definition)
    loaded = reader._choice.loaded
    assert isinstance(loaded, LoadedVersion)

    def answers(one: IndexReader) -> list[object]:
        condition = "section = 'section 2'"
        return [one.search(queries(6), 5, where=where).rows.to_pydict() for where in (None, condition)]

    right_answers = answers(expected)
    matched.clear()
    for complete in range(3):
        assert answers(reader) == answers(reader) == right_answers
        (restricted,) = loaded._restricted.values()
        for shards in (loaded.shards, restricted):
            assert sum(shard.is_complete for shard in shards) == complete
        waiting = [shard.shard.completion for shard in restricted if shard.shard.completion is not None]
        codes_may_come.release()
        while waiting and not any(completion.ended.wait(0.01) for completion in waiting):
            pass
    assert matched == [0, 1], "once per shard: in a forked process, no codes come"
