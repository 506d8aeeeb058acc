"""Runs that give a snapshot its version of an index: plan, then reuse a version, move its tag, or make one.

They are idempotent, and safe to run twice at once.
"""

import logging
import uuid
from contextlib import suppress
from dataclasses import replace

from icepuffin.ops.binding import bindings
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.binding.commit import reload_table
from icepuffin.ops.binding.errors import LostRaceError
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.errors import CoverageError, GateFailedError, LayoutMisfitError, ShardTooLargeError
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.index.planning.version_plan import VersionPlan, plan_instead, plan_rebuild, plan_version
from icepuffin.ops.index.upkeep.outcome_reports import empty_report, reuse_report
from icepuffin.ops.index.vain_builds import find_vain_build, record_vain_build
from icepuffin.ops.index.versions.version_reader import lost_packs
from icepuffin.ops.model import Action, SnapshotId
from icepuffin.ops.process.stage_clock import StageClock
from icepuffin.ops.storage import ObjectMissingError, left_where_refused
from icepuffin.ops.table.snapshots import head_of
from icepuffin.ops.tasks.markers import StagedDamageError
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta.theta_materialization import CountedSketches
from icepuffin.puffin.errors import PuffinError

_log = logging.getLogger(__name__)


def materialize_index(
    run: RunContext,
    definition: IndexDefinition,
    snapshot_id: SnapshotId,
    *,
    verify: bool = False,
    again: bool = False,
    sketches: CountedSketches | None = None,
) -> IndexReport:
    """Build, refresh, reuse, or move the tag: whichever is due for the snapshot.

    The later of two runs for one snapshot finds the work done. What another run swept is made again, once, where no
    other run sweeps it. If a refresh reads damage in its base version, or does
    not find a pack of it, it starts again from an intact version, or from nothing. Of bytes that are only copied it
    reads a sample, or all of them with `verify` (see docs/operations.md). Where a version is published, `sketches` of
    the snapshot go into the same commit, and into its footer; where they cannot, they do not keep it back. A build that
    missed the gate before is not made again of mostly the same rows, unless with `again`.

    Raises GateFailedError, CoverageError, and the errors of bad input; then nothing was published, and the last good
    version is in place.
    """
    clock = StageClock()

    def plan_next(*, whole: bool) -> VersionPlan:
        with clock.stage("plan"):
            return plan_version(run, definition, snapshot_id, verify=whole)

    def attempt(*, whole: bool) -> IndexReport:
        plan = plan_next(whole=whole)
        try:
            return _carry_out(run, plan, clock, sketches, again=again)
        except StagedDamageError as error:
            _log.warning("snapshot %s, index %s: work is done again: %s", snapshot_id, definition.name, error)
            return _carry_out(run, plan, clock, sketches, again=again)
        except ObjectMissingError as error:
            # another run has published a version meanwhile, or met damage, and swept what both had staged
            replanned = plan_next(whole=whole)
            if replanned.existing is None:
                if plan.staging_prefix not in str(error):
                    raise
                replanned = replace(replanned, apart=f"{uuid.uuid4().hex}-")  # two may sweep each other's for ever
            return _carry_out(run, replanned, clock, sketches, again=again)

    try:
        return attempt(whole=verify)
    except (PuffinError, CoverageError, ObjectMissingError) as error:
        # a CoverageError may come from a base version that is wrong
        if verify or (isinstance(error, ObjectMissingError) and not _is_pack_lost(run, definition.name)):
            raise
        _log.warning("snapshot %s, index %s: damage, so versions are verified: %s", snapshot_id, definition.name, error)
        return attempt(whole=True)


def _is_pack_lost(run: RunContext, index: str) -> bool:
    """Whether the store lacks a pack that a version of the index names."""
    return any(lost_packs(version, run.storage) for version in index_versions(run.table, index))


def _carry_out(
    run: RunContext,
    plan: VersionPlan,
    clock: StageClock,
    sketches: CountedSketches | None = None,
    *,
    again: bool = False,
) -> IndexReport:
    """Carry out a plan. If the shards of the base version have no room for the new rows, or are no good for them, as
    of another model, build from nothing; see `plan_instead`. A build in vain is made once more only with `again`.

    Raises the error of the second way where both failed, which names the first one's, too.
    """
    first, tried = plan, list[VersionPlan]()
    if plan.action is Action.BUILT and not again:
        _require_new_build(plan, run)
    while True:
        try:
            report = _as_planned(run, plan, clock, sketches)
        except IcepuffinError as error:
            is_first = plan.action is Action.REFRESHED and not tried and not again
            is_unfit = is_first and isinstance(error, GateFailedError | LayoutMisfitError | ShardTooLargeError)
            vain = find_vain_build(plan, run) if is_unfit else None
            other = plan_instead(plan, error, first, vain)
            if other is None:
                if isinstance(error, StagedDamageError | ObjectMissingError):  # the next attempt must not reuse it
                    with left_where_refused():
                        _sweep(plan, run)
                if Action.BUILT in (one.action for one in (*tried, plan)):
                    _record_if_vain(plan, error, run)
                _name_both(error, plan, vain)
                raise
            anew = other.action is Action.BUILT
            way = "is built anew" if anew else "is refreshed with the layout that it has"
            _log.warning("%s, index %s: %s. It %s", plan.live.table, plan.definition.name, error, way)
            tried.append(plan)
            plan = other
            continue
        with left_where_refused():
            for other in tried:
                _sweep(other, run)
        return report


def _sweep(plan: VersionPlan, run: RunContext) -> None:
    """Delete what is staged for a plan."""
    from icepuffin.ops.index.new_version import sweep_staged  # noqa: PLC0415  numba, loaded by now

    sweep_staged(plan, run.storage)


def _require_new_build(plan: VersionPlan, run: RunContext) -> None:
    """Raises GateFailedError where a build of mostly the same rows has missed the gate."""
    vain = find_vain_build(plan, run)
    if vain is None:
        return
    where = f"{plan.live.table}, index {plan.definition.name}, snapshot {plan.live.snapshot_id}"
    error = GateFailedError(
        f"{where}: a build is due ({plan.reason}), and the target is {plan.definition.target_recall}. {vain}. Nothing "
        f"was published. {vain.advice}"
    )
    error.recall, error.advice = vain.recall, vain.advice
    raise error


def _record_if_vain(plan: VersionPlan, error: IcepuffinError, run: RunContext) -> None:
    """Keep the recall of a build that has missed the gate, where no refresh has met it, whichever was last."""
    of_build = error if plan.action is Action.BUILT else plan.other_error
    if isinstance(error, GateFailedError) and isinstance(of_build, GateFailedError):
        record_vain_build(plan, of_build, run)


def _name_both(error: IcepuffinError, plan: VersionPlan, vain: GateFailedError | None) -> None:
    """Have the error of a plan name the one of the other way. Of two recalls its message has both. `vain`: the error
    of a build that was tried by an earlier run.
    """
    gates = isinstance(error, GateFailedError) and isinstance(plan.other_error, GateFailedError)
    if vain is not None:
        advice = "" if isinstance(error, GateFailedError) else f". {vain.advice}"
        error.args = (f"{error}. {vain}{advice}",)
    if plan.other_error is not None and not gates:
        way = "refresh" if plan.action is Action.BUILT else "build"
        error.args = (f"{error}. A {way} was tried before: {plan.other_error}",)


def rebuild_tombstoned_shards(run: RunContext, definition: IndexDefinition) -> IndexReport | None:
    """Rebuild the head version's shards whose tombstone ratio is over the definition's. None: nothing was due."""
    reload_table(run.table)
    head = head_of(run.table, run.ref)
    rebuild = None if head is None else plan_rebuild(plan_version(run, definition, head))
    return None if rebuild is None else _carry_out(run, rebuild, StageClock())


def _as_planned(run: RunContext, plan: VersionPlan, clock: StageClock, sketches: CountedSketches | None) -> IndexReport:
    if plan.action is Action.EMPTY:
        return empty_report(plan, clock)
    if plan.existing is not None:
        if plan.action is Action.RETAGGED:
            with suppress(LostRaceError), clock.stage("bind"):
                bindings.move_tag(run.table, plan.tag, plan.existing.index_snapshot_id, expected_ref=plan.expected_ref)
        elif plan.is_head:
            bindings.make_lasting(run.table, plan.tag)
        return reuse_report(plan, clock, plan.existing)
    from icepuffin.ops.index.new_version import make_version  # noqa: PLC0415  numba, if a version is to be made

    return make_version(run, plan, clock, sketches)
