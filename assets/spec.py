"""What the assets of one table are made from: names and policies, no connection.

Dagster is imported by those who ask for its keys and policies: the command line reads specs without.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from icepuffin.ops.index.retention import Retention

if TYPE_CHECKING:
    import dagster as dg

    from icepuffin.ops.index.definition import IndexDefinition


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table that is kept up to date, and what is derived from it."""

    catalog: str
    identifier: str
    """`namespace.table`; the namespace may have several levels."""
    indexes: tuple["IndexDefinition", ...] = ()
    theta_sketches: bool = True
    theta_columns: tuple[str, ...] | None = None
    """Columns that get sketches; None: by their types."""
    watched_refs: tuple[str, ...] = ("main",)
    retries: int = 2
    retry_delay_seconds: float = 30.0
    max_freshness_lag: int = 1
    """Data snapshots that the newest version may be behind before the freshness check warns..."""
    max_freshness_minutes: float = 0.0
    """... if the oldest of them is at least this old."""
    retention: Retention = field(default_factory=Retention)
    """Which versions stay; `retentions` says otherwise for some of the indexes."""
    retentions: Mapping[str, Retention] = field(default_factory=dict)
    note: str = ""
    """Something the UI should say about this table, such as why its properties could not be read."""

    @property
    def path(self) -> tuple[str, ...]:
        return (self.catalog, *self.identifier.split("."))

    @property
    def slug(self) -> str:
        """A name that Dagster takes for ops, jobs, sensors and pools."""
        return slug(self.catalog, self.identifier)

    @property
    def key(self) -> "dg.AssetKey":
        return _key(*self.path)

    @property
    def theta_key(self) -> "dg.AssetKey":
        return _key(*self.path, "theta_sketches")

    def index_key(self, index: str) -> "dg.AssetKey":
        return _key(*self.path, "ann_index", index)

    @property
    def derived_keys(self) -> tuple["dg.AssetKey", ...]:
        theta = (self.theta_key,) if self.theta_sketches else ()
        return (*theta, *(self.index_key(index.name) for index in self.indexes))

    @property
    def pool(self) -> str:
        """Work on one table is done one piece at a time."""
        return f"table_{self.slug}"

    @property
    def retry_policy(self) -> "dg.RetryPolicy":
        import dagster as dg  # noqa: PLC0415

        return dg.RetryPolicy(
            max_retries=self.retries,
            delay=self.retry_delay_seconds,
            backoff=dg.Backoff.EXPONENTIAL,
            jitter=dg.Jitter.PLUS_MINUS,
        )


def slug(catalog: str, identifier: str) -> str:
    """Letters, digits and `_` alone. Tables may be named so that two have one."""
    return re.sub(r"[^A-Za-z0-9]+", "_", f"{catalog}.{identifier}")


def is_within(node: str, other: str) -> bool:
    """Whether the table of the first name would be among the assets that are derived of the other's."""
    return node.startswith((f"{other}__theta_sketches", f"{other}__ann_index"))


def node(catalog: str, identifier: str) -> str:
    """What the names that Dagster makes of a table's assets begin with. Two underscores part the levels."""
    return "__".join(re.sub(r"[^A-Za-z0-9_]", "_", part) for part in (catalog, *identifier.split(".")))


def _key(*path: str) -> "dg.AssetKey":
    """Without characters, such as spaces, that Dagster refuses in names that it makes of keys."""
    import dagster as dg  # noqa: PLC0415

    return dg.AssetKey([re.sub(r"[^A-Za-z0-9_.-]", "_", part) for part in path])
