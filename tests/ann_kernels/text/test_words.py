"""Texts cut into words, beside a loop over their characters."""

import unicodedata
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.text.word_characters import CJK, NO_WORD, WORD, kinds_of_characters
from icepuffin.ann_kernels.text.words import MAX_FORM, WordForms

CJK_BLOCKS = (
    (0x3040, 0x30FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xAC00, 0xD7AF),
    (0x20000, 0x3134F),
)


def kind_of(character: str) -> int:
    return int(kinds_of_characters()[ord(character)])


def naive_words(text: str) -> list[str]:
    words, run, before = list[str](), "", NO_WORD
    for character in f"{text}\0":
        kind = kind_of(character)
        if kind != before:
            if before == WORD:
                words.append(run)
            elif before == CJK:
                words += [run[first : first + 2] for first in range(len(run) - 1)] or [run]
            run, before = "", kind
        run += character
    return words


def words_of(forms: WordForms, texts: list[bytes]) -> list[list[bytes]]:
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    words, ends = forms.cut(np.frombuffer(b"".join(texts), np.uint8), offsets)
    known = forms.texts()
    starts = [0, *ends.tolist()]
    return [[known[word] for word in words[start:end]] for start, end in pairwise(starts)]


letters = st.text(st.sampled_from("aB é1語日한カ .,-_ไ𠀀\U0001f600\u0301") | st.characters(codec="utf-8"), max_size=40)


@given(batches=st.lists(st.lists(letters, max_size=6), max_size=3))
def test_words_are_those_of_a_loop_over_characters(batches: list[list[str]]) -> None:
    forms = WordForms()
    for texts in batches:
        expected = [[word.encode() for word in naive_words(text)] for text in texts]
        assert words_of(forms, [text.encode() for text in texts]) == expected
    assert len(set(forms.texts())) == len(forms)


def test_many_forms_keep_their_numbers_while_the_tables_grow() -> None:
    texts = [f"w{number} same".encode() for number in range(5_000)]
    forms = WordForms()
    assert words_of(forms, texts[:2_000]) == [text.split() for text in texts[:2_000]]
    assert words_of(forms, texts) == [text.split() for text in texts]
    assert len(forms) == 5_001
    one = WordForms()
    assert words_of(one, [b" ".join(texts)]) == [b" ".join(texts).split()]


@given(text=st.binary(max_size=60))
def test_bytes_that_are_no_text_part_words_and_lose_nothing_else(text: bytes) -> None:
    (words,) = words_of(WordForms(), [b"before " + text + b" after"])
    assert (words[0], words[-1]) == (b"before", b"after")
    assert all(word in text and word.decode() for word in words[1:-1])


@pytest.mark.parametrize(
    "data", [b"\xc1\x81", b"\xe0\x81\x81", b"\xf0\x86\x84\x81", b"\xf8\x88\x80\x80", b"\xf9\x80\x81\x81"]
)
def test_bytes_that_only_look_like_letters_are_no_words(data: bytes) -> None:
    """Longer than a character needs, or beginning as none does."""
    assert words_of(WordForms(), [b"a" + data + b"b", data]) == [[b"a", b"b"], []]


def test_the_first_and_last_characters_of_each_length_are_read() -> None:
    points = [0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF, 0xE9, 0x905, 0x10280]
    for text in (f"a{chr(point)}b" for point in points):
        assert words_of(WordForms(), [text.encode()]) == [[word.encode() for word in naive_words(text)]]


def test_a_long_run_counts_by_its_first_whole_characters() -> None:
    long = ["a" * 400, "é" * 200, "a" * 254 + "é" * 3]
    (words,) = words_of(WordForms(), [" ".join(long).encode()])
    assert [len(word) for word in words] == [MAX_FORM, MAX_FORM - 1, MAX_FORM - 1]
    assert all(word.decode() for word in words)


def test_kinds_of_characters_are_those_of_unicode_14_and_no_later_one() -> None:
    """Of a Python with a later Unicode those are compared that were assigned in 14, but for the new letters."""
    kinds = kinds_of_characters()
    assert len(kinds) == 0x110000
    for point in range(0, 0x110000, 7):
        kind, category = int(kinds[point]), unicodedata.category(chr(point))
        if unicodedata.unidata_version == "14.0.0" or kind:
            is_word, is_cjk = category[0] in "LNM", any(low <= point <= high for low, high in CJK_BLOCKS)
            assert kind == (NO_WORD if not is_word else CJK if is_cjk else WORD), hex(point)


def test_offsets_outside_of_the_data_are_refused() -> None:
    for offsets in ([0, 5], [2, 1], [-1, 2], []):
        with pytest.raises(KernelError, match="must ascend within the 3 bytes"):
            WordForms().cut(np.zeros(3, np.uint8), np.array(offsets, np.int32))
