"""The rules by which columns get a sketch, after Bodo's text on theta sketches. Pure."""

import json
import os
from collections.abc import Collection
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.table import Table

from icepuffin.ops.tasks.sketches.sketch_types import CREATED_TYPES, SKETCHED_TYPES, type_name_of
from icepuffin.ops.theta.errors import UnsketchableColumnError

SWITCH = "BODO_ENABLE_THETA_SKETCHES"


@dataclass(frozen=True, slots=True)
class SketchedColumn:
    """A top-level column that gets a sketch."""

    field_id: int
    name: str
    """Name of the column in the current schema"""
    type: str
    """Type of the column in the snapshot's schema, in Iceberg's text form, by which its values are hashed"""
    names: tuple[str, ...] | None = None
    """Names of the column in the table's name mapping, by which its values are found in files without field ids; None
    where the table has no mapping"""

    @property
    def counted_as(self) -> str:
        return counted_as(self.type, self.names)


def counted_as(column_type: str, names: Collection[str] | None) -> str:
    """Text that a column's sketch depends on, together with a data file and its deletes: the type, and mapped names."""
    return column_type if names is None else f"{column_type} {json.dumps(sorted(names))}"


def mapped_names(table: Table) -> dict[int, tuple[str, ...]]:
    """Names of the columns in the table's name mapping, by field id. A column that the mapping leaves out has an empty
    tuple, and no values in files without field ids. Empty where the table has no mapping, or a broken one.
    """
    try:
        mapping = table.name_mapping()
    except ValueError:  # the reader of a file that needs it raises the error
        return {}
    if mapping is None:
        return {}
    left_out = dict.fromkeys((field.field_id for schema in table.schemas().values() for field in schema.fields), ())
    return left_out | {field.field_id: tuple(field.names) for field in mapping if field.field_id is not None}


def is_enabled() -> bool:
    """Whether Bodo's switch leaves sketches on."""
    return os.environ.get(SWITCH, "1").strip().lower() not in {"0", "false", "no", "off"}


def choose_columns(
    snapshot_schema: Schema,
    current_schema: Schema,
    *,
    sketched_before: Collection[int],
    names: Collection[str] | None = None,
) -> tuple[SketchedColumn, ...]:
    """The columns of a snapshot that get a sketch, by field id.

    `sketched_before`: field ids with a sketch at the snapshot or in its history. Without any, columns of the types in
    `CREATED_TYPES` get one; otherwise the columns that have one, of any type.
    `names` (in the current schema) overrides both; those that the snapshot does not have yet are left out.
    Columns that were dropped since never get one: an entry for them makes Spark's optimiser fail. Raises
    UnsketchableColumnError.
    """
    types = {f.field_id: str(f.field_type) for f in snapshot_schema.fields if f.field_type.is_primitive}
    columns = [
        SketchedColumn(f.field_id, f.name, types[f.field_id])
        for f in current_schema.fields
        if f.field_id in types and type_name_of(types[f.field_id]) in SKETCHED_TYPES
    ]
    if names is not None:
        possible = [f.name for f in current_schema.fields if type_name_of(str(f.field_type)) in SKETCHED_TYPES]
        if missing := sorted(set(names) - set(possible)):
            raise UnsketchableColumnError(
                f"no theta sketch can be made of {', '.join(missing)}: not top-level columns of a primitive type; "
                f"these are: {', '.join(possible)}"
            )
        chosen = [c for c in columns if c.name in names]
    elif sketched_before:
        chosen = [c for c in columns if c.field_id in sketched_before]
    else:
        chosen = [c for c in columns if type_name_of(c.type) in CREATED_TYPES]
    return tuple(sorted(chosen, key=lambda c: c.field_id))
