"""The spec of one table: its settings, its indexes, and its names in Dagster. Holds no connection.

Only the properties that return Dagster's own types import Dagster: the command line reads specs without it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from icepuffin.assets.table_settings import TableSettings

if TYPE_CHECKING:
    import dagster as dg

    from icepuffin.ops.index.definition import IndexDefinition
    from icepuffin.ops.index.retention_policy import RetentionPolicy


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table that is kept up to date, and what is derived from it."""

    settings: TableSettings
    indexes: tuple["IndexDefinition", ...] = ()
    """Indexes of the settings, and those that the table's own properties define."""
    note: str = ""
    """A remark for the UI, such as why the table's properties could not be read."""

    @property
    def catalog(self) -> str:
        return self.settings.catalog

    @property
    def identifier(self) -> str:
        """`namespace.table`; the namespace may have several levels."""
        return self.settings.name

    @property
    def sensor_name(self) -> str:
        """The name under which Dagster stores the sensor's switch and cursor."""
        return f"watch_{self.slug}"

    @property
    def first_ref(self) -> str:
        """The watched ref whose head the indexes' tags follow."""
        return self.settings.watched_refs[0]

    @property
    def retention(self) -> "RetentionPolicy":
        """Which versions stay, unless `retentions` names the index."""
        return self.settings.keep.retention

    @property
    def retentions(self) -> Mapping[str, "RetentionPolicy"]:
        """Retention per index, for the indexes with a policy of their own."""
        return {name: item.keep.retention for name, item in self.settings.indexes.items() if item.keep is not None}

    @property
    def path(self) -> tuple[str, ...]:
        return (self.catalog, *self.identifier.split("."))

    @property
    def slug(self) -> str:
        """The table's name in ops, jobs, sensors and pools."""
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
        theta = (self.theta_key,) if self.settings.theta_sketches else ()
        return (*theta, *(self.index_key(index.name) for index in self.indexes))

    @property
    def pool(self) -> str:
        """The pool that lets one piece of work on the table run at a time."""
        return f"table_{self.slug}"

    @property
    def retry_policy(self) -> "dg.RetryPolicy":
        import dagster as dg  # noqa: PLC0415

        return dg.RetryPolicy(
            max_retries=self.settings.retries,
            delay=self.settings.retry_delay_seconds,
            backoff=dg.Backoff.EXPONENTIAL,
            jitter=dg.Jitter.PLUS_MINUS,
        )


def slug(catalog: str, identifier: str) -> str:
    """A name of letters, digits and `_`, which two different tables may share."""
    return re.sub(r"[^A-Za-z0-9]+", "_", f"{catalog}.{identifier}")


def is_within(node: str, other: str) -> bool:
    """Whether the table with the first node name would have the name of an asset derived from the second."""
    return node.startswith((f"{other}__theta_sketches", f"{other}__ann_index"))


def node(catalog: str, identifier: str) -> str:
    """The prefix of the names that Dagster gives to a table's assets. Two underscores separate the levels."""
    return "__".join(re.sub(r"[^A-Za-z0-9_]", "_", part) for part in (catalog, *identifier.split(".")))


def _key(*path: str) -> "dg.AssetKey":
    """An asset key, without the characters that Dagster refuses, such as spaces."""
    import dagster as dg  # noqa: PLC0415

    return dg.AssetKey([re.sub(r"[^A-Za-z0-9_.-]", "_", part) for part in path])
