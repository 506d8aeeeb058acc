"""Measured runs: what making a version took, and its recall, kept in the summary of its snapshot. Later estimates learn
from it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.model import Action, SnapshotId
from icepuffin.ops.table.summaries import finite_number, whole_number

EARLIER_VERSIONS = 5
"""Number of measured versions, the newest ones, that an estimate learns from"""
_OWN_KEYS = ("action", "runner", "threads", "seconds", "recall")
LEFT_OUT = "left_out"
"""Amount, of theta sketches: number of data files whose sketches are over the budget"""
_MAX_SECONDS = 1e9
"""Seconds that no run takes: thirty years"""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Time and amounts of the run that made one version."""

    runner: str
    """Class of the task runner: threads of one process and Spark have different rates"""
    threads: int
    seconds: float
    amounts: Mapping[str, int]
    """Amounts of work that the seconds depend on, by name; others are 0"""
    action: Action | None = None
    """Action on an index; None for theta sketches, and for one that this release does not know"""
    recall: float | None = None
    """recall@10; None where nothing was measured, as without graphs, and of theta sketches"""

    def text(self) -> str:
        """Words `name=value`, for the summary; amounts of 0 are left out."""
        record = {"runner": self.runner, "threads": self.threads, "seconds": round(self.seconds, 3)}
        action = {} if self.action is None else {"action": self.action}
        recall = {} if self.recall is None else {"recall": round(self.recall, 5)}
        amounts = {name: amount for name, amount in self.amounts.items() if amount}
        return " ".join(f"{name}={value}" for name, value in {**action, **record, **recall, **amounts}.items())

    @classmethod
    def parse(cls, text: str) -> "Measurement | None":
        """The measurement in a summary; None for an empty text, and for one that another release or a person wrote."""
        try:
            record = dict(word.split("=") for word in text.split(" "))
            amounts = {name: whole_number(value) for name, value in record.items() if name not in _OWN_KEYS}
            seconds = finite_number(record["seconds"])
            if not 0 <= seconds < _MAX_SECONDS or min(amounts.values(), default=0) < 0:
                return None
            return cls(
                runner=record["runner"],
                threads=max(1, whole_number(record["threads"])),
                seconds=seconds,
                amounts=amounts,
                action=Action(record["action"]) if record.get("action") in tuple(Action) else None,
                recall=finite_number(record["recall"]) if "recall" in record else None,
            )
        except (KeyError, ValueError):
            return None


def measured_versions(versions: Iterable[DerivedVersion]) -> Iterator[tuple[DerivedVersion, Measurement]]:
    """The versions that have a measurement, each with it, in the order of `versions`."""
    for version in versions:
        measurement = Measurement.parse(version.measurement)
        if measurement is not None:
            yield version, measurement


def source_in_words(unit: str, count: int) -> str:
    """The runs that an estimate learned from, in words: "the last 3 versions"."""
    return f"the last {unit}" if count == 1 else f"the last {count} {unit}s"


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
