"""What work costs, where prices are set."""

from dataclasses import dataclass
from typing import Protocol

_GIB = 1 << 30


class Expected(Protocol):
    """An estimate, of an index version or of sketches."""

    @property
    def seconds(self) -> float: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def bytes_written(self) -> int: ...


class Report(Protocol):
    """What was made, beside the estimate if there was one."""

    @property
    def seconds(self) -> float: ...
    @property
    def bytes_written(self) -> int: ...
    @property
    def estimate(self) -> Expected | None: ...


@dataclass(frozen=True, slots=True)
class Prices:
    """Of the machines that work, and of what is read and written; in one currency."""

    currency: str
    compute_hour: float = 0.0
    """An hour of everything that is busy while a version is made: driver and executors."""
    written_gib: float = 0.0
    read_gib: float = 0.0
    """Of data files and of earlier versions: what a store or a network charges for bytes that leave it."""

    def cost(self, *, seconds: float, bytes_read: int, bytes_written: int) -> float:
        moved = self.written_gib * bytes_written + self.read_gib * bytes_read
        return self.compute_hour * seconds / 3600 + moved / _GIB

    def told(self, report: Report) -> dict[str, float]:
        """`cost/<currency>` of what was made; and, where it was estimated, of what was expected.

        Bytes read are the expected ones in both: nobody counts them while executors read.
        """
        expected = report.estimate
        read = expected.bytes_read if expected else 0
        cost = self.cost(seconds=report.seconds, bytes_read=read, bytes_written=report.bytes_written)
        costs = {f"cost/{self.currency}": cost}
        if expected is not None:
            costs[f"cost/{self.currency} estimated"] = self.of(expected)
        return costs

    def of(self, expected: Expected) -> float:
        """What an estimate comes to."""
        return self.cost(seconds=expected.seconds, bytes_read=expected.bytes_read, bytes_written=expected.bytes_written)
