"""Texts as terms: case, normal forms, stems, words that are left out."""

import sys

import pyarrow as pa
import pytest

from icepuffin.ops.rows.analyzers import ANALYZERS, STEMMERS, WORDS_ONLY, analyzer_identity
from icepuffin.ops.rows.text_analysis import Analyzer


def terms(text: str, analyzer: str = "en") -> list[str]:
    return [term.decode() for term in Analyzer(analyzer).query_terms(text)]


def test_terms_are_stems_without_case_nor_the_commonest_words() -> None:
    assert terms("The RUNNING shoes, and a runner's Shoe") == ["run", "shoe", "runner", "s", "shoe"]
    assert terms("The RUNNING shoes", WORDS_ONLY) == ["the", "running", "shoes"]
    assert terms("Die Häuser", "de") == ["die", "haus"]
    assert terms("", "en") == terms("the of -- ¡!", "en") == []


def test_forms_that_unicode_holds_for_equal_are_one_term() -> None:
    assert terms("ﬁx STRASSE e\u0301te ①", WORDS_ONLY) == terms("fix straße éte 1", WORDS_ONLY)


def test_chinese_japanese_and_korean_are_pairs_of_neighbours() -> None:
    assert terms("日本語テスト x한국") == ["日本", "本語", "語テ", "テス", "スト", "x", "한국"]
    assert terms("本") == ["本"]


def test_a_list_is_one_text_and_a_null_is_none() -> None:
    analyzer = Analyzer(WORDS_ONLY)
    lists = pa.array([["a b", None, "c"], None, [], ["a"]], pa.list_(pa.string()))
    for column in (lists, pa.concat_arrays([lists, lists]).slice(4)):
        numbers, ends = analyzer.terms_of(column)
        assert ends.tolist() == [3, 3, 3, 4]
        assert [analyzer.terms[number] for number in numbers] == [b"a", b"b", b"c", b"a"]
    numbers, ends = analyzer.terms_of(pa.array([None, "c d", "", "a"]).slice(1))
    assert [analyzer.terms[number] for number in numbers] == [b"c", b"d", b"a"]
    assert ends.tolist() == [2, 2, 3]


def test_each_analyzer_stems_and_names_what_it_depends_on() -> None:
    assert set(ANALYZERS) == {WORDS_ONLY, *STEMMERS}
    identities = {analyzer_identity(name) for name in ANALYZERS}
    assert len(identities) == len(ANALYZERS)
    assert all("Unicode 14" in identity for identity in identities)
    for name in ANALYZERS:
        assert Analyzer(name).query_terms("words") == Analyzer(name).query_terms("WORDS")


def test_numbers_begin_anew_where_many_forms_were_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icepuffin.ops.rows.text_analysis._FORMS_KEPT", 2)
    analyzer = Analyzer(WORDS_ONLY)
    analyzer.terms_of(pa.array(["a b"]))
    analyzer.forget_if_many()
    assert analyzer.terms == [b"a", b"b"]
    analyzer.terms_of(pa.array(["c"]))
    analyzer.forget_if_many()
    assert analyzer.terms == []
    numbers, _ = analyzer.terms_of(pa.array(["b a"]))
    assert ([analyzer.terms[number] for number in numbers], numbers.tolist()) == ([b"b", b"a"], [0, 1])


def test_without_the_stemmer_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Stemmer", None)
    for make in (analyzer_identity, Analyzer):
        with pytest.raises(ModuleNotFoundError, match=r"needs PyStemmer: pip install 'icepuffin\[text\]'"):
            make("en")
    assert Analyzer(WORDS_ONLY).query_terms("a b") == [b"a", b"b"]
