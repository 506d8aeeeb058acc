"""The rules by which columns get statistics, those of theta sketches after Bodo's text. Pure."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from pyiceberg.schema import Schema
from pyiceberg.table import Table

from icepuffin.ops.tasks.sketches.sketch_types import CREATED_TYPES, type_name_of
from icepuffin.ops.tasks.sketches.statistic import TYPES, Kind, SketchedColumn, Statistic
from icepuffin.ops.theta.errors import UnsketchableColumnError
from icepuffin.ops.theta.requested_statistics import ALL, RequestedStatistics

SWITCH = "BODO_ENABLE_THETA_SKETCHES"


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


def choose_statistics(
    snapshot_schema: Schema,
    current_schema: Schema,
    requested: RequestedStatistics,
    before: Collection[tuple[Kind, tuple[int, ...]]],
) -> Iterator[tuple[Kind, tuple[SketchedColumn, ...]]]:
    """The statistics of a snapshot by kind: those that are `requested`, in its order, by names in the current schema.

    `before`: kinds and field ids of those that the snapshot or its history has, which are kept up where no columns are
    named. Where no column has an NDV, those of the types in `CREATED_TYPES` get one.
    Columns that the snapshot lacks have none, nor have joint counts with such a one. Nor have those that were dropped
    since: an entry for them makes Spark's optimiser fail. Raises UnsketchableColumnError.
    """
    types = {f.field_id: str(f.field_type) for f in snapshot_schema.fields}
    columns = {f.name: SketchedColumn(f.field_id, f.name, types.get(f.field_id, "")) for f in current_schema.fields}
    by_id = {column.field_id: column for column in columns.values()}
    for kind in Kind:
        possible = [f.name for f in current_schema.fields if type_name_of(str(f.field_type)) in TYPES[kind]]
        names, kept = requested.of(kind), [ids for of, ids in before if of is kind]
        if names is None and kind is Kind.NDV and not kept:
            names = tuple((it.name,) for it in columns.values() if type_name_of(it.type) in CREATED_TYPES)
        elif names is None:
            names = tuple(tuple(by_id[field_id].name for field_id in ids) for ids in kept if by_id.keys() >= set(ids))
        elif names == ALL:
            names = tuple((name,) for name in possible)
        elif missing := sorted({name for together in names for name in together}.difference(possible)):
            raise UnsketchableColumnError(
                f"statistics.{kind} names {', '.join(missing)}, which it cannot be made of: it takes top-level columns "
                f"of {', '.join(sorted(TYPES[kind]))}; these are: {', '.join(possible) or 'none'}"
            )
        for together in names:
            if len({*together}) < len(together):
                raise UnsketchableColumnError(f"statistics.{kind} names a column twice: {', '.join(together)}")
            chosen = tuple(sorted((columns[name] for name in together), key=lambda column: column.field_id))
            if all(type_name_of(column.type) in TYPES[kind] for column in chosen):
                yield kind, chosen


def with_mapped_names(kind: Kind, columns: Iterable[SketchedColumn], names: Mapping[int, tuple[str, ...]]) -> Statistic:
    """The statistic of these columns. `names`: `mapped_names` of the table."""
    return Statistic(kind, tuple(replace(column, names=names.get(column.field_id)) for column in columns))
