"""The condition on words, which no column's values decide: a reader finds its rows by the words of an index."""

from collections.abc import Sequence
from functools import reduce

from pyiceberg.expressions import And, BooleanExpression


class HasWord(BooleanExpression):
    """Whether a row has at least one word of a text in some columns of the index's `text`; AND joins it to others."""

    columns: tuple[str, ...]
    text: str

    def __invert__(self) -> BooleanExpression:
        raise ValueError(f"{self} stands in no OR and under no NOT: join it by AND")

    def __str__(self) -> str:
        return f"match({', '.join(self.columns)}, {self.text!r})"


def parted(where: str | BooleanExpression | None) -> tuple[Sequence[HasWord], str | BooleanExpression | None]:
    """(the conditions on words that AND joins, the rest of a condition; None where nothing is left)."""
    words: list[HasWord] = []
    others: list[BooleanExpression] = []
    left_over = [where] if isinstance(where, BooleanExpression) else []
    while left_over:
        part = left_over.pop()
        if isinstance(part, And):
            left_over += (part.right, part.left)
        else:
            (words if isinstance(part, HasWord) else others).append(part)  # type: ignore[arg-type]
    if not words:
        return (), where
    return words, reduce(And, others) if others else None
