"""How Trino, Presto and Spark plan a query: the order of its joins, and the rows that they expect."""

import contextlib
import json
import math
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from pyiceberg.table import Table

from tests.interop.trino_server import TrinoServer

T = TypeVar("T")
LONG_SECONDS = 10
TABLES = "lake.shop"
"""The name that the tables' namespace has in both engines"""


class Plan(NamedTuple):
    """What an engine expects of a query; a number is NaN where it has no estimate."""

    order: str
    """Tables in the order in which they are joined; what is joined before it is joined to others, in brackets"""
    rows: float
    """Rows of all tables joined"""
    groups: float
    joins: str
    """How the joins are carried out, where that depends on estimates"""


class Run(NamedTuple):
    """What carrying a query out took; a number is NaN where the engine does not tell it."""

    joined_rows: float
    """Rows that come out of the joins, all together: what an order of joins is good or bad by"""
    cpu_seconds: float
    seconds: float


class Engine(Protocol):
    """An engine that has the tables as `TABLES`."""

    name: str

    def see(self, tables: Iterable[Table]) -> None:
        """Show the engine the tables as they are now, where it does not see them by itself."""

    def rows(self, text: str) -> list[list[Any]]:
        """The rows that a statement gives."""

    def plan(self, text: str) -> Plan:
        """How the engine would carry out a query of joins and one grouping."""

    def run(self, text: str, times: int) -> tuple[Run, list[list[Any]]]:
        """(medians of so many runs, after one that does not count; the answer). A long first run is the only one."""


class Trino:
    """Its optimiser chooses the order of joins where it has estimates of all of them."""

    table_name = re.compile(r"\.(\w+)\$data")
    described_by = "descriptor"

    def __init__(self, server: TrinoServer) -> None:
        self._server = server
        ((version,),) = server.sql("SELECT node_version FROM system.runtime.nodes")
        self.name = f"{type(self).__name__} {version}"

    def see(self, tables: Iterable[Table]) -> None:
        """As `Engine` has it: nothing to do."""

    def rows(self, text: str) -> list[list[Any]]:
        """As `Engine` has it."""
        return self._server.sql(text)

    def plan(self, text: str) -> Plan:
        """As `Engine` has it. Its estimates are of the logical plan."""
        ((found,),) = self.rows(f"EXPLAIN (TYPE LOGICAL, FORMAT JSON) {text}")
        nodes = tuple(self._below(json.loads(found)))
        groups = next(node for node in nodes if node["name"].startswith("Aggregate"))
        join = next(node for node in nodes if self._is_join(node))
        rows, grouped = (float(node["estimates"][0]["outputRowCount"]) for node in (join, groups))
        return Plan(self._order(join), rows, grouped, "")

    def run(self, text: str, times: int) -> tuple[Run, list[list[Any]]]:
        """As `Engine` has it. The server's own counts of rows and of CPU time."""
        cpu = []

        def once() -> list[list[Any]]:
            found = self.rows(text)
            cpu.append(self._server.statistics["cpuTimeMillis"] / 1e3)
            return found

        seconds, answer = timed(once, times)
        ((report,),) = self.rows(f"EXPLAIN ANALYZE {text}")
        joins = re.findall(r"Join\[.*\n(?:.*\n)*?.*, Output: (\d+) rows", report)
        return Run(sum(map(int, joins)), statistics.median(cpu[-len(seconds) :]), statistics.median(seconds)), answer

    def _below(self, node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield node
        for child in node["children"]:
            yield from self._below(child)

    @staticmethod
    def _is_join(node: dict[str, Any]) -> bool:
        return node["name"].endswith("Join") and len(node["children"]) == 2

    def _order(self, node: dict[str, Any]) -> str:
        if not node["children"]:
            return str(self.table_name.findall(str(node[self.described_by]))[0])
        return joined([self._order(child) for child in node["children"]])


class Presto(Trino):
    """As `Trino`. It has no REST catalog in this release: tables are registered, under the same names."""

    table_name = re.compile(r"connectorHandle='(\w+)\$data")
    described_by = "identifier"

    def see(self, tables: Iterable[Table]) -> None:
        """As `Engine` has it."""
        with contextlib.suppress(AssertionError):  # it is there
            self.rows(f"CREATE SCHEMA {TABLES}")
        for table in tables:
            schema, name = table.name()[-2:]
            with contextlib.suppress(AssertionError):  # it is not there
                self.rows(f"CALL lake.system.unregister_table('{schema}', '{name}')")
            file = table.metadata_location.rsplit("/", 1)[1]
            self.rows(f"CALL lake.system.register_table('{schema}', '{name}', '{table.location()}', '{file}')")


class Spark:
    """With its cost-based optimiser, and with joins ordered by cost: both are off by default."""

    SETTINGS = {  # noqa: RUF012
        "spark.sql.cbo.enabled": "true",
        "spark.sql.cbo.joinReorder.enabled": "true",
        "spark.sql.iceberg.report-column-stats": "true",
        "spark.sql.codegen.wholeStage": "true",  # the tests' session has it off
    }

    def __init__(self, session: Any) -> None:
        for key, value in self.SETTINGS.items():
            session.conf.set(key, value)
        self._session = session
        self.name = f"Spark {session.version}"

    def see(self, tables: Iterable[Table]) -> None:
        """As `Engine` has it: nothing to do."""

    def rows(self, text: str) -> list[list[Any]]:
        """As `Engine` has it."""
        return [list(row) for row in self._session.sql(text).collect()]

    def plan(self, text: str) -> Plan:
        """As `Engine` has it. Its estimates are of the optimised plan."""
        execution = self._session.sql(text)._jdf.queryExecution()  # noqa: SLF001
        nodes = tuple(self._below(execution.optimizedPlan()))
        groups = next(node for node in nodes if node.nodeName() == "Aggregate")
        join = next(node for node in nodes if node.nodeName() == "Join")
        physical = execution.executedPlan().toString()
        kinds = {"broadcast": "BroadcastHashJoin", "by sorting": "SortMergeJoin"}
        counts = {kind: physical.count(name) for kind, name in kinds.items()}
        joins = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        return Plan(self._order(join), self._row_count(join), self._row_count(groups), joins)

    def run(self, text: str, times: int) -> tuple[Run, list[list[Any]]]:
        """As `Engine` has it."""
        seconds, answer = timed(lambda: self.rows(text), times)
        return Run(math.nan, math.nan, statistics.median(seconds)), answer

    def _below(self, node: Any) -> Iterator[Any]:
        yield node
        for child in self._children(node):
            yield from self._below(child)

    @staticmethod
    def _children(node: Any) -> list[Any]:
        children = node.children()
        return [children.apply(place) for place in range(children.size())]

    @staticmethod
    def _row_count(node: Any) -> float:
        count = node.stats().rowCount()
        return float(str(count.get())) if count.isDefined() else math.nan

    def _order(self, node: Any) -> str:
        children = self._children(node)
        if not children:
            return str(node.relation().table().name()).rsplit(".", 1)[1]
        return joined([self._order(child) for child in children])


def timed(once: Callable[[], T], times: int) -> tuple[list[float], T]:
    """(seconds of so many runs after the first; what that gave). Where it was long it is the only one."""
    seconds: list[float] = []
    for number in range(times + 1):
        started = time.perf_counter()
        answer = once()
        seconds.append(time.perf_counter() - started)
        if number == 0:
            first = answer
            if seconds[0] > LONG_SECONDS:
                return seconds, first
    return seconds[1:], first


def joined(orders: Sequence[str]) -> str:
    """The order of a join of two inputs, or of one input."""
    first, *others = orders
    return " ".join([first, *(f"({order})" if " " in order else order for order in others)])
