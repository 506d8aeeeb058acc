"""Proof of the values for conditions: two entries are equal where each row has the same value, however numbered."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from icepuffin.ops.index.verify.column_proof import _equal
from icepuffin.ops.rows import attributes
from icepuffin.puffin.blobs.attributes_blob import AttributeEntry, FileValues, entry_of, list_entry_of

KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "texts": (pa.string(), ["", "a", "ab", "b", None]),
    "numbers": (pa.int64(), [0, 1, -1, 2**40, None]),
    "floats": (pa.float64(), [0.0, 1.5, float("inf"), None]),
    "flags": (pa.bool_(), [True, False, None]),
}


def entry(rows: list[Any], kind: pa.DataType, *, of_lists: bool) -> AttributeEntry:
    column = pa.array(rows, pa.list_(kind) if of_lists else kind)
    if of_lists:
        lists = attributes.file_lists([column], kind, len(rows))
        assert lists is not None
        return list_entry_of(0, len(rows), "kind", "reading", lists)
    values = attributes.file_values([column], kind, len(rows))
    assert values is not None
    return entry_of(0, len(rows), "kind", "reading", values)


@pytest.mark.parametrize("of_lists", [False, True], ids=["values", "lists"])
@pytest.mark.parametrize("name", KINDS)
def test_entries_are_equal_where_all_rows_are(name: str, of_lists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, choices = KINDS[name]
    rng = random.Random(name)
    encoded = attributes.encoded_values

    def backwards(distinct: pa.Array, codes: Any) -> FileValues:
        last_first = np.where(codes < 0, codes, len(distinct) - 1 - codes)
        return encoded(distinct.take(pa.array(range(len(distinct) - 1, -1, -1), pa.int64())), last_first)

    def draw() -> Any:
        if not of_lists:
            return rng.choice(choices)
        return None if rng.random() < 0.2 else rng.choices(choices, k=rng.randrange(3))

    for number in range(60):
        rows = [draw() for _ in range(rng.randrange(1, 8))]
        other = [*rows]
        if number % 2:
            other[rng.randrange(len(rows))] = draw()
        kept = entry(rows, kind, of_lists=of_lists)
        with monkeypatch.context() as patch:
            if not of_lists:
                patch.setattr(attributes, "encoded_values", backwards)
            read = entry(other, kind, of_lists=of_lists)
        assert _equal(kept, read, of_lists=of_lists) == (meaning(rows) == meaning(other)), (rows, other)


def meaning(rows: list[Any]) -> list[Any]:
    """The rows, lists as their distinct elements: conditions depend on no more of a list."""
    return [frozenset(row) if isinstance(row, list) else row for row in rows]
