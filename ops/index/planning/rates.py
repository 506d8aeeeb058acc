"""Durations: default rates, and a correction factor learned from earlier versions of an index.

Each index snapshot's summary records what the run processed and how long it took (`ann.took`). Later estimates learn
from it how fast this table is on this machine, with or without Dagster.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from icepuffin.ops.binding.bound_versions import DerivedVersion, index_versions
from icepuffin.ops.binding.measurements import EARLIER_VERSIONS, Measurement, measured_versions, source_in_words
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.messages import plural
from icepuffin.ops.model import Action, How
from icepuffin.ops.recall.shard_recall import mean_recall
from icepuffin.ops.tasks.task_runner import RunContext, TaskRunner

if TYPE_CHECKING:
    from icepuffin.ops.index.stages import ShardSet

_STAGES = ("plan", "work", "assemble", "copy", "verify")


@dataclass(frozen=True, slots=True)
class Amounts:
    """Amounts of work that determine its duration, counted from the plan before it, or from what was made after it."""

    read: int = 0
    """Rows of data files that are read and scattered over shards."""
    hashed: int = 0
    """Rows of new files that are matched by the hashes of their vectors."""
    followed: int = 0
    """Rows of new files that are matched by their lineage."""
    built: int = 0
    """Rows of graphs that are built from nothing."""
    inserted: int = 0
    """Rows inserted into graphs that exist."""
    rewritten: int = 0
    """Nodes of shards that are decoded and encoded again."""
    looked_up: int = 0
    """Nodes whose addresses are compared with the live rows."""
    copied: int = 0
    """Bytes of shards that are copied as they are."""
    dims: int = 0


def default_seconds(amounts: Amounts, threads: int) -> float:
    """Duration by rates that were measured on one machine: two cores of an AMD EPYC, local disk.

    `python -m benchmarks.refresh_cost` writes these seconds beside those that it measures (docs/performance/tables.md).
    Microseconds of one core per row at R = 64, L = 100; reading and rewriting are proportional to the dimensions. Bytes
    that stay are copied beside the work. A new process takes half a second to load the compiled kernels.
    """
    width = amounts.dims / 384
    core = (
        70 * amounts.built
        + 280 * amounts.inserted
        + 40 * width * amounts.read
        + 8 * width * amounts.hashed
        + amounts.followed  # not measured apart: with the look-up a row took 0.8 to 1.2 in all
        + 30 * width * amounts.rewritten
        + amounts.looked_up
    )
    return 0.5 + max(core * 1e-6 / threads, amounts.copied / 1e9)


def rows_read(plan: VersionPlan, arriving: int, new: int) -> dict[str, int]:
    """Fields of `Amounts` for the `arriving` rows of added files, `new` of which have no node."""
    if not plan.changes.move_live_positions or not plan.definition.has_graphs:
        return {"read": arriving}
    return {"read": new, "followed" if plan.changes.lineage_files else "hashed": arriving}


def measurement_text(plan: VersionPlan, shard_set: "ShardSet", stages: Mapping[str, float], runner: TaskRunner) -> str:
    """The measurements of a run as text for the index snapshot's summary.

    Later estimates learn from them, and `recall_history` reads the recall.
    """
    new = [shard for shard in shard_set.shards if not shard.how.keeps_bytes]
    inserted = sum(shard.inserted for shard in shard_set.shards) - shard_set.merged
    amounts = Amounts(
        **rows_read(plan, sum(shard_set.read.rows.values()), inserted),
        built=sum(shard.count for shard in new if shard.how.makes_graph),
        inserted=sum(shard.inserted for shard in new if shard.how is How.INSERTED),
        rewritten=sum(shard.count for shard in new if shard.how.rewrites_nodes),
        looked_up=sum(shard.count for shard in shard_set.shards)
        if plan.base and plan.changes.move_live_positions
        else 0,
        copied=sum(shard.length for shard in shard_set.shards if shard.how.keeps_bytes),
        dims=shard_set.layout.dims,
    )
    measurement = Measurement(
        runner=type(runner).__name__,
        threads=runner.task_threads,
        seconds=sum(stages.get(stage, 0.0) for stage in _STAGES),
        amounts=asdict(amounts),
        action=plan.action,
        recall=mean_recall(
            ((shard.recall.recall, shard.live_rows) for shard in shard_set.shards), shard_set.layout.across.share()
        ),
    )
    return measurement.text()


def predicted_seconds(run: RunContext, plan: VersionPlan, amounts: Amounts) -> tuple[float, str]:
    """(seconds, their source in words).

    The seconds of the default rates, times the median correction factor of earlier versions that the same kind of
    runner made by the same action, or else by any action.
    """
    if amounts == Amounts():
        return 0.0, "nothing to do"
    expected = default_seconds(amounts, run.runner.task_threads)
    corrections = _corrections(index_versions(run.table, plan.definition.name), type(run.runner).__name__)
    by_same_action = [factor for action, factor in corrections if action == plan.action]
    chosen = (by_same_action or [factor for _, factor in corrections])[-EARLIER_VERSIONS:]
    if not chosen:
        threads = plural(run.runner.task_threads, "thread")
        return expected, f"default rates, {threads}; the first run on a machine compiles kernels, too"
    how_measured = f"{plan.action} like this one" if by_same_action else "made another way"
    source = f"measured on {source_in_words('version', len(chosen))}, {how_measured}"
    return expected * statistics.median(chosen), source


def _corrections(versions: Sequence[DerivedVersion], runner: str) -> list[tuple[Action | None, float]]:
    """(action, correction factor: seconds divided by those of the default rates), oldest first, for
    one kind of runner.
    """
    names = {field.name for field in fields(Amounts)}
    return [
        (measurement.action, measurement.seconds / default_seconds(Amounts(**measurement.amounts), measurement.threads))
        for _, measurement in measured_versions(versions)
        if measurement.runner == runner and measurement.amounts.keys() <= names
    ]
