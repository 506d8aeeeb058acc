"""Which worker runs which test file: one starts servers, the others do not; long files are not last."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from xdist.scheduler.loadscope import LoadScopeScheduling

from tests.durations import Cost, recorded

_FIRST_WORKER = "gw0"
_UNMEASURED = Cost(wall=10, cpu=10)


class FileScheduling(LoadScopeScheduling):
    """Scheduling of xdist in which a file is one worker's, in the order of `next_file`.

    With --no-loadscope-reorder none is longer than others: a night's order is drawn, `tests/nightly.py`.
    """

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        self._costs = recorded()
        if not config.option.loadscopereorder:
            self._costs = {name: replace(cost, wall=_UNMEASURED.wall) for name, cost in self._costs.items()}

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _assign_work_unit(self, node: Any) -> None:
        file = next_file(self.workqueue, self._costs, starts_servers=node.gateway.id == _FIRST_WORKER)
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)


def next_file(files: Iterable[str], costs: Mapping[str, Cost], *, starts_servers: bool) -> str:
    """The file that a worker takes next: the longest of its kind, and of the other kind where none of its own is left.
    Of equally long ones it is the first.

    A JVM, a catalog or an object store takes seconds to start, and every worker that needs it has its own.
    """

    def order(file: str) -> tuple[bool, float]:
        cost = costs.get(file, _UNMEASURED)
        return cost.servers != starts_servers, -cost.wall

    return min(files, key=order)
