"""Searches by words at any snapshot, beside `bm25s` (method lucene) on the same terms of the same rows."""

import random
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, EqualTo, GreaterThan, LessThan, Not, Or
from pyiceberg.table import Table
from pyiceberg.table.snapshots import ancestors_of

from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.definitions.ddl import create_index, load_definition
from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.index.versions.version_reader import location_of, open_version, read_included_blob
from icepuffin.ops.model import Action
from icepuffin.ops.rows.text_analysis import Analyzer
from icepuffin.ops.search.errors import FilterError, QueryError
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.tasks import words_task
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.tasks.words_task import RangeWords
from icepuffin.ops.text import text_index
from icepuffin.ops.text.file_words import FileWords, WordsPlace, open_words, read_parts
from icepuffin.ops.text.text_index import ColumnScores
from icepuffin.ops.text.word_condition import HasWord
from icepuffin.puffin.blobs.included_columns_blob import WordsEntry
from icepuffin.puffin.blobs.words_blob import WordsEncoder
from tests.conftest import STORAGE, vectors_of
from tests.ops.index.comparison import index_head

pytestmark = pytest.mark.usefixtures("no_disk_cache")

DIMS = 4
WORDS = ["red", "running", "runs", "Shoe", "shoes", "the", "naïve", "日本語", "x", "blue", "green", "slow", "fast"]
DEFINITION = IndexDefinition(name="e", column="embedding", metric="l2", text=("body", "tags"), target_recall=0.0)
SCHEMA = pa.schema([
    ("id", pa.int64()), ("body", pa.string()), ("tags", pa.list_(pa.string())), ("embedding", pa.list_(pa.float32())),
])  # fmt: skip


class TextTable:
    """A table of random texts, and a copy of its live rows by id."""

    def __init__(self, catalog: Catalog, draws: random.Random) -> None:
        self.table: Table = catalog.create_table("db.t", SCHEMA, properties={"format-version": "2"})
        self.rows: dict[int, dict[str, object]] = {}
        self.draws = draws
        self._count = 0

    def text(self) -> str | None:
        if self.draws.random() < 0.1:
            return self.draws.choice([None, "", "the of", "¡!"])
        weights = [1 / (1 + number) for number in range(len(WORDS))]
        return self.draws.choice([" ", ", ", "\n"]).join(self.draws.choices(WORDS, weights, k=self.draws.randint(1, 9)))

    def append(self, count: int) -> None:
        ids = np.arange(self._count, self._count + count)
        self._count += count
        rows = [
            {
                "id": number, "body": self.text(), "embedding": vector,
                "tags": self.draws.choice([None, [], [None, "red"], [self.text(), self.text()]]),
            }
            for number, vector in zip(ids.tolist(), vectors_of(ids, dims=DIMS).tolist(), strict=True)
        ]  # fmt: skip
        self.rows |= {int(row["id"]): row for row in rows}  # type: ignore[call-overload]
        self.table.append(pa.Table.from_pylist(rows, SCHEMA))

    def vector(self, number: int) -> np.ndarray:
        return np.array(self.rows[number]["embedding"], np.float32)

    def delete(self) -> None:
        gone = self.draws.sample(sorted(self.rows), min(len(self.rows) // 3, 30))
        for number in gone:
            del self.rows[number]
        if gone:
            self.table.delete(f"id in ({', '.join(map(str, gone))})")

    def compact(self) -> None:
        self.table.overwrite(self.table.scan().to_arrow())

    def back_to(self, past: dict[int, dict[int, dict[str, object]]]) -> None:
        """Roll back to a snapshot that is an ancestor of the head, where there is one."""
        line = ancestors_of(self.table.refresh().current_snapshot(), self.table.metadata)
        ancestors = [snapshot.snapshot_id for snapshot in line]
        earlier = [number for number in ancestors[1:] if number in past]
        if earlier:
            self.table.manage_snapshots().rollback_to_snapshot(earlier[0]).commit()
            self.rows = dict(past[earlier[0]])

    def scores(self, text: str, columns: Sequence[str]) -> dict[int, float]:
        """BM25 of each row by `bm25s`, summed over the columns."""
        total = dict.fromkeys(self.rows, 0.0)
        for column in columns:
            terms = {number: _terms(row[column]) for number, row in self.rows.items()}
            having = [number for number, own in terms.items() if own]
            query = _terms(text)
            if not having:
                continue
            model = bm25s.BM25(method="lucene", k1=1.2, b=0.75, dtype="float64")
            model.index([terms[number] for number in having], show_progress=False)
            known = [term for term in query if term in model.vocab_dict]
            for number, score in zip(having, model.get_scores(known) if known else [0.0] * len(having), strict=True):
                total[number] += float(score)
        return total


def _terms(value: object) -> list[str]:
    texts = value if isinstance(value, list) else [value]
    return [term.decode() for text in texts if text for term in Analyzer("en").query_terms(str(text))]


def compare(copy: TextTable, definition: IndexDefinition, k: int = 100, snapshot: int | None = None) -> None:
    reader = open_index(copy.table.refresh(), definition, storage=STORAGE, snapshot=snapshot)
    for text in ("red shoes", "running", "the", "日本語 fast fast", copy.text() or "x"):
        truth = copy.scores(text, definition.text)
        found = reader.search(text=text, k=k, columns=["id"]).rows
        ids, scores = found["id"].to_pylist(), found["score"].to_pylist()
        expected = sorted((score for score in truth.values() if score > 0), reverse=True)[:k]
        assert scores == pytest.approx(expected, rel=1e-5)
        assert [truth[number] for number in ids] == pytest.approx(expected, rel=1e-5)
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("seed", range(6))
def test_scores_are_those_of_bm25s_at_every_step_of_random_histories(
    sql_catalog: Catalog, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends, deletes, compaction, rollback, with the version of the snapshot or one that lacks rows; then each
    snapshot of the past.
    """
    monkeypatch.setattr(words_task, "RANGE_ROWS", 16)
    if seed % 2:
        monkeypatch.setattr(index_packs, "PACK_BYTES", 1)
    draws = random.Random(seed)
    copy = TextTable(sql_catalog, draws)
    copy.append(80)
    definition = create_index(copy.table, DEFINITION)
    index_head(copy.table, definition)
    past: dict[int, dict[int, dict[str, object]]] = {}
    for _ in range(6):
        head = copy.table.refresh().metadata.current_snapshot_id or 0
        past[head] = dict(copy.rows)
        compare(copy, definition)
        draws.choice([lambda: copy.append(20), copy.delete, copy.compact, lambda: copy.back_to(past)])()
        compare(copy, definition, k=7)
        if draws.random() < 0.6:
            index_head(copy.table.refresh(), definition)
            version = index_versions(copy.table.refresh(), "e")[-1]
            assert check_integrity(RunContext(copy.table, STORAGE), version).faults == ()
    for snapshot_id, rows in past.items():
        copy.rows = rows
        compare(copy, definition, snapshot=snapshot_id)


@pytest.fixture
def copy(sql_catalog: Catalog) -> TextTable:
    """A table of which half of the rows are in the index."""
    made = TextTable(sql_catalog, random.Random(1))
    made.append(60)
    index_head(made.table, create_index(made.table, DEFINITION))
    made.append(40)
    return made


def indexed(copy: TextTable) -> IndexDefinition:
    return load_definition(copy.table.refresh(), "e")


def test_a_hybrid_answer_is_the_fusion_of_both_lists(copy: TextTable) -> None:
    reader = open_index(copy.table.refresh(), indexed(copy), storage=STORAGE)
    vector = vectors_of(np.array([5]), dims=DIMS)[0]
    nearest = {row["id"]: row for row in reader.search(vector, 100, columns=["id"])}
    words = {row["id"]: row for row in reader.search(text="red shoes", k=100, columns=["id"])}
    found = reader.search(vector, 10, text="red shoes", columns=["id"])
    assert found.rows.column_names == [
        "query", "rank", "score", "distance", "vector_rank", "text_score", "text_rank", "id",
    ]  # fmt: skip
    values = [
        {number: row["distance"] for number, row in nearest.items()},
        {number: -row["score"] for number, row in words.items()},
    ]
    ranks = [
        {number: 1 + sum(other < own for other in part.values()) for number, own in part.items()} for part in values
    ]
    scores = {number: sum(1 / (60 + part[number]) for part in ranks if number in part) for number in {*nearest, *words}}
    assert [row["score"] for row in found] == pytest.approx(sorted(scores.values(), reverse=True)[:10])
    for row in found:
        assert row["score"] == pytest.approx(scores[row["id"]])
        assert row["vector_rank"] == ranks[0].get(row["id"])
        assert row["text_rank"] == ranks[1].get(row["id"])
        assert row["distance"] == (nearest[row["id"]]["distance"] if row["id"] in nearest else None)
        assert row["text_score"] == (words[row["id"]]["score"] if row["id"] in words else None)


def test_a_weight_of_one_orders_by_words_and_of_zero_by_vectors(copy: TextTable) -> None:
    reader = open_index(copy.table.refresh(), indexed(copy), storage=STORAGE)
    vector = vectors_of(np.array([5]), dims=DIMS)[0]
    by_words = reader.search(text="red shoes", k=5, columns=["id"]).rows["id"].to_pylist()
    by_vector = reader.search(vector, 5, columns=["id"]).rows["id"].to_pylist()
    for weight, expected in ((1.0, by_words), (0.0, by_vector)):
        found = reader.search(vector, 5, text="red shoes", text_weight=weight, columns=["id"])
        assert found.rows["id"].to_pylist() == expected
        assert max(row["score"] for row in found) == 1.0


def test_several_texts_and_conditions_are_answered_as_one_by_one(copy: TextTable) -> None:
    reader = open_index(copy.table.refresh(), indexed(copy), storage=STORAGE)
    texts, where = ["red shoes", "the", "日本語"], ["id < 50", None, "id >= 50"]
    together = reader.search(text=texts, k=4, columns=["id"], where=where).rows
    alone = [
        reader.search(text=text, k=4, columns=["id"], where=condition).rows
        for text, condition in zip(texts, where, strict=True)
    ]
    for number, one in enumerate(alone):
        own = together.filter(pa.compute.equal(together["query"], number))
        assert own.drop_columns(["query"]).to_pylist() == one.drop_columns(["query"]).to_pylist()
    assert all(number < 50 for number in alone[0]["id"].to_pylist())
    unfiltered = {row["id"]: row["score"] for row in reader.search(text="red shoes", k=100, columns=["id"])}
    assert all(unfiltered[row["id"]] == row["score"] for row in alone[0].to_pylist()), "counts are of all rows"


def test_a_text_without_a_word_finds_nothing_and_says_so(copy: TextTable) -> None:
    reader = open_index(copy.table.refresh(), indexed(copy), storage=STORAGE)
    for text in ("", "the of", "¡!"):
        found = reader.search(text=text)
        assert len(found) == 0
        assert "the text has no word that is searched for: no row is found by it" in found.warnings
    vector = vectors_of(np.array([5]), dims=DIMS)[0]
    assert len(reader.search(vector, 5, text="the")) == 5, "the vectors answer alone"
    assert len(reader.search(text="unheard")) == 0


def test_half_a_surrogate_pair_in_a_query_is_no_part_of_a_word(copy: TextTable) -> None:
    reader = open_index(copy.table.refresh(), indexed(copy), storage=STORAGE)
    assert reader.search(text="red\ud800shoes").rows == reader.search(text="red shoes").rows


def test_rows_of_equal_texts_come_in_the_same_order_after_a_compaction(copy: TextTable) -> None:
    """But for rows whose words are equal, which tie."""
    columns = ["id", "body", "tags"]
    before = open_index(copy.table.refresh(), indexed(copy), storage=STORAGE).search(text="red", k=100, columns=columns)
    copy.compact()
    after = open_index(copy.table.refresh(), indexed(copy), storage=STORAGE).search(text="red", k=100, columns=columns)
    words = [[sorted(_terms(row["body"])) + sorted(_terms(row["tags"])) for row in found] for found in (before, after)]
    assert words[0] == words[1]
    assert before.rows["id"].to_pylist() != sorted(before.rows["id"].to_pylist())


def test_bad_input_says_what_to_do(copy: TextTable) -> None:
    reader = open_index(copy.table.refresh(), indexed(copy), storage=STORAGE)
    vector = vectors_of(np.array([5]), dims=DIMS)[0]
    for arguments, message in (
        ({}, "give a vector, a text, or both"),
        ({"text": 5}, "words to search for"),
        ({"text": ["a", 5]}, "words to search for"),
        ({"text": []}, "words to search for"),
        ({"queries": vector, "text": ["a", "b"]}, "give one text per vector"),
        ({"queries": vector, "text": "a", "text_weight": 1.5}, "from 0 to 1"),
        ({"queries": vector, "text": "a", "text_weight": "0.5"}, "from 0 to 1"),
        ({"text": "a", "text_weight": 0.5}, "give a vector, too"),
        ({"queries": vector, "text_weight": 0.5}, "are for a text: give one"),
        ({"queries": vector, "text_columns": ["body"]}, "are for a text: give one"),
        ({"text": "a", "text_columns": ["id"]}, "names 'id'; the index has words of: body, tags"),
        ({"text": "a", "text_columns": "body"}, "text_columns is 'body'; it is a list"),
        ({"text": "a", "text_columns": []}, r"text_columns is \[\]; it is a list"),
        ({"queries": vector, "text": "a", "certified": True}, "leave one out"),
    ):
        with pytest.raises(QueryError, match=message):
            reader.search(**arguments)  # type: ignore[arg-type]
    plain = create_index(copy.table, IndexDefinition(name="p", column="embedding", metric="l2", target_recall=0.0))
    index_head(copy.table, plain)
    with pytest.raises(QueryError, match=r"index p is of vectors alone.*text = \['title'\]"):
        open_index(copy.table.refresh(), plain, storage=STORAGE).search(text="red")
    with pytest.raises(DefinitionError, match="only columns of strings, and of lists of strings"):
        create_index(copy.table, IndexDefinition(name="q", column="embedding", text=("id",)))
    with pytest.raises(DefinitionError, match="analyzer = de is for columns of texts"):
        create_index(copy.table, IndexDefinition(name="q", column="embedding", analyzer="de"))


def test_words_of_files_that_the_index_lacks_are_read_once(copy: TextTable) -> None:
    reader = open_index(copy.table.refresh(), indexed(copy), storage=STORAGE)
    assert reader.coverage is Coverage.NEAREST_VERSION_AND_TAIL
    found = reader.search(text="red", columns=["id"])
    assert "words of 1 data file that the index lacks" in found.explain()
    assert found.profile.tail_rows == 40


def test_a_change_of_the_analyzer_or_of_columns_makes_the_words_anew(copy: TextTable) -> None:
    """And nothing else: the graphs stay."""
    index_head(copy.table, indexed(copy))
    for changed in (replace(DEFINITION, analyzer="none"), replace(DEFINITION, text=("tags",))):
        definition = create_index(copy.table, changed, replace=True)
        report = index_head(copy.table, definition)
        assert (report.action, report.inserted) == (Action.REFRESHED, 0)
        assert (
            check_integrity(RunContext(copy.table, STORAGE), index_versions(copy.table.refresh(), "e")[-1]).faults == ()
        )
        assert index_head(copy.table, definition).action is Action.REUSED
        reader = open_index(copy.table.refresh(), definition, storage=STORAGE)
        found = reader.search(text="runs", k=100)
        assert not found.profile.tail
        assert len(found)


def test_damaged_words_are_passed_over_with_a_warning_and_found_by_a_check(copy: TextTable) -> None:
    index_head(copy.table, indexed(copy))
    table = copy.table.refresh()
    truth = open_index(table, indexed(copy), storage=STORAGE).search(text="red shoe", k=50).rows
    version = index_versions(table, "e")[-1]
    opened = open_version(version, STORAGE)
    (entry, *_) = read_included_blob(opened, next(iter(opened.texts)), STORAGE, of_words=True).entries
    location = location_of(version, entry)
    whole = Path(to_path(location.path)).read_bytes()
    for offset in (5, location.length // 2, location.length - 3):
        broken = bytearray(whole)
        broken[location.offset + offset] ^= 1
        Path(to_path(location.path)).write_bytes(bytes(broken))
        found = open_index(table, indexed(copy), storage=STORAGE).search(text="red shoe", k=50)
        assert found.rows == truth
        assert any("words of the index cannot be read" in warning for warning in found.warnings)
        (fault, *_) = check_integrity(RunContext(table, STORAGE), version).faults
        assert "words of" in fault
    Path(to_path(location.path)).write_bytes(whole)
    assert check_integrity(RunContext(table, STORAGE), version).faults == ()


def test_damaged_lists_of_many_files_are_passed_over_together(
    sql_catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = TextTable(sql_catalog, random.Random(3))
    for _ in range(8):
        copy.append(10)
    index_head(copy.table, create_index(copy.table, DEFINITION))
    reader = open_index(copy.table.refresh(), indexed(copy), storage=STORAGE)
    assert len(reader.search(text="unheard")) == 0, "heads are read, and no lists"
    version = index_versions(copy.table.refresh(), "e")[-1]
    path = Path(to_path(version.puffin_path))
    broken = bytearray(path.read_bytes())
    for entry in read_included_blob(open_version(version, STORAGE), 2, STORAGE, of_words=True).entries:
        end = entry.offset + entry.length - entry.index_length
        (*_, lists) = np.frombuffer(broken, "<u4", 5, end)
        broken[end - lists : end] = bytes(lists)
    path.write_bytes(bytes(broken))
    rounds = []
    monkeypatch.setattr(text_index, "read_parts", lambda *asked: rounds.append(1) or read_parts(*asked))
    found = reader.search(text="red", k=100, columns=["id"])
    (warning,) = found.warnings
    assert warning.startswith("words of the index cannot be read, data files were: words of file slot 0: a page")
    assert warning.count("words of file slot") == 8
    assert len(rounds) == 3, "two of the damaged column, one of the other"
    truth = copy.scores("red", DEFINITION.text)
    assert found.rows["score"].to_pylist() == pytest.approx(sorted(filter(None, truth.values()), reverse=True))


def stored_with(**changes: Any) -> tuple[RangeWords, WordsPlace]:
    """(the words of one row "ab c", where a version might have them with changes)."""
    analyzer, encoder = Analyzer("none"), WordsEncoder()
    numbers, ends = analyzer.terms_of(pa.array(["ab c"]))
    own = RangeWords.from_terms(analyzer.terms, numbers, ends)
    body = b"".join(replace(own, **changes).encoded(encoder)) + encoder.index()
    checksum = zlib.crc32(encoder.index())
    return own, WordsPlace(WordsEntry(0, 1, "string", "{}", "", 1, length=len(body), checksum=checksum), body=body)


def test_a_check_finds_words_that_end_elsewhere() -> None:
    for terms, is_same in (([b"ab", b"c"], True), ([b"a", b"bc"], False)):
        own, place = stored_with(terms=terms)
        (words,), _ = open_words([place], STORAGE)
        assert isinstance(words, FileWords)
        ((location, slim),) = words.ranges
        head = replace(slim, lengths=words.lengths, ties=words.ties)
        lists = place.body[location.head_length :][: location.lists_length]
        assert own.is_stored(head, lists) is is_same


def test_scores_are_numbers_where_a_version_says_that_no_row_has_words() -> None:
    _, place = stored_with(lengths=np.zeros(1, np.int64))
    column = ColumnScores([place], np.array([0, 1]), np.ones(1, np.bool_), [], lambda _: place, STORAGE)
    ((found, weight),) = column.weighted({b"ab": 1})
    assert np.isfinite(found.impacts * weight).all()


def test_words_in_packs_are_shared(copy: TextTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_packs, "PACK_BYTES", 1)
    index_head(copy.table, indexed(copy))
    places = []
    for _ in range(2):
        version = index_versions(copy.table.refresh(), "e")[-1]
        opened = open_version(version, STORAGE)
        blob = read_included_blob(opened, 2, STORAGE, of_words=True)
        places.append({location_of(version, entry).path for entry in blob.entries})
        assert opened.bytes_total > opened.bytes_searched
        copy.append(10)
        index_head(copy.table, indexed(copy))
    assert len(places[0]) == 1
    assert places[0] < places[1], "what is there is named, not copied"
    compare(copy, indexed(copy))


def test_a_reader_that_follows_searches_by_words(copy: TextTable) -> None:
    with open_index(copy.table.refresh(), indexed(copy), storage=STORAGE).follow() as following:
        before = following.search(text="red", k=100).rows
        copy.append(30)
        assert following.update()
        after = following.search(text="red", k=100, columns=["id"]).rows
    assert len(after) > len(before)
    truth = copy.scores("red", DEFINITION.text)
    assert after["score"].to_pylist() == pytest.approx([truth[number] for number in after["id"].to_pylist()])


def test_the_first_search_reads_dictionaries_and_the_next_one_nothing(copy: TextTable) -> None:
    index_head(copy.table, indexed(copy))
    reader = open_index(copy.table.refresh(), indexed(copy), storage=STORAGE)
    read = [reader.search(text=text, columns=[]).profile.bytes_read["words"] for text in ("red", "red", "blue")]
    assert read[0] > read[2] > read[1] == 0


def test_a_table_of_few_rows_is_searched_whole(sql_catalog: Catalog) -> None:
    copy = TextTable(sql_catalog, random.Random(3))
    definition = create_index(copy.table, DEFINITION)
    copy.append(3)
    index_head(copy.table, definition)
    reader = open_index(copy.table.refresh(), definition, storage=STORAGE)
    vector = vectors_of(np.array([5]), dims=DIMS)[0]
    for k in (1, 3, 500):
        assert len(reader.search(vector, k, text="red")) == min(k, 3)
        assert len(reader.search(text="red shoe blue run x", k=k)) <= min(k, 3)
    copy.table.refresh().delete("id >= 0")
    assert len(open_index(copy.table.refresh(), definition, storage=STORAGE).search(text="red")) == 0


def test_only_the_words_of_the_columns_asked_for_count(copy: TextTable) -> None:
    reader = open_index(copy.table.refresh(), indexed(copy), storage=STORAGE)
    for columns in (["body"], ["tags"], ["tags", "body", "tags"]):
        truth = copy.scores("red shoes", sorted(set(columns)))
        found = reader.search(text="red shoes", k=100, columns=["id"], text_columns=columns).rows
        expected = sorted((score for score in truth.values() if score > 0), reverse=True)
        assert found["score"].to_pylist() == pytest.approx(expected, rel=1e-5)
        assert [truth[number] for number in found["id"].to_pylist()] == pytest.approx(expected, rel=1e-5)
    vector = vectors_of(np.array([5]), dims=DIMS)[0]
    both = reader.search(vector, 5, text="red", text_columns=["tags"], text_weight=1.0, columns=["id"]).rows["id"]
    assert both == reader.search(text="red", k=5, text_columns=["tags"], columns=["id"]).rows["id"]
    with reader.follow() as following:
        answer = following.search(text="red", k=5, text_columns=["tags"], columns=["id"])
    assert answer.rows["id"] == both
    reader.search(text="red")
    other = open_index(copy.table.refresh(), indexed(copy), storage=STORAGE)
    orders = [each.search(text="red", k=100, text_columns=["tags"], columns=["id"]).rows for each in (reader, other)]
    assert orders[0] == orders[1], "rows of one score are ordered by the words of these columns"


def having(copy: TextTable, columns: Sequence[str], text: str) -> set[int]:
    """Ids of the rows whose words meet those of a text."""
    terms = {*_terms(text)}
    return {number for number, row in copy.rows.items() if any(terms & {*_terms(row[name])} for name in columns)}


@pytest.mark.parametrize("columns", [("body",), ("tags",), ("tags", "body")])
def test_a_condition_on_words_chooses_the_rows_that_have_one(copy: TextTable, columns: tuple[str, ...]) -> None:
    """Beside other conditions, vectors, words, and a distance; by graphs, and by a scan of every row."""
    copy.delete()
    table, vector = copy.table.refresh(), vectors_of(np.array([5]), dims=DIMS)[0]
    readers = [open_index(table, indexed(copy), storage=STORAGE, stale=stale) for stale in ("complete", "exact")]
    for text in ("shoe 日本語", "red", "unheard"):
        rows = having(copy, columns, text)
        for where, expected in (
            (HasWord(columns=columns, text=text), rows),
            (And(GreaterThan("id", 30), HasWord(columns=columns, text=text)), {n for n in rows if n > 30}),
            (And(HasWord(columns=columns, text=text), LessThan("id", 20)), {n for n in rows if n < 20}),
            (
                And(HasWord(columns=columns, text=text), HasWord(columns=("body",), text="blue"), LessThan("id", 70)),
                {number for number in rows & having(copy, ["body"], "blue") if number < 70},
            ),
        ):  # fmt: skip
            nearest = sorted(expected, key=lambda number: np.linalg.norm(copy.vector(number) - vector))
            for reader in readers:
                found = reader.search(vector, 100, where=where, columns=["id"])
                assert found.rows["id"].to_pylist() == nearest
                assert found.profile.matching_rows == len(nearest)
                assert reader.within(vector, np.inf, where=where, columns=["id"]).rows["id"].to_pylist() == nearest
                by_words = reader.search(text="red shoes", k=100, where=where, columns=["id"]).rows["id"].to_pylist()
                assert {*by_words} == expected & having(copy, ["body", "tags"], "red shoes")
                several = reader.search([vector, vector], 100, where=[where, "id < 3"], columns=["id"])
                assert [row["id"] for row in several if row["query"] == 0] == nearest


def test_a_condition_on_words_warns_and_refuses_as_a_search_does(copy: TextTable) -> None:
    reader = open_index(copy.table.refresh(), indexed(copy), storage=STORAGE)
    vector = vectors_of(np.array([5]), dims=DIMS)[0]
    nothing = HasWord(columns=("body",), text="the")
    for found in (
        reader.search(vector, 3, where=nothing),
        reader.within(vector, 9.0, where=nothing),
        reader.search(vector, 3, text="red", where=nothing),
        reader.search(text="red", where=nothing),
    ):
        assert len(found) == 0
        assert found.warnings == ("the text has no word that is searched for: no row is found by it",)
    for where in (Or(EqualTo("id", 3), nothing), Not(nothing)):
        with pytest.raises(FilterError, match=r"match\(body, 'the'\)"):
            reader.search(vector, 3, where=where)
    with pytest.raises(QueryError, match="text_columns names 'id'; the index has words of: body, tags"):
        reader.search(vector, 3, where=HasWord(columns=("id",), text="red"))


def test_a_column_that_was_dropped_since_is_named(copy: TextTable) -> None:
    definition = indexed(copy)
    with copy.table.update_schema() as update:
        update.delete_column("body")
    found = open_index(copy.table.refresh(), definition, storage=STORAGE).search(text="red", k=100, columns=["id"])
    assert found.warnings == ("the snapshot lacks 1 of the columns with words, which are body, tags",)
    truth = copy.scores("red", ["tags"])
    assert found.rows["score"].to_pylist() == pytest.approx([truth[row] for row in found.rows["id"].to_pylist()])
    assert len(found) == sum(score > 0 for score in truth.values())
    with copy.table.update_schema() as update:
        update.delete_column("tags")
    found = open_index(copy.table.refresh(), definition, storage=STORAGE).search(text="red")
    assert (len(found), found.warnings[0][:37]) == (0, "the snapshot lacks 2 of the columns w")
