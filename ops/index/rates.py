"""How long work takes: default rates, and how far the earlier versions of an index were off them.

Each version's snapshot keeps in its summary what it handled and how long that took (`ann.took`), so that the next
estimate can say how fast this table is on this machine, whoever asks and whether or not Dagster is there.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields

from pyiceberg.table import Table

from icepuffin.ops.catalog.bound_versions import DerivedVersion, index_versions
from icepuffin.ops.catalog.measurements import EARLIER_VERSIONS, Took, last, notes
from icepuffin.ops.index.plan import VersionPlan
from icepuffin.ops.index.report import mean_recall
from icepuffin.ops.index.stages import ShardSet
from icepuffin.ops.model import How
from icepuffin.ops.tasks.runner import TaskRunner

_STAGES = ("plan", "work", "assemble", "copy", "verify")


@dataclass(frozen=True, slots=True)
class Amounts:
    """What seconds follow. Counted before the work from the plan, and after it from what was made."""

    read: int = 0
    """Rows of data files that are read and dealt out to shards."""
    hashed: int = 0
    """Rows of new files that are compared by their vectors with nodes that have lost theirs."""
    followed: int = 0
    """The same, by their lineage."""
    built: int = 0
    """Rows of graphs that are made from nothing."""
    inserted: int = 0
    """Rows inserted into graphs that exist."""
    rewritten: int = 0
    """Nodes of shards that are decoded and encoded again."""
    looked_up: int = 0
    """Nodes whose rows are looked for among the live ones."""
    copied: int = 0
    """Bytes of shards that are kept."""
    dims: int = 0


def default_seconds(amounts: Amounts, threads: int) -> float:
    """By rates measured on one machine (two cores of an AMD EPYC, local disk; see docs/performance/tables.md).

    Core microseconds a row at R = 64, L = 100; reading and rewriting go with the dimensions. What stays is copied
    beside the work. Half a second goes by until a new process has loaded the compiled kernels.
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
    """How the `arriving` rows of added files are read, `new` of which no node has: fields of `Amounts`."""
    if not plan.live_positions_change:
        return {"read": arriving}
    return {"read": new, "followed" if plan.changes.lineage_files else "hashed": arriving}


def took(plan: VersionPlan, made: ShardSet, stages: Mapping[str, float], runner: TaskRunner) -> str:
    """What a version took and the recall it has, for its snapshot's summary: later estimates learn from it, and
    `icepuffin.ops.index.recall_history` tells it.
    """
    new = [shard for shard in made.shards if not shard.how.keeps_bytes]
    inserted = sum(shard.inserted for shard in made.shards) - made.merged
    amounts = Amounts(
        **rows_read(plan, sum(made.read.rows.values()), inserted),
        built=sum(shard.count for shard in new if shard.how.makes_graph),
        inserted=sum(shard.inserted for shard in new if shard.how is How.INSERTED),
        rewritten=sum(shard.count for shard in new if shard.how.rewrites_nodes),
        looked_up=sum(shard.count for shard in made.shards) if plan.base and plan.live_positions_change else 0,
        copied=sum(shard.length for shard in made.shards if shard.how.keeps_bytes or shard.how is How.REMAPPED),
        dims=made.layout.dims,
    )
    note = Took(
        runner=type(runner).__name__,
        threads=runner.task_threads,
        seconds=sum(stages.get(stage, 0.0) for stage in _STAGES),
        amounts=asdict(amounts),
        action=str(plan.action),
        recall=mean_recall(made.shards),
    )
    return note.text()


def predicted_seconds(table: Table, plan: VersionPlan, amounts: Amounts, runner: TaskRunner) -> tuple[float, str]:
    """(seconds, what they are from): the default rates' seconds, times the median miss of earlier versions that were
    made by the same action, or else by any, with the same kind of runner.
    """
    if amounts == Amounts():
        return 0.0, "nothing to do"
    expected = default_seconds(amounts, runner.task_threads)
    known = _misses(index_versions(table, plan.definition.name), type(runner).__name__)
    alike = [miss for action, miss in known if action == plan.action]
    chosen = (alike or [miss for _, miss in known])[-EARLIER_VERSIONS:]
    if not chosen:
        return expected, f"default rates, {runner.task_threads} threads"
    made = f"{plan.action} like this one" if alike else "made another way"
    return expected * statistics.median(chosen), f"measured on {last('version', len(chosen))}, {made}"


def _misses(known: Sequence[DerivedVersion], runner: str) -> list[tuple[str, float]]:
    """(action, seconds as a multiple of the default rates'), oldest first, of versions that such a runner made."""
    names = {field.name for field in fields(Amounts)}
    return [
        (note.action, note.seconds / default_seconds(Amounts(**note.amounts), note.threads))
        for _, note in notes(known)
        if note.runner == runner and note.amounts.keys() == names
    ]
