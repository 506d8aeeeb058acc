"""A build that missed the gate as the refresh before it did. The table's properties keep it, so that not each later
snapshot tries both.
"""

from dataclasses import dataclass

from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.binding.table_properties import set_property
from icepuffin.ops.table.summaries import finite_number, whole_number

VAIN_BUILD_PREFIX = "ann.vain-build."
"""Table properties that hold such builds: the index's name follows"""
_CHANGED = 0.1
"""Share of the rows that come or go before a build is tried again"""


@dataclass(frozen=True, slots=True)
class VainBuild:
    """A build in vain, and of what."""

    definition: str
    """`graph_id` of its definition"""
    rows: int
    """Live rows of the snapshot"""
    arriving: int
    """Rows of its files that the version of before lacks"""
    timestamp_ms: int
    """Time of the table's last change before it, milliseconds since the epoch"""
    recall: float
    """recall@10, the better of build and refresh"""

    def text(self) -> str:
        """Words, for the property."""
        return f"{self.definition} {self.rows} {self.arriving} {self.timestamp_ms} {self.recall:.5f}"

    @classmethod
    def parse(cls, text: str) -> "VainBuild | None":
        """The build in a property; None for a text that another release or a person wrote."""
        try:
            definition, *numbers, recall = text.split(" ")
            rows, arriving, timestamp_ms = map(whole_number, numbers)
            return cls(definition, rows, arriving, timestamp_ms, finite_number(recall))
        except ValueError:
            return None


def why_in_vain(table: Table, index: str, definition: str, target: float, rows: int, arriving: int) -> str:
    """Why a build in place of a refresh would miss the gate again, in words; empty where it may not: none was tried, or
    since then the definition has changed, the target was lowered, a tenth of the rows has come or gone, or a version
    was published.
    """
    build = VainBuild.parse(table.properties.get(VAIN_BUILD_PREFIX + index, ""))
    if build is None or build.definition != definition or build.recall >= target:
        return ""
    if max(abs(rows - build.rows), arriving - build.arriving) > _CHANGED * build.rows:
        return ""
    if any(version.timestamp_ms > build.timestamp_ms for version in index_versions(table, index)):
        return ""
    return (
        f"All rows were indexed anew in vain before, with recall@10 {build.recall:.4f}: that is tried again once a "
        "tenth of the rows has come or gone, or the definition has changed"
    )


def remember_vain_build(table: Table, index: str, build: VainBuild) -> None:
    """Raises BindingError where no commit succeeds, and what the catalog raises."""
    set_property(table, VAIN_BUILD_PREFIX + index, build.text())
