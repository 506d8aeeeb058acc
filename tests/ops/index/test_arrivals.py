"""Rows that come to the shards of a new version, by shard."""

from icepuffin.ops.index.refresh import Arrivals
from icepuffin.ops.model import ShardId
from icepuffin.ops.tasks.delta_rows import PassedRows
from icepuffin.ops.tasks.staged_blocks import blocks_by_destination


def test_the_passed_rows_of_all_shards_are_gone_through_once() -> None:
    """Of 8 deltas that are dissolved into 6,000 shards there are 48,000."""
    rows = [PassedRows(ShardId(shard_id), (f"{delta}", 10 * delta), ()) for delta in (1, 2) for shard_id in (0, 2)]
    each_once = iter(rows)
    arrivals = Arrivals.from_blocks({2: (("staged", 5),)}, each_once)
    assert arrivals.passed_to(ShardId(0)) == (rows[0], rows[2])
    assert arrivals.passed_to(ShardId(1)) == ()
    assert arrivals.passed_to(ShardId(2)) == (rows[1], rows[3])
    assert [arrivals.count(ShardId(shard_id)) for shard_id in range(3)] == [30, 0, 35]


def test_the_blocks_of_a_destination_come_in_the_order_of_the_tasks() -> None:
    tasks = [((0, "a", 1), (7, "b", 2)), ((7, "c", 3),), (), ((0, "d", 4), (7, "e", 5))]
    assert blocks_by_destination(tasks) == {0: (("a", 1), ("d", 4)), 7: (("b", 2), ("c", 3), ("e", 5))}
