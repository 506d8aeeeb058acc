"""The columns that a definition names, in a schema: their field ids, and whether an index takes them."""

from dataclasses import replace
from itertools import repeat
from shlex import quote
from typing import TYPE_CHECKING, Any

from icepuffin.ops.index.definitions.index_definition import COLUMN_LISTS, DefinitionError, IndexDefinition
from icepuffin.ops.rows.element_types import ELEMENT_TYPES, OF_COLUMN, spare_bytes

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField


def resolve_field(definition: IndexDefinition, schema: "Schema", table: str) -> int:
    """The field id of the vector column in a snapshot's schema.

    Raises DefinitionError where the column was dropped, or has no vectors of the element type there.
    """
    field_id = definition.field_id
    if field_id is None:
        return resolve_column(definition.column, schema, table, definition.element_type)
    field = next((field for field in schema.fields if field.field_id == field_id), None)
    if field is None:
        namesake = next((field for field in schema.fields if field.name == definition.column), None)
        other = f", and its {namesake.name!r} is another column, field {namesake.field_id}" if namesake else ""
        raise DefinitionError(
            f"{table}: column {definition.column!r} (field {field_id}) of index {definition.name} is not in this "
            f"snapshot's schema: it was dropped, or not there yet{other}. Take another snapshot, or drop the index: "
            f"icepuffin index drop {quote(table)} {definition.name}"
        )
    return _vector_field_id(field, table, definition.element_type)


def resolve_column(column: str, schema: "Schema", table: str, element_type: str = OF_COLUMN) -> int:
    """The field id of a vector column by its name in a snapshot's schema.

    Raises DefinitionError where there is no such column, or it has no vectors of the element type there.
    """
    field = next((field for field in schema.fields if field.name == column), None)
    if field is None:
        names = ", ".join(field.name for field in schema.fields)
        raise DefinitionError(f"{table} has no column {column!r} at its top level; it has {names}")
    return _vector_field_id(field, table, element_type)


def with_column_ids(definition: IndexDefinition, schema: "Schema", table: str) -> IndexDefinition:
    """The definition with the field ids of the columns that its lists name. Raises DefinitionError."""
    ids: dict[str, Any] = {
        ids_of: resolve_columns(definition, names_of, schema, table) for names_of, ids_of in COLUMN_LISTS.items()
    }
    return replace(definition, **ids)


def resolve_columns(definition: IndexDefinition, parameter: str, schema: "Schema", table: str) -> tuple[int, ...]:
    """Field ids of the columns of one of `COLUMN_LISTS`; by name in a schema, where the definition has none yet.

    Raises DefinitionError for a column that is not there, or whose values cannot be kept.
    """
    ids: tuple[int, ...] | None = getattr(definition, COLUMN_LISTS[parameter])
    if ids is not None:
        return ids
    fits, fitting = {
        "filters": (has_kept_values, "plain values, and of lists of plain values but of floats, can be kept"),
        "include": (has_plain_values, "plain values can be stored: leave it out, and answers read the data files"),
        "text": (has_texts, "strings, and of lists of strings, have words"),
    }[parameter]
    fields = {field.name: field for field in schema.fields}
    names: tuple[str, ...] = getattr(definition, parameter)
    for name in names:
        if name not in fields:
            raise DefinitionError(
                f"{table}, index {definition.name}: {parameter} names {name!r}, which is no column at the top level; "
                f"there are {', '.join(fields)}"
            )
        if not fits(fields[name]):
            raise DefinitionError(
                f"{table}, index {definition.name}: {parameter} names {name!r}, which is {fields[name].field_type}; "
                f"only columns of {fitting}"
            )
    return tuple(fields[name].field_id for name in names)


def as_named_in(definition: IndexDefinition, schema: "Schema") -> IndexDefinition:
    """The definition with the names that its columns have in a schema; with its own for those that are not there."""

    def now(name: str, field_id: int | None) -> str:
        return (None if field_id is None else schema.find_column_name(field_id)) or name

    lists: dict[str, Any] = {
        names_of: tuple(map(now, getattr(definition, names_of), getattr(definition, ids_of) or repeat(None)))
        for names_of, ids_of in COLUMN_LISTS.items()
    }
    return replace(definition, column=now(definition.column, definition.field_id), **lists)


def has_kept_values(field: "NestedField") -> bool:
    """Whether the values of a column can be kept for conditions: plain ones, or lists of such, but no vectors."""
    from pyiceberg.types import DoubleType, FloatType, ListType  # noqa: PLC0415  usage errors come without

    kind = field.field_type
    if isinstance(kind, ListType):
        kind = kind.element_type
        if isinstance(kind, FloatType | DoubleType):
            return False
    return _is_plain(kind)


def has_plain_values(field: "NestedField") -> bool:
    """Whether the values of a column can be stored with versions. A value of no bytes is none."""
    return _is_plain(field.field_type) and str(field.field_type) != "fixed[0]"


def has_texts(field: "NestedField") -> bool:
    """Whether a column has texts: strings, or lists of them."""
    return str(field.field_type) in ("string", "list<string>")


def _is_plain(kind: "IcebergType") -> bool:
    """A column of the type unknown has no values."""
    return kind.is_primitive and str(kind) != "unknown"


def _vector_field_id(field: "NestedField", table: str, element_type: str) -> int:
    from pyiceberg.types import (  # noqa: PLC0415  usage errors come without
        BinaryType,
        DoubleType,
        FixedType,
        FloatType,
        IntegerType,
        ListType,
        LongType,
    )

    field_type = field.field_type
    column = f"{table}: column {field.name!r} is {field_type}"
    numbers = FloatType | DoubleType | IntegerType | LongType
    of_lists = isinstance(field_type, ListType) and isinstance(field_type.element_type, numbers)
    of_bytes = isinstance(field_type, FixedType | BinaryType)
    if not of_lists and not of_bytes:
        raise DefinitionError(
            f"{column}; a column of vectors is list<float> or list<double>, list<int> or list<long> with small "
            "integers, or fixed[N] or binary with an element_type"
        )
    if of_bytes and element_type == OF_COLUMN:
        names = ", ".join(ELEMENT_TYPES[1:])
        raise DefinitionError(f"{column}: say which numbers its bytes are, by an element_type of {names}")
    if of_lists and element_type != OF_COLUMN:
        raise DefinitionError(f"{column}, and element_type {element_type} is for bytes: leave element_type out")
    if isinstance(field_type, FixedType) and (rest := spare_bytes(len(field_type), element_type)):
        raise DefinitionError(
            f"{column}: {len(field_type)} bytes are no whole number of {element_type} elements, {rest} would be left "
            "over; take the element_type of its writer"
        )
    return field.field_id
