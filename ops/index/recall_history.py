"""How an index's recall went, version by version, as the table's own metadata tells it. Reads no file."""

from collections.abc import Sequence
from dataclasses import dataclass

from icepuffin.ops.catalog.bound_versions import DerivedVersion
from icepuffin.ops.catalog.measurements import notes
from icepuffin.ops.index.report import Action


@dataclass(frozen=True, slots=True)
class RecallMeasurement:
    """One version, as it was measured before its commit."""

    base_snapshot_id: int
    index_snapshot_id: int
    action: str
    """How it was made: built or refreshed."""
    recall: float


def recall_history(known: Sequence[DerivedVersion]) -> tuple[RecallMeasurement, ...]:
    """Of an index's versions, in the order of their snapshots, whenever they were made; those that noted no recall are
    left out.
    """
    in_order = sorted(known, key=lambda item: (item.base_sequence_number, item.sequence_number, item.timestamp_ms))
    return tuple(
        RecallMeasurement(version.base_snapshot_id, version.index_snapshot_id, note.action, note.recall)
        for version, note in notes(in_order)
        if note.recall is not None
    )


def recall_drift(history: Sequence[RecallMeasurement]) -> float:
    """Recall of the last version less that of the last that was built from nothing (else of the oldest known)."""
    if not history:
        return 0.0
    built = [item.recall for item in history if item.action == Action.BUILT]
    return history[-1].recall - (built[-1] if built else history[0].recall)
