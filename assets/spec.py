"""The spec of one table: its settings, its indexes, and its names in Dagster. Holds no connection.

Only the properties that return Dagster's own types import Dagster: the command line reads specs without it.
"""

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from icepuffin.assets.table_settings import NearPairsSettings, TableSettings

if TYPE_CHECKING:
    import dagster as dg
    from pyiceberg.table import Table

    from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition
    from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy
    from icepuffin.ops.resources import Catalogs, Engine


@dataclass(frozen=True, slots=True)
class ResourceKeys:
    """Keys of the resources that assets, jobs, sensors and schedules use. Definitions with equal keys do not merge."""

    catalogs: str = "icepuffin_catalogs"
    engine: str = "icepuffin_engine"
    spark: str = ""
    """Key of the project's resource that has the engine's session; empty where the engine makes one."""

    @classmethod
    def prefixed(cls, name: str, spark: str) -> "ResourceKeys":
        """Keys of one set of definitions among others in a code location."""
        return cls(f"icepuffin_{name}_catalogs", f"icepuffin_{name}_engine", spark)

    def catalogs_of(self, context: Any) -> "Catalogs":
        """The catalogs, from the context of a step, a sensor or a schedule."""
        catalogs: Catalogs = getattr(context.resources, self.catalogs)
        return catalogs

    def engine_of(self, context: Any) -> "Engine":
        """The engine, from the context of a step."""
        engine: Engine = getattr(context.resources, self.engine)
        return engine


@dataclass(frozen=True, slots=True)
class AssetAttributes:
    """What a Dagster project may set of a table's assets; empty where icepuffin's own values hold."""

    key: tuple[str, ...] = ()
    """Key of the table's asset, under which the derived assets stand."""
    key_prefix: tuple[str, ...] = ()
    """First parts of the key, before those of catalog, namespace and table."""
    upstream: tuple[str, ...] = ()
    """Key of an asset of the project that writes the table, in place of an external asset of ours."""
    group: str = ""
    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    kinds: frozenset[str] = frozenset()
    """Kinds of the derived assets."""
    automation: "dg.AutomationCondition[dg.AssetKey] | None" = None
    """Condition under which Dagster requests runs of the derived assets, in place of the sensor."""
    partitions: str = ""
    """Name of the partitions definition."""
    execute: Callable[[Any, Callable[[], Any]], Any] = lambda _, materialize: materialize()
    """Function that materialises a derived asset, from the context of its step and what icepuffin does by itself"""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table that is kept up to date, and what is derived from it."""

    settings: TableSettings
    indexes: tuple["IndexDefinition", ...] = ()
    """Indexes of the settings, and those that the table's own properties define."""
    note: str = ""
    """A remark for the UI, such as why the table's properties could not be read."""
    mark: str = ""
    """End of the table's names in Dagster, where those of another table are the same without it."""
    attributes: AssetAttributes = AssetAttributes()
    resources: ResourceKeys = ResourceKeys()

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
    def label(self) -> str:
        """The table's name in partitions and tags of runs, which no other table has. Of two code locations with
        catalogs and tables of one name, the keys of the assets tell the tables apart.
        """
        attributes = self.attributes
        return "/".join((*(attributes.key or attributes.upstream or attributes.key_prefix), *self.path))

    @property
    def slug(self) -> str:
        """The table's name in ops, jobs, sensors and pools."""
        return slug(self.catalog, self.identifier) + self.mark

    @property
    def key(self) -> "dg.AssetKey":
        """The key of the table's own asset, whoever defines that."""
        return _verbatim(self.attributes.upstream or self._root)

    @property
    def theta_key(self) -> "dg.AssetKey":
        return _verbatim((*self._root, "theta_sketches"))

    def index_key(self, index: str) -> "dg.AssetKey":
        return _verbatim((*self._root, "ann_index", _part(index)))

    def near_pairs_key(self, index: str) -> "dg.AssetKey":
        return _verbatim((*self._root, "near_pairs", _part(index)))

    @property
    def near_pairs(self) -> Mapping[str, NearPairsSettings]:
        """Settings of the near pairs of indexes, by index."""
        indexes = self.settings.indexes
        return {it.name: kept for it in self.indexes if it.name in indexes and (kept := indexes[it.name].near_pairs)}

    @property
    def _root(self) -> tuple[str, ...]:
        """The key under which derived assets stand."""
        default = (*self.attributes.key_prefix, *map(_part, self.path[:-1]), _part(self.path[-1]) + self.mark)
        return self.attributes.key or self.attributes.upstream or default

    @property
    def group(self) -> str:
        return self.attributes.group or self.slug

    @property
    def is_recorded(self) -> bool:
        """Whether the sensor records snapshots as materialisations of the table: a project's asset has its own."""
        return not self.attributes.upstream

    def left_out(self, table: "Table") -> "dict[str, DefinitionError]":
        """Errors of the table's own indexes that this release does not understand and the spec lacks, by name."""
        from icepuffin.ops.index.definitions.ddl import refused_definitions  # noqa: PLC0415

        refused = refused_definitions(table) if self.settings.indexes_from_table else {}
        known = {index.name for index in self.indexes}
        return {name: error for name, error in refused.items() if name not in known}

    @property
    def derived_keys(self) -> tuple["dg.AssetKey", ...]:
        theta = (self.theta_key,) if self.settings.statistics.keeps_ndv else ()
        return (*theta, *(self.index_key(it.name) for it in self.indexes), *map(self.near_pairs_key, self.near_pairs))

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
    """A name of letters, digits and `_`, which two different tables may share: `a-b` and `a_b`. One of them has a mark
    behind it.
    """
    return _without(r"[^A-Za-z0-9]+", f"{catalog}.{identifier}")


def is_plain(identifier: str) -> bool:
    """Whether Dagster takes the parts of a table's name as they are."""
    return re.fullmatch(r"[A-Za-z0-9_.]*", identifier) is not None


def mark_of(catalog: str, identifier: str) -> str:
    """The end by which a table's names differ from those of any other table."""
    return _checksum(f"{catalog}.{identifier}")


def is_within(node: str, other: str) -> bool:
    """Whether the table with the first node name would have the name of an asset derived from the second."""
    return node.startswith(tuple(f"{other}__{kind}" for kind in ("theta_sketches", "ann_index", "near_pairs")))


def node(catalog: str, identifier: str) -> str:
    """The prefix of the names that Dagster gives to a table's assets. Two underscores separate the levels."""
    return "__".join(_without(r"[^A-Za-z0-9_]", part) for part in (catalog, *identifier.split(".")))


def _part(name: str) -> str:
    """A part of an asset key, without the characters that Dagster refuses, such as spaces."""
    return _without(r"[^A-Za-z0-9_.-]", name)


def _without(others: str, name: str) -> str:
    """The name with `_` for what Dagster refuses. Of one in another script nothing may be left: a checksum follows."""
    text = re.sub(others, "_", name)
    return text if name.isascii() else text + _checksum(name)


def _checksum(name: str) -> str:
    """The end by which a name differs from those that are the same without it."""
    return f"_{zlib.crc32(name.encode()):08x}"


def _verbatim(path: Sequence[str]) -> "dg.AssetKey":
    import dagster as dg  # noqa: PLC0415

    return dg.AssetKey(list(path))
