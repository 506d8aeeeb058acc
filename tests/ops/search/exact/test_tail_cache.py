"""A freshness tail in memory: answers are those of a scan of its data files, which are read once."""

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from weakref import finalize

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.codes import scalar_quantization
from icepuffin.ann_kernels.codes.scalar_quantization import ScalarCodes
from icepuffin.ann_kernels.distances.coded_comparison import CodedVectors
from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.distances.top_k import ExactTopK
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.cache import CacheSettings, use_settings
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.model import MIB, FileNumber
from icepuffin.ops.process.process_budget import TAIL_MEMORY, ProcessBudget
from icepuffin.ops.rows.datafile import DataFileError
from icepuffin.ops.search.exact.file_scans import FileScans, TaskChoice
from icepuffin.ops.search.exact.scan import SkippedRows
from icepuffin.ops.search.exact.tail_cache import CachedRows, TailCache, kept_bytes
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import Coverage, SearchResult
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.task_runner import LocalRunner
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, index_head
from tests.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("no_disk_cache")

INDEXED, TAIL, DIMS = 200, 1_300, 8
"""Rows of the index, rows of its tail, of which more live ones are left than have codes, and their dimensions"""
KINDS = [
    ("l2", "float", "f32"),
    ("cosine", "float", "f32"),
    ("ip", "float", "f32"),
    ("cosine", "double", "f32"),
    ("l2", "double", "f16"),
    ("l2", "float", "none"),
]


@pytest.fixture(autouse=True)
def _memory_of_earlier_readers_is_released() -> None:
    gc.collect()


def drawn_rows(rng: np.random.Generator, first: int, count: int, kind: str) -> pa.Table:
    """Rows in clusters, every tenth with the vector of another one."""
    vectors = rng.standard_normal((5, DIMS))[rng.integers(0, 5, count)] + 0.3 * rng.standard_normal((count, DIMS))
    vectors[::10] = vectors[rng.integers(0, count, len(vectors[::10]))]
    column = pa.array(vectors.tolist(), pa.list_(pa.float64())).cast(pa.list_(pa.type_for_alias(kind)))
    ids = np.arange(first, first + count)
    return pa.table({"id": ids, "section": ids % 7, "embedding": column})


class TableWithTail:
    """An indexed table with a tail in two files, rows of which are deleted; a reader with memory and one without."""

    def __init__(self, catalog: Catalog, metric: str, kind: str, vectors: str) -> None:
        rng = np.random.default_rng([7, *metric.encode(), *kind.encode()])
        self.name = f"db.{metric}_{kind}_{vectors}"
        self.table = catalog.create_table(
            self.name, drawn_rows(rng, 0, 0, kind).schema, properties={"format-version": "2"}
        )
        self.table.append(drawn_rows(rng, 0, INDEXED, kind))
        self.definition = replace(DEFINITION, metric=metric, vectors=vectors, target_recall=0.01, shards=1)
        index_head(self.table, self.definition)
        self.table.append(drawn_rows(rng, INDEXED, TAIL - 40, kind))
        self.table.append(drawn_rows(rng, INDEXED + TAIL - 40, 40, kind))
        for file in live_files(self.table.refresh(), self.table.metadata.current_snapshot_id or 0).files:
            deleted = np.flatnonzero(rng.random(file.record_count) < 0.1)
            append_position_deletes(self.table, {file.path: deleted})
        self.queries = rng.standard_normal((24, DIMS))
        self.kept = open_index(self.table.refresh(), self.definition, storage=STORAGE)
        self.kept.search(self.queries[0], 1, columns=[])
        use_settings(CacheSettings(disk_bytes=0, tail_bytes=0))
        self.scanning = open_index(self.table, self.definition, storage=STORAGE)


@pytest.fixture(scope="module")
def tables(catalog: Catalog) -> Callable[..., TableWithTail]:
    kept_tables: dict[tuple[str, ...], TableWithTail] = {}

    def of(*kind: str) -> TableWithTail:
        if kind not in kept_tables:
            kept_tables[kind] = TableWithTail(catalog, *kind)
        return kept_tables[kind]

    return of


def both(tailed: TableWithTail, search: Callable[[IndexReader], SearchResult]) -> tuple[SearchResult, SearchResult]:
    """The answers of the reader with a tail in memory, and of the one that scans."""
    use_settings(CacheSettings(disk_bytes=0, tail_bytes=0))
    scanned = search(tailed.scanning)
    use_settings(CacheSettings(disk_bytes=0))
    return search(tailed.kept), scanned


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_answers_of_a_tail_in_memory_are_those_of_a_scan(
    tables: Callable[..., TableWithTail], kind: tuple[str, ...], data: st.DataObject
) -> None:
    tailed = tables(*kind)
    size = data.draw(st.sampled_from([1, 2, 20]))
    first = data.draw(st.integers(0, 24 - size))
    vectors = tailed.queries[first : first + size]
    k = data.draw(st.sampled_from([1, 3, 10, 140, 2_000]))
    section = data.draw(st.integers(-1, 7))
    where = data.draw(st.sampled_from([None, f"section = {section}", f"id > {INDEXED + TAIL - 60}", "id < 5"]))
    way = data.draw(st.sampled_from(["nearest", "within", "certified"]))
    if way == "certified" and kind[0] == "ip":
        way = "nearest"

    def search(reader: IndexReader) -> SearchResult:
        if way == "within":
            return reader.within(vectors, float(limits[kind[0]]), columns=["id"], where=where, limit=k)
        return reader.search(vectors, k, columns=["id"], where=where, certified=way == "certified")

    limits = {"l2": 2.0, "cosine": 0.4, "ip": -1.0}
    kept, scanned = both(tailed, search)
    assert kept.rows.equals(scanned.rows)
    assert kept.warnings == scanned.warnings
    assert kept.coverage is scanned.coverage is Coverage.NEAREST_VERSION_AND_TAIL
    assert kept.profile.tail_rows == scanned.profile.tail_rows
    assert kept.profile.matching_rows == scanned.profile.matching_rows
    if way == "nearest":
        assert "in memory" in kept.profile.tail
        assert kept.profile.bytes_read["scan"] == 0
        assert "read from the data files" in scanned.profile.tail


def test_large_tails_are_compared_by_codes_but_for_doubles_that_have_no_direction(
    tables: Callable[..., TableWithTail],
) -> None:
    for kind in KINDS:
        kept, _ = both(tables(*kind), lambda reader: reader.search(np.ones(DIMS), 3, columns=[]))
        assert kept.profile.tail.endswith("compared each" if kind[:2] == ("l2", "double") else "compared by codes")


def test_rows_that_rounding_to_floats_cannot_tell_apart_come_in_their_true_order() -> None:
    """Under cosine: codes and rounded directions put rows in another order than their vectors."""
    rng = np.random.default_rng(3)
    raw = rng.standard_normal(DIMS) + 1e-7 * rng.standard_normal((1_100, DIMS))
    units = prepare(raw, Metric.COSINE)
    coded = CodedVectors(units, cast("ScalarCodes", scalar_quantization.encode(units)))
    addresses = np.arange(1_100)
    kept = CachedRows(frozenset(), Metric.COSINE, addresses, units, raw, SkippedRows(), coded)
    directions = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    others = directions[7:9] + 1e-7 * rng.standard_normal((2, DIMS))
    for query in (*directions[:5, None], *(others / np.linalg.norm(others, axis=1, keepdims=True))[:, None]):
        true = ExactTopK(query, 5, Metric.COSINE)
        true.update(units, addresses, raw=raw)
        candidates, _ = kept.nearest(query, 5, None)
        assert candidates.positions.tolist() == true.result()[0].tolist()
        assert candidates.distances.tolist() == true.result()[1].tolist()


def with_tail(table: Table, definition: IndexDefinition = DEFINITION) -> Table:
    """The table, indexed, and 50 rows after that."""
    index_head(table, definition)
    table.append(make_rows(600, 650))
    return table.refresh()


def data_file_of_tail(table: Table) -> Path:
    live = live_files(table, table.metadata.current_snapshot_id or 0)
    return to_path(min(live.files, key=lambda file: file.record_count).path)


def test_the_second_query_needs_no_data_file(table: Table) -> None:
    reader = open_index(with_tail(table), DEFINITION, storage=STORAGE)
    first = reader.search(queries(1), 10, columns=[])
    assert first.profile.bytes_read == {"index": 0, "scan": 50 * 16 * 4, "rows": 0}
    data_file_of_tail(table).unlink()
    second = reader.search(queries(1), 10, columns=[])
    assert second.rows.equals(first.rows)
    assert second.profile.bytes_read == {"index": 0, "scan": 0, "rows": 0}
    assert second.profile.tail == "50 rows in memory, compared each"
    assert "tail       50 rows in memory" in second.explain()
    limit = first.rows["distance"][4].as_py()
    assert reader.within(queries(1), limit, inclusive=True, columns=[]).rows.equals(first.rows.slice(0, 5))


def test_without_memory_for_tails_each_query_reads_the_files(table: Table) -> None:
    use_settings(CacheSettings(disk_bytes=0, tail_bytes=0))
    reader = open_index(with_tail(table), DEFINITION, storage=STORAGE)
    for _ in range(2):
        answer = reader.search(queries(1), 10, columns=[])
        assert answer.profile.bytes_read["scan"] == 50 * 16 * 4
        assert answer.profile.tail == "read from the data files: tail_mb is 0"
    assert reader.kept_tail.rows == 0
    data_file_of_tail(table).unlink()
    with pytest.raises(DataFileError):
        reader.search(queries(1), 10, columns=[])


def test_readers_share_one_budget_and_give_it_back(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table = with_tail(table)
    before = TAIL_MEMORY.reserved
    first, second = (open_index(table, DEFINITION, storage=STORAGE) for _ in range(2))
    first.search(queries(1), 10, columns=[])
    size = first.kept_tail.bytes
    assert TAIL_MEMORY.reserved == before + size > before
    use_settings(CacheSettings(disk_bytes=0, tail_bytes=before + 2 * size - 1))
    answer = second.search(queries(1), 10, columns=[])
    assert answer.profile.tail.startswith("read from the data files: in memory it takes ")
    assert (second.kept_tail.rows, second.kept_tail.why) == (0, answer.profile.tail)
    del first
    gc.collect()
    assert TAIL_MEMORY.reserved == before
    assert second.search(queries(1), 10, columns=[]).rows.equals(answer.rows)
    assert second.kept_tail.rows == 50
    del second
    gc.collect()
    assert TAIL_MEMORY.reserved == before


def test_a_tail_that_cannot_be_read_takes_no_memory(table: Table) -> None:
    reader = open_index(with_tail(table), DEFINITION, storage=STORAGE)
    path, before = data_file_of_tail(table), TAIL_MEMORY.reserved
    hidden = path.rename(path.with_suffix(".hidden"))
    for _ in range(2):
        with pytest.raises(DataFileError):
            reader.search(queries(1), 10, columns=[])
        assert TAIL_MEMORY.reserved == before
    hidden.rename(path)
    assert reader.search(queries(1), 10, columns=[]).profile.tail_rows == 50
    assert reader.kept_tail.rows == 50


MATCHES_ALONE = "read from the data files: those of the matches alone, "


def test_queries_under_conditions_read_their_matches_until_the_tail_is_worth_it(table: Table) -> None:
    reader = open_index(with_tail(table), DEFINITION, storage=STORAGE)
    for _ in range(7):
        first = reader.search(queries(1), 10, columns=[], where="id in (3, 610, 620)")
        assert first.profile.tail == f"{MATCHES_ALONE}until such searches have read as much as it is"
        assert first.profile.bytes_read["scan"] == 2 * 16 * 4
    eighth = reader.search(queries(1), 10, columns=[], where="id in (3, 610, 620)")
    assert eighth.rows.equals(first.rows)
    assert reader.kept_tail.rows == 50
    assert (eighth.profile.tail_rows, eighth.profile.bytes_read["scan"]) == (2, 50 * 16 * 4)
    other = open_index(table, DEFINITION, storage=STORAGE)
    for rows in (0, 50):
        other.search(queries(1), 10, columns=[], where="id >= 615")
        assert other.kept_tail.rows == rows, "matches of more than half of it are read once"


def test_a_condition_needs_no_file_but_those_of_its_matches(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table = with_tail(table)
    table.append(make_rows(650, 660))
    reader = open_index(table.refresh(), DEFINITION, storage=STORAGE)
    expected, before = reader.search(queries(1), 10, columns=[], where="id >= 650"), TAIL_MEMORY.reserved
    old = {task.file.file_path for task in table.scan("id >= 600 and id < 650").plan_files()}
    for path in old:
        Path(to_path(path)).unlink()
    read: Any = CachedRows.read
    attempts: list[object] = []
    monkeypatch.setattr(CachedRows, "read", lambda *given, **options: (attempts.append(given), read(*given, **options)))
    for _ in range(15):  # with the one before, twice as many as take as long as the tail
        answer = reader.search(queries(1), 10, columns=[], where="id >= 650")
        assert answer.rows.equals(expected.rows)
        assert answer.profile.tail.startswith(MATCHES_ALONE)
    assert reader.kept_tail.rows == reader.kept_tail.bytes == 0
    assert len(attempts) == 2, "it is tried again after as many searches, and not by each"
    assert TAIL_MEMORY.reserved == before
    with pytest.raises(DataFileError):
        reader.search(queries(1), 10, columns=[])


def test_the_profile_of_every_kind_of_search_says_where_the_tail_was(table: Table) -> None:
    reader = open_index(with_tail(table), DEFINITION, storage=STORAGE)
    before = reader.within(queries(1), 1e9, columns=[]).profile
    assert before.tier_why == "the index is in this process's memory; the data files in reach are read here"
    within = reader.within(queries(1), 1e9, columns=[]).profile
    assert within.tier_why == f"{before.tier_why}, but 1 whose rows are in memory"
    assert (within.tail_rows, within.tail) == (50, "50 rows in memory, compared each")
    certified = reader.search(queries(1), 5, columns=[], certified=True).profile
    assert certified.tail == within.tail
    assert certified.bytes_read["scan"] == 0
    use_settings(CacheSettings(disk_bytes=0, tail_bytes=0))
    other = open_index(table, DEFINITION, storage=STORAGE)
    scanned = other.search(queries(1), 5, columns=[], certified=True).profile
    assert scanned.bytes_read["compare"] - certified.bytes_read["compare"] == 50 * 16 * 4
    use_settings(CacheSettings(disk_bytes=0))
    batch = other.search(queries(2), 5, columns=[], where=["id >= 645", None]).profile
    assert batch.tail == f"{MATCHES_ALONE}until such searches have read as much as it is; {within.tail}"


def test_a_process_that_is_forked_while_the_tail_is_read_can_search(table: Table) -> None:
    reader = open_index(with_tail(table), DEFINITION, storage=STORAGE)
    delta = reader._pipeline.delta
    assert delta is not None
    with delta._lock:  # as a thread has it that reads the tail
        child = get_context("fork").Process(target=reader.search, args=(queries(1), 3), kwargs={"columns": []})
        child.start()
        child.join(PATIENCE)
        hangs = child.is_alive()
        child.kill()
    assert not hangs
    assert child.exitcode == 0


def test_a_budget_holds_what_is_exactly_as_large() -> None:
    memory = ProcessBudget(lambda _: 100)
    assert [memory.reserve(size) for size in (60, 41, 40, 1)] == [True, False, True, False]


class Cycle:
    """An object that the garbage collector alone deletes."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_may_be_collected_while_memory_is_reserved() -> None:
    """A thread that holds the lock then gives back what a reader had that is garbage: it must not wait for itself."""

    class Collects(int):
        def __radd__(self, other: int) -> int:
            gc.collect()
            return int(other) + int(self)

    memory, garbage = ProcessBudget(lambda _: 100), Cycle()
    finalize(garbage, memory.release, 60)
    assert memory.reserve(60)
    del garbage
    thread = threading.Thread(target=memory.reserve, args=(Collects(10),), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert memory.reserved == 10


def test_queries_that_come_together_read_the_tail_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = open_index(with_tail(table), DEFINITION, storage=STORAGE)
    read: Any = CachedRows.read
    calls, all_there = [], threading.Barrier(6)

    def counted(*arguments: Any, **options: Any) -> CachedRows:
        calls.append(arguments)
        return read(*arguments, **options)

    def search(_: int) -> pa.Table:
        all_there.wait()
        return reader.search(queries(1), 10, columns=[]).rows

    monkeypatch.setattr(CachedRows, "read", counted)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(search, range(6)))
    assert len(calls) == 1
    assert all(answer.equals(answers[0]) for answer in answers)


def test_searches_that_do_not_wait_for_the_tail_never_see_rows_without_their_reason(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each change of an attribute, as another thread may."""
    seen = set[tuple[int, str]]()

    def changed(delta: TailCache, name: str, value: object) -> None:
        object.__setattr__(delta, name, value)
        with suppress(AttributeError):  # it is being made
            seen.add((delta.state.rows, delta.state.why))

    monkeypatch.setattr(TailCache, "__setattr__", changed)
    open_index(with_tail(table), DEFINITION, storage=STORAGE).search(queries(1), columns=[])
    assert seen == {(0, "no search has read the tail yet"), (50, "50 rows in memory, compared each")}


def test_rows_without_a_distance_are_counted_in_each_answer(table_factory: Callable[..., Table]) -> None:
    table = table_factory()
    table.append(make_rows(0, 300))
    index_head(table)
    rows = make_rows(300, 340)
    vectors = rows["embedding"].to_pylist()
    vectors[0], vectors[7], vectors[8] = [1.0], [float("nan")] * 16, None
    table.append(rows.set_column(3, rows.schema.field("embedding"), pa.array(vectors, pa.list_(pa.float32()))))
    reader = open_index(table.refresh(), DEFINITION, storage=STORAGE)
    message = ["2 rows have no distance from anything, and no search finds them"]
    for _ in range(2):
        for answer in (reader.search(queries(1), 400, columns=[]), reader.within(queries(1), 1e9, columns=[])):
            assert [text.split(":")[0] for text in answer.warnings] == message
            assert len(answer) == 337
    one = reader.search(queries(1), 400, columns=["id"], where="id >= 305")
    assert [text.split(" ")[0] for text in one.warnings] == ["1"]
    assert one.profile.tail == "read from the data files: they tell which rows without a distance are meant"
    here = "the index is in this process's memory; the data files in reach are read here"
    for where, why in ((None, f"{here}, but 1 whose rows are in memory"), ("id >= 305", here)):
        assert reader.within(queries(1), 1e9, columns=[], where=where).profile.tier_why == why


def test_a_row_that_matches_and_has_no_vector_is_in_no_answer(table: Table) -> None:
    """Nor is the next row of its file, which has one."""
    index_head(table, DEFINITION)
    rows = make_rows(600, 650)
    vectors = [None if number % 2 else vector for number, vector in enumerate(rows["embedding"].to_pylist())]
    table.append(rows.set_column(3, rows.field("embedding"), pa.array(vectors, rows.field("embedding").type)))
    reader = open_index(table.refresh(), DEFINITION, storage=STORAGE)
    reader.search(queries(1), 10, columns=[])
    assert reader.kept_tail.rows == 25
    answer = reader.search(queries(1), 10, where="id IN (601, 604, 605, 649)", columns=["id"])
    assert answer.rows["id"].to_pylist() == [604]
    assert "in memory" in answer.profile.tail


def test_readers_that_read_data_files_in_any_case_keep_nothing(table: Table) -> None:
    table = with_tail(table)
    use_settings(CacheSettings(disk_bytes=0, memory_bytes=0))  # a warm index is searched in this process
    remote = open_index(table, DEFINITION, storage=STORAGE, runner=LocalRunner(1), in_process_mb=0)
    exact = open_index(table, DEFINITION, storage=STORAGE, stale="exact")
    nearest = open_index(table, DEFINITION, storage=STORAGE, stale="nearest-only")
    assert remote.tier == "distributed"
    for reader in (exact, nearest, remote):
        for _ in range(2):
            reader.search(queries(1), 5, columns=[])
        assert reader.kept_tail.rows == reader.kept_tail.bytes == 0
    assert nearest.kept_tail.why == "there is no tail"
    assert exact.kept_tail.why == "each search reads it from the data files"


def test_the_memory_of_a_tail_is_not_more_than_was_reserved(tables: Callable[..., TableWithTail]) -> None:
    for kind in KINDS:
        tailed = tables(*kind)
        both(tailed, lambda reader: reader.search(np.ones(DIMS), 3, columns=[]))
        delta = tailed.kept._pipeline.delta
        assert delta is not None
        kept = delta.rows(None, ()).rows
        assert kept is not None
        arrays = [kept.addresses, kept.vectors, *([] if kept.raw is None else [kept.raw])]
        if kept.coded is not None:
            space = kept.coded.codes.space
            arrays += [*space, kept.coded.errors.steps, *kept.coded.coarse[:3]]
        whole = {id(memory): memory for memory in map(memory_of, arrays)}.values()
        assert 0 < sum(array.nbytes for array in whole) <= tailed.kept.kept_tail.bytes + MIB // 64


def test_a_row_takes_the_memory_that_the_docs_state() -> None:
    for metric, doubles, size in (
        (Metric.L2, False, 729),
        (Metric.INNER_PRODUCT, False, 729),
        (Metric.COSINE, False, 729 + 512),
        (Metric.L2, True, 729 + 512),
        (Metric.COSINE, True, 729 + 1_024),
    ):
        assert kept_bytes(1_000, 128, metric, doubles=doubles) == 1_000 * size
    assert kept_bytes(1, 130, Metric.L2, doubles=False) == 857, "codes are whole blocks"


def memory_of(array: Any) -> Any:
    """The array whose memory this one is a view of."""
    return array if array.base is None else memory_of(array.base)


@pytest.mark.parametrize(
    ("skipped", "files", "has_condition", "serves"),
    [
        (0, [1, 2], False, True),
        (0, [1], True, True),
        (3, [1, 2], False, True),
        (3, [1], False, False),
        (3, [1, 2], True, False),
    ],
)
def test_rows_in_memory_serve_where_it_is_known_which_rows_without_a_distance_are_meant(
    skipped: int, files: list[int], has_condition: bool, serves: bool
) -> None:
    live = SimpleNamespace(record_count_of=lambda _: 10)
    source = cast("Any", SimpleNamespace(live=live, value_bytes=4, metric=Metric.L2))
    delta = TailCache(source, [FileNumber(1), FileNumber(2)], DIMS, threads=1)
    matches = cast("Any", object() if has_condition else None)
    assert not delta.has(matches, files)  # type: ignore[arg-type]
    delta._held = cast("Any", SimpleNamespace(skipped=SimpleNamespace(count=skipped))), "in memory"
    assert delta.has(matches, files) == serves  # type: ignore[arg-type]


def test_of_many_rows_without_a_distance_the_first_is_named() -> None:
    parts = [SkippedRows() for _ in range(3)]
    for part, (count, first) in zip(parts, ((0, ""), (2, "row 3 of a"), (1, "row 0 of b")), strict=True):
        part.add(count, first)
    (warning,) = SkippedRows.from_parts(parts).warnings
    assert warning == "3 rows have no distance from anything, and no search finds them: row 3 of a"


def test_tasks_read_what_is_over_the_threshold_and_no_less() -> None:
    source: Any = SimpleNamespace(live=SimpleNamespace(record_count_of=lambda files: 1024 * len(files)))
    scans = FileScans(source, TaskChoice(LocalRunner(1), in_process_mb=1))
    assert scans._runner_for([FileNumber(0)], 1024) is None
    assert scans._runner_for([FileNumber(0)], 1025) is not None
