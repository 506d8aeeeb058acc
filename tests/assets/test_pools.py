"""The limit of a table's pool."""

from pathlib import Path

import dagster as dg

from icepuffin.assets.pools import limit_pool


def test_a_pool_has_one_slot_unless_somebody_has_given_it_others(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        storage = instance.event_log_storage
        limit_pool(instance, "pool")
        assert storage.get_concurrency_info("pool").slot_count == 1
        storage.set_concurrency_slots("pool", 3)
        limit_pool(instance, "pool")
        assert storage.get_concurrency_info("pool").slot_count == 3


def test_the_limit_that_an_instance_gives_all_pools_stays_in_force(tmp_path: Path) -> None:
    pools = {"concurrency": {"pools": {"default_limit": 2}}}
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=pools) as instance:
        limit_pool(instance, "pool")
        assert instance.event_log_storage.get_pool_limits() == []
