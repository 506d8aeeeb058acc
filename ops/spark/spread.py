"""Spreading rows over Spark's tasks by a number that they have."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def spread_by(frame: "DataFrame", column: str, parts: int) -> "DataFrame":
    """The rows in `parts` partitions, those of one number, 0 to parts - 1, in one.

    Spark 4.0 spreads them by ranges of a sample: all that made the rows is done once more for it, and two numbers may
    share a partition.
    """
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(parts, column)
    return frame.repartitionByRange(parts, column)
