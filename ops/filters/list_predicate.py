"""The condition on lists, `array_contains(tags, 'x')`, which PyIceberg has no expression for.

It means what it means to Spark: null for a null list, and for a list that has a null element but not the value.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BoundPredicate, BoundTerm, UnboundPredicate, UnboundTerm
from pyiceberg.expressions.literals import Literal, literal
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, NestedField

from icepuffin.ops.rows.attributes import list_parents


class ArrayContains(UnboundPredicate):
    """Whether a list column has an element that is equal to a value; `~` negates it.

    Parameters
    ----------
    term : str
        Name of a column of lists of plain values.
    value : bool, int, float, str, bytes, decimal.Decimal, datetime.date, datetime.time, datetime.datetime, uuid.UUID
        The element.

    Examples
    --------
    >>> icepuffin.ArrayContains("tags", "web")
    ArrayContains(term=Reference(name='tags'), value=literal('web'), negated=False)
    """

    value: Any = None
    negated: bool = False

    def __init__(self, term: str | UnboundTerm, value: Any, *, negated: bool = False) -> None:
        constant = value if value is None or isinstance(value, Literal) else literal(value)
        super().__init__(term=term, value=constant, negated=negated)

    def __invert__(self) -> "ArrayContains":
        return ArrayContains(self.term, self.value, negated=not self.negated)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrayContains) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"ArrayContains(term={self.term!r}, value={self.value!r}, negated={self.negated})"

    __str__ = __repr__

    def bind(self, schema: Schema, case_sensitive: bool = True) -> "BoundArrayContains":
        """Raises ValueError where the column is no list of plain values."""
        term: Any = self.term.bind(schema, case_sensitive)
        element_of(term.ref().field)
        return BoundArrayContains(term, self.value, negated=self.negated)

    @property
    def as_bound(self) -> type["BoundArrayContains"]:
        return BoundArrayContains


class BoundArrayContains(BoundPredicate):
    """`ArrayContains` of a column of a schema. A literal of None is one that no element is equal to."""

    value: Any = None
    negated: bool = False

    def __init__(self, term: BoundTerm, value: Literal[Any] | None, *, negated: bool) -> None:
        super().__init__(term=term, value=value, negated=negated)

    def __invert__(self) -> "BoundArrayContains":
        return BoundArrayContains(self.term, self.value, negated=not self.negated)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoundArrayContains) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"BoundArrayContains(term={self.term!r}, value={self.value!r}, negated={self.negated})"

    @property
    def as_unbound(self) -> type[ArrayContains]:
        return ArrayContains


def element_of(field: NestedField) -> NestedField:
    """The element of a list column. Raises ValueError where the column is no list of plain values."""
    kind = field.field_type
    if not isinstance(kind, ListType) or not kind.element_type.is_primitive or str(kind.element_type) == "unknown":
        raise ValueError(f"{field.name} is {kind}: array_contains takes a column of lists of plain values")
    return NestedField(kind.element_id, f"an element of {field.name}", kind.element_type, required=False)


def contains(lists: pa.Array, equal: pa.Array) -> pa.Array:
    """bool[n] or null: whether each list has an element for which `equal` is true.

    lists: of plain values. equal: bool, of each element of the lists that are not null, null for a null element.
    """
    count = len(lists)
    parents = list_parents(lists)
    has_value, unknown = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    has_value[parents[np.asarray(equal.fill_null(False).to_numpy(zero_copy_only=False))]] = True
    unknown[parents[np.asarray(pc.is_null(equal).to_numpy(zero_copy_only=False))]] = True
    unknown = (unknown & ~has_value) | np.asarray(pc.is_null(lists).to_numpy(zero_copy_only=False))
    return pa.array(has_value, mask=unknown)
