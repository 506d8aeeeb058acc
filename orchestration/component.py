"""Components of Dagster: the tables of a code location, and the one that a project's `defs.yaml` names.

The code server reads the catalogs once, and Dagster hands the answer to the processes of its runs as the component's
state.
"""

from abc import abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import dagster as dg
from dagster.components import DefsStateConfig, DefsStateConfigArgs, ResolvedDefsStateConfig
from pydantic import BaseModel, ValidationError

from icepuffin.assets.spec import AssetAttributes, ResourceKeys, slug
from icepuffin.assets.table_settings import IndexSettings, StatisticsSettings, TableSettings
from icepuffin.ops.errors import IcepuffinError, require_type
from icepuffin.ops.resources import is_pattern
from icepuffin.orchestration.discovery import from_text, list_tables, to_text
from icepuffin.orchestration.engines import catalogs_of
from icepuffin.orchestration.factory import build
from icepuffin.orchestration.overrides import SettingsError
from icepuffin.orchestration.setting_errors import problem
from icepuffin.orchestration.settings import GarbageSettings, Settings, SparkSettings

_NO_PYTHON = "\0"
"""A character that no Python expression has."""
_ENTRY = "table"
"""Key of the component's only entry in the settings that it makes of its attributes."""
_ATTRIBUTES = ("catalog", "name", "snapshots", "sensor_running", "statistics", "indexes")
"""Settings of a table that the component has attributes for"""


TEMPLATE = {
    "catalog": {"name": "lake", "type": "sql", "uri": "{{ env.LAKE_URI }}"},
    "table": "search.docs",
    "indexes": {"embedding": {"column": "embedding", "metric": "cosine"}},
    "sensor_running": True,
}
"""The attributes of docs/dagster.md: a project changes names, and sets the variable."""


class TableScaffolder(dg.Scaffolder[Any]):
    """Writes a table with one index."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        dg.scaffold_component(request, TEMPLATE)


class TablesComponent(dg.StateBackedComponent):
    """Tables of catalogs. The state, read from the catalogs, is their names and the indexes in their properties."""

    _state = ""

    @property
    @abstractmethod
    def table_settings(self) -> Settings:
        """The tables, their catalogs, and the engine."""

    @property
    def asset_attributes(self) -> AssetAttributes:
        return AssetAttributes(execute=self.execute)

    @property
    def resource_keys(self) -> ResourceKeys:
        return ResourceKeys()

    def execute(
        self, context: dg.AssetExecutionContext, materialize: Callable[[], dg.MaterializeResult[Any]]
    ) -> dg.MaterializeResult[Any]:
        """Materialise a derived asset of one snapshot. A subclass may do something before and after `materialize`."""
        del context
        return materialize()

    def write_state_to_path(self, state_path: Path) -> None:
        """Read the catalogs. An error is kept in the state, or raised where the state outlives the code server."""
        settings = self.table_settings
        listings = list_tables(settings.tables, catalogs_of(settings))
        unknown = [listing.unknown for listing in listings.values()]
        unknown += [table.unknown for listing in listings.values() for table in listing.tables.values()]
        errors = list(filter(None, unknown))
        if errors and self.defs_state_config.management_type.value != "LEGACY_CODE_SERVER_SNAPSHOTS":
            raise IcepuffinError(f"the state of {self.defs_state_config.key} is not refreshed: {errors[0]}")
        self._state = to_text(listings)
        state_path.write_text(self._state, encoding="utf-8")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions. Dagster keeps no state for a process that it did not start, such as a script: the catalogs
        are queried then.
        """
        try:
            return super().build_defs(context)
        except KeyError as error:
            if self.defs_state_config.key not in str(error):
                raise
        return self.build_defs_from_state(context, None)

    def build_defs_from_state(self, context: dg.ComponentLoadContext, state_path: Path | None) -> dg.Definitions:
        del context
        text = state_path.read_text(encoding="utf-8") if state_path else self._state
        listings = from_text(text) if text else None
        return build(self.table_settings, listings, attributes=self.asset_attributes, resources=self.resource_keys)


class SettingsComponent(TablesComponent):
    """The tables of a settings file: the code location of `icepuffin ui` and `deploy/`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @property
    def table_settings(self) -> Settings:
        return self._settings

    @property
    def defs_state_config(self) -> DefsStateConfig:
        return DefsStateConfig.from_args(DefsStateConfigArgs.legacy_code_server_snapshots(), "icepuffin")


def _resolve_texts(context: dg.ResolutionContext, value: Any) -> Any:
    """Keep texts as texts: Dagster reads results of templates as Python, and makes a number of a password `1e5`."""
    if isinstance(value, Mapping):
        return {key: _resolve_texts(context, entry) for key, entry in value.items()}
    if not isinstance(value, str) or context.resolve_value(value) is None:
        return context.resolve_value(value)
    return str(context.resolve_value(_NO_PYTHON + value)).removeprefix(_NO_PYTHON)


def _several(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _names(settings: type[BaseModel], *, without: Container[str] = ()) -> str:
    return ", ".join(f"`{name}`" for name in settings.model_fields if name not in without)


def _about(description: str, *examples: Any) -> dg.Resolver:
    resolver: dg.Resolver = dg.Resolver.default(description=description, examples=list(examples))
    return resolver


def _texts(description: str, *examples: Any) -> dg.Resolver:
    """The resolver of an attribute whose values are texts."""
    return dg.Resolver(
        _resolve_texts, model_field_type=dict[str, Any], description=description, examples=list(examples)
    )


@dg.scaffold_with(TableScaffolder)
@dataclass(kw_only=True)
class IcepuffinTableComponent(TablesComponent, dg.Resolvable):
    """Theta sketches and vector indexes of an Iceberg table, or of all tables that match a pattern.

    A table gets an asset `theta_sketches` and an asset per index, partitioned by snapshot, with checks, a sensor, jobs
    and schedules. Indexes that the table's own properties define are assets, too. Write secrets as `{{ env.NAME }}`.

    Examples
    --------
    >>> component = icepuffin.IcepuffinTableComponent(
    ...     catalog={"name": "demo", "type": "sql", "uri": "sqlite:///demo-data/catalog.db"},
    ...     table="demo.packages",
    ...     indexes={"embedding": {"column": "embedding", "metric": "cosine"}},
    ... )
    >>> component.defs_state_config.key
    'icepuffin[demo/demo.packages]'
    """

    catalog: Annotated[
        Mapping[str, Any],
        _texts(
            "The catalog: its `name`, the first part of the assets' keys, and the properties that PyIceberg takes.",
            {"name": "lake", "type": "rest", "uri": "https://catalog.example.com"},
        ),
    ] = field(repr=False)
    table: Annotated[
        str,
        _about("The table, `namespace.name`. With `*` or `?` in the name: every table that matches.", "search.docs"),
    ]
    indexes: Annotated[
        Mapping[str, Any],
        _about(f"Vector indexes by name: {_names(IndexSettings)}.", TEMPLATE["indexes"]),
    ] = field(default_factory=dict)
    upstream: Annotated[
        dg.ResolvedAssetKey | None,
        _about("An asset of the project that writes the table; without it the table is an external asset.", "docs"),
    ] = None
    key: Annotated[
        dg.ResolvedAssetKey | None,
        _about("Key of the table's asset, and start of the derived keys; by default catalog, namespace, table."),
    ] = None
    key_prefix: Annotated[Sequence[str], _about("First parts of the assets' keys.", ["lake"])] = ()
    group: Annotated[str | None, _about("Group of the assets; by default one per table.")] = None
    owners: Annotated[Sequence[str], _about("Owners of the assets.", ["team:search"])] = ()
    tags: Annotated[Mapping[str, str], _texts("Tags of the assets.")] = field(default_factory=dict)
    kinds: Annotated[Sequence[str], _about("Kinds of the derived assets.")] = ()
    automation: Annotated[
        dg.AutomationCondition[dg.AssetKey] | None,
        dg.Resolver.default(
            model_field_type=str | None,
            description="Condition under which Dagster requests the runs of new snapshots, in place of the sensor.",
            examples=["{{ dg.AutomationCondition.on_missing() }}"],
        ),
    ] = None
    partitions: Annotated[str | None, _about("Name of the partitions definition of the table's snapshots.")] = None
    snapshots: Annotated[Literal["every", "newest"], _about("Which snapshots get a version.")] = "every"
    sensor_running: Annotated[bool, _about("Whether the sensor runs from the start.")] = False
    statistics: Annotated[
        Mapping[str, Any],
        _about(
            f"Statistics of columns, and what of them may drift: {_names(StatisticsSettings)}.",
            {"ndv": ["id", "name"]},
            {"histogram": ["price"], "joint": [["country", "city"]], "drift": {"price": 0.1}},
        ),
    ] = field(default_factory=dict)
    settings: Annotated[
        Mapping[str, Any],
        _about(f"Other settings of the table: {_names(TableSettings, without=_ATTRIBUTES)}.", {"runs_ahead": 2}),
    ] = field(default_factory=dict)
    spark: Annotated[
        Mapping[str, Any],
        _texts(f"Settings of Spark: {_names(SparkSettings)}.", {"master": "spark://spark:7077"}),
    ] = field(default_factory=dict, repr=False)
    spark_resource: Annotated[
        str | None,
        _about("Key of a `PySparkResource` of the project, whose session is used in place of one of ours.", "pyspark"),
    ] = None
    threads: Annotated[int, _about("Threads of one process; 0 is one per core.")] = 0
    retention: Annotated[Mapping[str, Any], _about(f"Of garbage collection: {_names(GarbageSettings)}.")] = field(
        default_factory=dict
    )
    defs_state: ResolvedDefsStateConfig = field(default_factory=DefsStateConfigArgs.legacy_code_server_snapshots)

    def __post_init__(self) -> None:
        if is_pattern(self.table) and (self.key or self.upstream or self.partitions):
            raise SettingsError(
                f"{self._name}: key, upstream and partitions are of one table, and {self.table} may match several: "
                "use key_prefix, or a component per table"
            )
        self._settings = self._build_settings()
        self._require_attributes()

    def _require_attributes(self) -> None:
        """Refuse what Dagster takes of no asset. In the definitions of a table it would count as a fault of that table,
        of which the name alone is shown then: the project would load without its indexes.
        """
        attributes = self.asset_attributes
        try:
            dg.asset(
                key=[*(attributes.key or attributes.upstream or attributes.key_prefix), "theta_sketches"],
                owners=attributes.owners,
                tags=attributes.tags,
                kinds=set(attributes.kinds),
                group_name=attributes.group or None,
                automation_condition=attributes.automation,
            )(lambda: None)
        except Exception as error:  # Dagster's own checks raise an error that has no public name
            raise SettingsError(f"{self._name}: {error}") from None

    def _build_settings(self) -> Settings:
        properties = dict(self.catalog)
        name = properties.pop("name", None)
        if not isinstance(name, str) or not name:
            raise SettingsError(f"the catalog of {self.table} has no name: add one, it is the first part of asset keys")
        table = {
            "catalog": name,
            "name": self.table,
            "snapshots": self.snapshots,
            "sensor_running": self.sensor_running,
            "statistics": self.statistics,
            "indexes": self.indexes,
        }
        if twice := sorted(table.keys() & self.settings.keys()):
            raise SettingsError(
                f"{self._name}: settings has {', '.join(twice)}, which the component has attributes for: set those"
            )
        require_type(self.spark_resource, str | None, "spark_resource takes the key of a resource", "write its key")
        if self.spark_resource and (other := sorted({"master", "remote", "conf"} & self.spark.keys())):
            raise SettingsError(
                f"{self._name}: spark has {', '.join(other)}, and the session is that of spark_resource: set its config"
            )
        table |= self.settings
        document = {
            "catalogs": {name: properties},
            "tables": {_ENTRY: table},
            "spark": self.spark,
            "threads": self.threads,
            "retention": self.retention,
        }
        try:
            return Settings.model_validate(document)
        except ValidationError as error:
            raise SettingsError(f"{self._name}: {_problems(error)}") from None  # pydantic's own text has the values

    @property
    def _name(self) -> str:
        return f"icepuffin[{self.catalog.get('name', '')}/{self.table}]"

    @property
    def table_settings(self) -> Settings:
        return self._settings

    @property
    def asset_attributes(self) -> AssetAttributes:
        return AssetAttributes(
            key=tuple(self.key.path) if self.key else (),
            key_prefix=_several(self.key_prefix),
            upstream=tuple(self.upstream.path) if self.upstream else (),
            group=self.group or "",
            owners=_several(self.owners),
            tags=dict(self.tags),
            kinds=frozenset(_several(self.kinds)),
            automation=self.automation,
            partitions=self.partitions or "",
            execute=self.execute,
        )

    @property
    def resource_keys(self) -> ResourceKeys:
        return ResourceKeys.prefixed(slug(str(self.catalog["name"]), self.table), self.spark_resource or "")

    @property
    def defs_state_config(self) -> DefsStateConfig:
        return DefsStateConfig.from_args(self.defs_state, self._name)

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        return dg.ComponentTypeSpec(
            tags=["iceberg", "puffin", "vector search"],
            produces=["asset", "asset_check", "job", "resource", "schedule", "sensor"],
        )


IcepuffinTableComponent.__module__ = "icepuffin"  # the name by which projects refer to it


def _problems(error: ValidationError) -> str:
    """Each wrong attribute and what is wrong with it; never the value, which may be secret."""
    lines = []
    for detail in error.errors(include_input=False, include_url=False):
        path = detail["loc"]
        path = path[2:] if path[:1] == ("tables",) else ("catalog", *path[2:]) if path[:1] == ("catalogs",) else path
        lines.append(": ".join(filter(None, (".".join(map(str, path)), problem(detail, Settings)))))
    return "; ".join(lines)


def build_defs(catalog: Mapping[str, Any], table: str, **attributes: Any) -> dg.Definitions:
    """Dagster definitions of an Iceberg table, or of all tables that match a pattern, to merge with a project's own.

    Assets, checks, jobs, a sensor and schedules per table. There is no executor, and the keys of the two resources
    begin with `icepuffin_` and name the table. Runs of one table take turns, whatever `dagster.yaml` has. The catalog
    is queried once per table, by the code server.

    Parameters
    ----------
    catalog : mapping
        `name`, which is the first part of the assets' keys, and the properties that PyIceberg takes. Secrets in it
        reach neither Dagster's events nor its pages.
    table : str
        `namespace.table`. With `*` or `?` in the last part: every table of the namespace that matches. An index is then
        made for the tables that have its column.
    attributes : optional
        The other attributes of `IcepuffinTableComponent`, by name (docs/dagster.md lists them). `upstream` may be an
        AssetKey, a text with slashes, an AssetsDefinition or an AssetSpec, and so may `key`.

    Returns
    -------
    dagster.Definitions
        Definitions to give to `dagster.Definitions.merge`.

    Raises
    ------
    SettingsError
        A value cannot be used; the message names it.

    Examples
    --------
    >>> definitions = icepuffin.build_defs(
    ...     {"name": "demo", "type": "sql", "uri": "sqlite:///demo-data/catalog.db"},
    ...     "demo.packages",
    ...     indexes={"embedding": {"column": "embedding", "metric": "cosine"}},
    ... )
    >>> [sensor.name for sensor in definitions.sensors]
    ['watch_demo_demo_packages']
    """
    properties = 'write {"name": "demo", "type": "sql", "uri": "sqlite:///catalog.db"}'
    require_type(catalog, Mapping, "build_defs takes a mapping of catalog properties", properties)
    require_type(table, str, "build_defs takes the name of a table", 'write "namespace.table"')
    keys: dict[str, Any] = {name: _asset_key(attributes[name]) for name in ("upstream", "key") if name in attributes}
    attributes |= {"catalog": catalog, "table": table, **keys}
    return dg.build_defs_for_component(IcepuffinTableComponent(**attributes))


def _asset_key(asset: Any) -> dg.AssetKey | None:
    """The key of an asset, or of a text with slashes."""
    if asset is None:
        return None
    return dg.AssetKey.from_user_string(asset) if isinstance(asset, str) else dg.AssetDep(asset).asset_key
