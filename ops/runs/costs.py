"""What runs cost in money, by the prices that the settings name."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from icepuffin.ops.index.planning.index_report import Estimate, IndexReport
    from icepuffin.ops.theta.theta_report import ThetaEstimate, ThetaReport

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class CostModel:
    """Costs of runs by the prices of compute and traffic, all in one currency."""

    currency: str
    compute_hour: float = 0.0
    """Price of an hour of all machines that are busy during a run: driver and executors."""
    written_gib: float = 0.0
    """Price of a GiB written to the store."""
    read_gib: float = 0.0
    """Price of a GiB read from data files and earlier versions."""

    def cost(self, *, seconds: float, bytes_read: int, bytes_written: int) -> float:
        """Cost of a run, in `currency`."""
        traffic = self.written_gib * bytes_written + self.read_gib * bytes_read
        return self.compute_hour * seconds / 3600 + traffic / _GIB

    def report_costs(self, report: "IndexReport | ThetaReport") -> dict[str, float]:
        """`cost/<currency>` of a run, with the estimated bytes read: executors do not count what they read."""
        bytes_read = report.estimate.bytes_read if report.estimate else 0
        cost = self.cost(seconds=report.seconds, bytes_read=bytes_read, bytes_written=report.bytes_written)
        return {f"cost/{self.currency}": cost}

    def estimate_cost(self, estimate: "Estimate | ThetaEstimate") -> float:
        """Cost of a run that has not begun."""
        return self.cost(seconds=estimate.seconds, bytes_read=estimate.bytes_read, bytes_written=estimate.bytes_written)
