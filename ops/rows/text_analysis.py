"""Texts as terms: words without case, each by its stem, without the commonest words of a language.

What cuts, folds and stems is part of the format: `analyzer_identity` names all of it. Characters are of Unicode 14,
whose normal forms and case folds never change (Unicode Standard Annex 15, and "Unicode Character Encoding Stability
Policies").
"""

import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icepuffin.ann_kernels.arrays import I32, I64
from icepuffin.ann_kernels.text.words import WordForms
from icepuffin.ops.rows.analyzers import STEMMERS, WORDS_ONLY, analyzer_identity, snowball

_STOP_WORDS = frozenset({
    *("a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not"),
    *("of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was"),
    *("will", "with"),
})  # fmt: skip
"""English words that are left out: those of Lucene's EnglishAnalyzer"""
_FORMS_KEPT = 1 << 19
"""WordForms of words whose terms an analyzer keeps, at most"""


class Analyzer:
    """Makes terms of texts. Not for several threads. Raises ModuleNotFoundError where the extra `text` is missing."""

    def __init__(self, analyzer: str) -> None:
        self.identity = analyzer_identity(analyzer)
        self._stem = None
        if analyzer != WORDS_ONLY:
            self._stem = snowball().Stemmer(STEMMERS[analyzer]).stemWord
        self._stop_words = _STOP_WORDS if analyzer == "en" else frozenset[str]()
        self._forms = WordForms()
        self._numbers: dict[bytes, int] = {}
        self._term_of_form = np.empty(0, np.int32)

    def terms_of(self, texts: pa.Array) -> tuple[I32, I64]:
        """(numbers of terms int32[words] of all texts in order, -1 for a word that is left out; int64[N]: number of
        words before the end of each text), of a column of strings or of lists of strings.
        """
        if pa.types.is_list(texts.type):
            values, ends = self.terms_of(texts.flatten())
            before = np.append(0, ends)
            return values, before[np.cumsum(_list_lengths(texts))]
        plain = texts.fill_null("")
        _, offsets, data = plain.buffers()
        bounds = np.frombuffer(offsets, np.int32, len(plain) + 1, 4 * plain.offset) if len(plain) else np.zeros(1, int)
        forms, ends = self._forms.cut(np.frombuffer(data or b"", np.uint8), bounds)
        self._learn()
        return self._term_of_form[forms], ends

    @property
    def terms(self) -> list[bytes]:
        """The terms, by number."""
        return list(self._numbers)

    def query_terms(self, text: str) -> Sequence[bytes]:
        """The terms of a query in order, each as often as it is there. Half a surrogate pair is no part of a word."""
        numbers, _ = self.terms_of(pa.array([text.encode(errors="replace")], pa.string()))
        terms = self.terms
        return [terms[number] for number in numbers.tolist() if number >= 0]

    def forget_if_many(self) -> None:
        """Number forms and terms anew, where there are many: the numbers of before have no meaning any more."""
        if len(self._forms) > _FORMS_KEPT:
            self._forms, self._numbers, self._term_of_form = WordForms(), {}, np.empty(0, np.int32)

    def _learn(self) -> None:
        """Number the terms of new forms."""
        known = len(self._term_of_form)
        if known == len(self._forms):
            return
        new = [self._number(term) for term in self._terms(self._forms.texts(known))]
        self._term_of_form = np.append(self._term_of_form, np.array(new, np.int32))

    def _number(self, term: bytes | None) -> int:
        return -1 if term is None else self._numbers.setdefault(term, len(self._numbers))

    def _terms(self, forms: Sequence[bytes]) -> Iterator[bytes | None]:
        for form in forms:
            text = form.decode(errors="replace")
            word = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
            if word in self._stop_words:
                yield None
                continue
            yield (word if self._stem is None else self._stem(word)).encode()


def _list_lengths(lists: pa.Array) -> I64:
    return np.asarray(pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False), np.int64)
