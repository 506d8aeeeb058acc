"""The pool of a table in a Dagster instance: it lets one piece of work run at a time."""

import dagster as dg
from dagster import RunsFilter


def limit_pool(instance: dg.DagsterInstance, pool: str) -> None:
    """Give the pool a limit of 1, unless it has one, or the instance has a default.

    Without a limit, runs of one table would race: each is right, and all but one are in vain.
    """
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits or storage.get_pool_config().default_pool_limit is not None:
        return
    if all(limit.name != pool for limit in storage.get_pool_limits()):
        storage.set_concurrency_slots(pool, 1)


def free_pool(instance: dg.DagsterInstance, pool: str) -> None:
    """Free the slots of the pool that runs have kept beyond their end.

    Where pools limit steps, as they do without a `dagster.yaml`, a process that is killed keeps its slot, and every
    later step of the table would wait for it. Dagster frees it only where `free_slots_after_run_end_seconds` is set.
    """
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        return
    info = storage.get_concurrency_info(pool)
    run_ids = {slot.run_id for slot in info.claimed_slots} | {step.run_id for step in info.pending_steps}
    if not run_ids:
        return
    for record in instance.get_run_records(RunsFilter(run_ids=sorted(run_ids))):
        if record.dagster_run.is_finished:
            storage.free_concurrency_slots_for_run(record.dagster_run.run_id)
