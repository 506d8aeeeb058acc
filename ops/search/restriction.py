"""What a user may read of a snapshot, where the catalog restricts it: the one place where a reader enforces that.

The row filter joins each condition, and stands where there was none. Columns under a mask are out of the schema by
which rows are returned. What an answer says of itself loses all that rows of others have a part in.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.types import NestedField

from icepuffin.ops.catalog.restricted_tables import (
    ReadRestrictions,
    RestrictedTableError,
    restriction_error,
    unknown_form,
)
from icepuffin.ops.filters.condition_parser import parse_condition
from icepuffin.ops.filters.policy_expression import policy_expression
from icepuffin.ops.filters.predicate import RowPredicate
from icepuffin.ops.rows.vector_column import VectorSchema, element_type_of
from icepuffin.ops.search.arguments import Condition
from icepuffin.ops.search.errors import FilterError
from icepuffin.ops.search.result import Profile

_STRATEGY = "within what the catalog allows"


@dataclass(frozen=True, slots=True)
class Restriction:
    """The read restrictions of a table, for one snapshot and one vector column."""

    table: str
    row_filter: BooleanExpression | None
    """Condition that rows of answers satisfy; None for all rows"""
    masked: frozenset[str]
    """Names of the top-level columns under a mask, or with a nested column under one"""
    schema: Schema
    """Schema of the snapshot, masked columns included"""
    visible: Schema
    """Schema without masked columns"""
    what: str
    """What the catalog does, in words"""

    @classmethod
    def of(
        cls, restrictions: ReadRestrictions | None, table: str, schema: Schema, field_id: int
    ) -> "Restriction | None":
        """None where the catalog allows all. `field_id`: of the vector column.

        Raises RestrictedTableError where it cannot be enforced, or the vectors themselves are masked.
        """
        if restrictions is None:
            return None
        row_filter = _row_filter(restrictions, table, schema)
        masked = [field for field in schema.fields if not restrictions.masked.isdisjoint(_ids(field))]
        if row_filter is None and not masked:
            return None
        others = [field for field in schema.fields if field not in masked]
        keys = {field.field_id for field in others}.intersection(schema.identifier_field_ids)
        plain = Schema(*others, schema_id=schema.schema_id, identifier_field_ids=sorted(keys))
        visible = VectorSchema.of(plain, field_id, element_type_of(schema, field_id))
        names = frozenset(field.name for field in masked)
        made = cls(table, row_filter, names, schema, visible, restrictions.what)
        made.require_visible(field.name for field in schema.fields if field.field_id == field_id)
        return made

    def require_visible(self, names: Iterable[str]) -> None:
        """Raises RestrictedTableError where a column is masked."""
        if hidden := sorted(self.masked.intersection(names)):
            raise self.refusal(f"{', '.join(hidden)} is masked: it is neither returned nor compared, leave it out")

    def refusal(self, why: str) -> RestrictedTableError:
        """The error for what would tell more than the catalog allows."""
        return restriction_error(self.table, self.what, why)

    def narrowed(self, where: Condition | None) -> Condition | None:
        """The condition that rows of an answer satisfy, of one that the caller has; None without any.

        Raises FilterError, and RestrictedTableError where the caller's is on a masked column.
        """
        if where is None:
            return self.row_filter
        self.require_visible(RowPredicate(where, self.schema).columns)
        if self.row_filter is None:
            return where
        return And(self.row_filter, parse_condition(where) if isinstance(where, str) else where)

    def allowed_profile(self, whole: Profile) -> Profile:
        """What an answer may say of itself: where rows are hidden, nothing that these have a part in."""
        why = f"{whole.why}; the catalog {self.what}"
        if self.row_filter is None:
            return replace(whole, why=why)
        return Profile(
            why=why,
            strategy=_STRATEGY,
            shards=0,
            nodes_expanded=0,
            distances=0,
            tail_rows=0,
            milliseconds={"search": sum(whole.milliseconds.values())},
            matching_rows=whole.matching_rows,
            queries=whole.queries,
            tier=whole.tier,
            withheld=True,
        )


def _row_filter(restrictions: ReadRestrictions, table: str, schema: Schema) -> BooleanExpression | None:
    """The row filter on a snapshot's columns; None where it is true of all rows. Raises RestrictedTableError."""
    if restrictions.row_filter is None:
        return None
    try:
        expression = policy_expression(restrictions.row_filter, schema)
        predicate = RowPredicate(expression, schema)
    except RecursionError:
        raise unknown_form(table, "the row filter is nested too deeply") from None  # whose trace has thousands of lines
    except (ValueError, FilterError) as error:
        raise unknown_form(table, f"of the row filter: {error}") from error
    return None if isinstance(predicate.bound, AlwaysTrue) else expression


def _ids(field: NestedField) -> set[int]:
    """Field ids of a column and of all that is nested in it."""
    return set(index_by_id(Schema(field)))
