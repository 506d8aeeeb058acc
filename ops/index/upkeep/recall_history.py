"""History of an index's recall, version by version, from the table's metadata. Reads no file."""

from collections.abc import Sequence
from dataclasses import dataclass

from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.binding.measurements import measured_versions
from icepuffin.ops.model import Action, SnapshotId


@dataclass(frozen=True, slots=True)
class RecallMeasurement:
    """Recall of one version, as measured before its commit."""

    base_snapshot_id: SnapshotId
    index_snapshot_id: SnapshotId
    action: Action | None
    """Action that made the version: built or refreshed; None for one that this release does not know"""
    recall: float


def recall_history(versions: Sequence[DerivedVersion]) -> tuple[RecallMeasurement, ...]:
    """Recall of an index's versions, in the order of their data snapshots. Versions without a record are left out."""
    in_order = sorted(versions, key=lambda item: (item.base_sequence_number, item.sequence_number, item.timestamp_ms))
    return tuple(
        RecallMeasurement(version.base_snapshot_id, version.index_snapshot_id, measurement.action, measurement.recall)
        for version, measurement in measured_versions(in_order)
        if measurement.recall is not None
    )


def recall_drift(history: Sequence[RecallMeasurement]) -> float:
    """Recall of the last version minus that of the last one that was built from nothing, or else of the oldest one."""
    if not history:
        return 0.0
    built = [item.recall for item in history if item.action is Action.BUILT]
    return history[-1].recall - (built[-1] if built else history[0].recall)
