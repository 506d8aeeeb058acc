"""The pool of a table, which lets one piece of work run at a time, whatever `dagster.yaml` has."""

import dagster as dg


def limit_pool(instance: dg.DagsterInstance, pool: str) -> None:
    """Give the pool a limit of 1, unless it has one, or the instance has a default.

    Without a limit, runs of one table would race: each is right, and all but one are in vain.
    """
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits or storage.get_pool_config().default_pool_limit is not None:
        return
    if all(limit.name != pool for limit in storage.get_pool_limits()):
        storage.set_concurrency_slots(pool, 1)
