"""The statistics that a run is to make, as settings name them."""

from dataclasses import dataclass

ALL = "*"
"""In place of names of columns: all that a kind can take"""
Names = tuple[str, ...] | str | None
"""Names of columns, or `*`; None for those that have such statistics already"""


@dataclass(frozen=True, slots=True)
class RequestedStatistics:
    """The statistics that a table's settings name. By default those that it has are kept up."""

    ndv: tuple[str, ...] | None = None
    """Names of columns; None: by the rules of `choose_statistics`"""
    histogram: Names = None
    size: Names = None
    frequent: Names = None
    joint: tuple[tuple[str, ...], ...] | None = None
    partitions: bool = True
    """Whether a partitioned table has a file of partition statistics, too"""

    @property
    def keeps_any(self) -> bool:
        """Whether statistics other than NDVs are kept up that are not named."""
        return None in (self.histogram, self.size, self.frequent, self.joint)

    def number_of_others(self, columns: int) -> int:
        """Number of the statistics other than NDVs that are named, of a table of so many columns."""
        others = (self.histogram, self.size, self.frequent, self.joint)
        return sum(columns if names == ALL else len(names or ()) for names in others)

    def of(self, kind: str) -> tuple[tuple[str, ...], ...] | str | None:
        """The columns of each statistic of a kind, by its key in the settings; `*`, or None."""
        names: Names | tuple[tuple[str, ...], ...] = getattr(self, kind)
        if names is None or isinstance(names, str):
            return names
        return tuple((name,) if isinstance(name, str) else name for name in names)


KEPT_UP = RequestedStatistics()
"""The statistics that a table has already"""
