"""The steps of a materialisation, and what is in the store after each: whoever is killed there leaves exactly that.

A run that is cut off at any of them is simply run again: it finds what is finished, makes the rest, publishes the same
bytes. What it does not use any more is unreferenced and goes with `icepuffin gc` after the grace period.
"""

from collections.abc import Callable
from enum import StrEnum


class RunStep(StrEnum):
    """In the order in which a run comes to them."""

    PLANNED = "planned"
    """Nothing."""
    TASK_WRITTEN = "task-written"
    """A task's staged object, under a name that nobody else will use; no marker names it. In the worker."""
    TASK_RECORDED = "task-recorded"
    """The object, and the marker by which a retry finds it. In the worker."""
    MADE = "made"
    """All staged objects and markers; measured and accepted. Nothing is visible to a reader. In a refresh also the
    beginning of the index file, since it knew which shards stay: a hidden file, on S3 an upload that is not complete.
    """
    ASSEMBLED = "assembled"
    """The index file under its final name, verified; no metadata names it."""
    LIST_WRITTEN = "list-written"
    """A manifest list for the index snapshot (or the kept sketches'); no metadata names it."""
    COMMITTED = "committed"
    """The version is published; staged objects are still there."""
    SWEEPING = "sweeping"
    """The version is published; some staged objects are gone, markers first."""
    SKETCHED = "sketched"
    """Theta: nothing; sketches are in memory."""
    STATISTICS_WRITTEN = "statistics-written"
    """Theta: the statistics file; the slot does not name it."""
    STATISTICS_REGISTERED = "statistics-registered"
    """Theta: the sketches are published; those per file are not kept yet."""
    FILE_SKETCHES_WRITTEN = "file-sketches-written"
    """Theta: the file that keeps the sketches per data file; no metadata names it."""


def _nobody(step: RunStep) -> None:
    pass


observer: Callable[[RunStep], None] = _nobody
"""Who is told of each step, before the next begins."""


def reached(step: RunStep) -> None:
    """Say that everything before the step is done."""
    observer(step)
