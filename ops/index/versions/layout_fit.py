"""How well the layout of an index fits its rows: now, and when all shards were last built.

A refresh keeps codebook and shards. Rows of another model lie far from all centroids, and in few shards.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numba
    from icepuffin.ops.tasks.staged_blocks import StagedRows

MAX_UNEVEN = 3.0
"""Balance beyond which shards no longer fit, as a multiple of that of the build"""
MAX_APART = 1.5
"""Distance beyond which a codebook no longer fits, as a multiple of that of the build"""
STEP_APART = 1.05
"""Multiple from which on a codebook may not tell in which shards neighbors lie. Rows like those of the build stay below
it; once all rows are of another model it may be 1.2 alone
"""
MAX_ARRIVED = 0.1
"""Share of the rows that may come before searches of all shards are measured again"""


@dataclass(frozen=True, slots=True)
class LayoutFit:
    """How well a layout fits the rows. Distances are between prepared vectors, as the codebook has them."""

    balance: float = 1.0
    """Live rows of the largest shard that rows are routed to, as a multiple of their mean."""
    built_balance: float = 1.0
    """Balance when all shards were last built."""
    distance: float = 0.0
    """Mean distance of a row from the nearest centroid, as measured when it came."""
    built_distance: float = 0.0
    """Mean distance when all shards were last built."""
    kept_balance: float = 0.0
    """Balance at which the layout was last kept, since a build was tried in vain; 0 where none was."""
    arrived: float = 0.0
    """Rows that have come since searches of all shards were measured."""

    @classmethod
    def of_build(cls, rows: Sequence[int], scattered: Sequence["StagedRows"]) -> "LayoutFit":
        """The fit of a new layout. `rows`: live rows by shard."""
        now = cls().after(rows, 0, scattered)
        return cls(now.balance, now.balance, now.distance, now.distance)

    def after(self, rows: Sequence[int], staying: int, scattered: Sequence["StagedRows"]) -> "LayoutFit":
        """The fit once other rows have come. `rows`: live rows by shard; `staying`: rows of which this is the fit."""
        arrived = sum(count for staged in scattered for _, count in staged.live_rows)
        total = math.fsum(filter(math.isfinite, (one for staged in scattered for one in staged.distances)))
        mean = (self.distance * staying + total) / max(1, staying + arrived)
        balance = max(rows, default=0) * len(rows) / max(1, sum(rows))
        return replace(
            self, balance=_rounded(balance), distance=_rounded(mean), arrived=_rounded(self.arrived + arrived)
        )

    def outdates_recall(self, live_rows: int, arriving: int = 0) -> bool:
        """Whether searches of all shards are to be measured again. live_rows: those of all shards. `arriving`: of them,
        rows that come now and are not counted yet.
        """
        return self.arrived + arriving > MAX_ARRIVED * live_rows

    @property
    def imbalance(self) -> str:
        """Reason for which all shards are built anew, in words; empty where they need not be, or it was in vain."""
        return self._out_of_balance if self.balance > MAX_UNEVEN * self.kept_balance else ""

    @property
    def _out_of_balance(self) -> str:
        if self.balance > MAX_UNEVEN * self.built_balance:
            return (
                f"shards are out of balance: the largest has {self.balance:.1f} times as many rows as the mean, "
                f"{self.built_balance:.1f} when all were built"
            )
        return ""

    @property
    def steps_apart(self) -> int:
        """Times that the distance has grown by STEP_APART since the codebook was trained. From one on, what was
        measured then of the shards that queries probe holds no longer.
        """
        if not self.distance > self.built_distance > 0:
            return 0
        return int((math.log(self.distance) - math.log(self.built_distance)) / math.log(STEP_APART))

    @property
    def fault(self) -> str:
        """Reason for which the layout no longer fits, in words; empty where it does.

        A codebook that no longer fits is one, and no reason to build anew by itself: where clusters are tight, rows of
        a new one are as far from all centroids as those of another model. The gate finds what recall that costs.
        """
        if self._out_of_balance:
            return self._out_of_balance
        if self.distance > MAX_APART * self.built_distance > 0:
            return (
                f"the codebook no longer fits: rows lie {self.distance:.3g} from its centroids, "
                f"{self.built_distance:.3g} when it was trained"
            )
        return ""


def _rounded(value: float) -> float:
    """To six digits, so that how rows were divided among tasks does not show."""
    return float(f"{value:.6g}")
