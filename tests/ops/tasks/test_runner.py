"""Where work runs, and into how many tasks it is cut."""

from icepuffin.ops.tasks.runner import LocalRunner, balanced_groups, is_local, small_work_runner
from tests.ops.theta.conftest import ThreadlessRunner


def test_work_of_64_mib_stays_in_this_process() -> None:
    distant, local = ThreadlessRunner(), LocalRunner(1)
    assert is_local(small_work_runner(distant, 64 << 20))
    assert small_work_runner(distant, (64 << 20) + 1) is distant
    assert small_work_runner(local, 1) is local


def test_groups_are_in_order_and_of_about_equal_weight() -> None:
    weights = [7, 1, 1, 1, 5, 1, 6, 2]
    groups = balanced_groups(list(enumerate(weights)), ThreadlessRunner(), lambda pair: pair)
    assert sorted(pair for group in groups for pair in group) == list(enumerate(weights))
    assert all(group == tuple(sorted(group)) for group in groups)
    assert sorted(sum(weight for _, weight in group) for group in groups) == [12, 12]
