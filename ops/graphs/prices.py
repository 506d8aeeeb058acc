"""What work costs, where prices are set."""

from dataclasses import dataclass

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Prices:
    """Of the machines that work, and of what is written; in one currency."""

    currency: str
    compute_hour: float = 0.0
    """An hour of everything that is busy while a version is made: driver and executors."""
    written_gib: float = 0.0

    def cost(self, *, seconds: float, bytes_written: int) -> float:
        return self.compute_hour * seconds / 3600 + self.written_gib * bytes_written / _GIB
