"""The statistics that tasks count where only numbers of distinct values are asked for."""

from icepuffin.ops.tasks.sketches.statistic import Kind, SketchedColumn, Statistic


def ndvs(*types: str) -> tuple[Statistic, ...]:
    """One of each column. Field ids are 1, 2 ..."""
    columns = (SketchedColumn(field_id, f"c{field_id}", text) for field_id, text in enumerate(types, 1))
    return tuple(Statistic(Kind.NDV, (column,)) for column in columns)
