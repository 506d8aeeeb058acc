"""Steps of a run, and what is in the store after each: a run that is killed there leaves exactly that.

A run that was killed is simply started again: it finds what is finished, makes the rest, and publishes the same bytes.
Leftovers are unreferenced, and `icepuffin gc` deletes them after the grace period.
"""

from collections.abc import Callable
from enum import StrEnum


class RunStep(StrEnum):
    """Steps of a run, in their order. Each is described by what exists when a run reaches it."""

    PLANNED = "planned"
    """A plan; nothing is written."""
    TASK_WRITTEN = "task-written"
    """A task's staged object, under a name that nobody else will use; no marker names it. In the worker."""
    TASK_RECORDED = "task-recorded"
    """The staged object, and the marker by which a retry finds it. In the worker."""
    MADE = "made"
    """All staged objects and markers; recall is measured and accepted. Readers see nothing. In a refresh also the
    beginning of the index file, with the shards that stay: a hidden file, or on S3 an upload that is not complete.
    """
    PACKED = "packed"
    """A new pack under its final name, where there is one; no metadata names it."""
    ASSEMBLED = "assembled"
    """The index file and its pack under their final names, verified; no metadata names them."""
    LIST_WRITTEN = "list-written"
    """Manifest lists for the index snapshot (or the file sketches') and that of a new pack; no metadata names them."""
    COMMITTED = "committed"
    """The published version, or sketches; all staged objects are still there."""
    SWEEPING = "sweeping"
    """The published version; some staged objects are deleted, markers first."""
    SKETCHED = "sketched"
    """Theta sketches in memory; nothing is written."""
    FILE_SKETCHES_PACKED = "file-sketches-packed"
    """A new pack of file sketches, where there is one; no metadata names it."""
    FILE_SKETCHES_WRITTEN = "file-sketches-written"
    """The file of the file sketches and its pack; no metadata names them."""
    STATISTICS_WRITTEN = "statistics-written"
    """The statistics file of the theta sketches; the slot does not name it."""
    STATISTICS_REGISTERED = "statistics-registered"
    """The published theta sketches."""


def _nobody(step: RunStep) -> None:
    pass


observer: Callable[[RunStep], None] = _nobody
"""Callback that is called with each step, before the next begins"""


def reached(step: RunStep) -> None:
    """Report that a step is reached."""
    observer(step)
