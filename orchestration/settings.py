"""Settings: one TOML file, overridden from the environment, validated when it is loaded.

`load(path)` reads the file named by the argument, by `ICEPUFFIN_SETTINGS`, or `icepuffin.toml` in the current folder.
`ICEPUFFIN__SPARK__MASTER=local[4]` overrides `[spark] master`; `${NAME}` in a text value is taken from the environment,
which is where secrets belong. What each setting costs is written in `docs/settings.md`.
"""

import itertools
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from icepuffin.assets.spec import is_within, node, slug
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index.definition import KNOBS, DefinitionError, MetricName, VectorFormat, meeting, validate_name
from icepuffin.orchestration.overrides import OverrideError, Written, flattened, named_by, overridden

FILE_NAME = "icepuffin.toml"
PATH_VARIABLE = "ICEPUFFIN_SETTINGS"
_SHOWN_PROPERTIES = frozenset({"type", "warehouse"})
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def _cron(value: str) -> str:
    if value == "off":
        return value
    from dagster._utils.schedules import is_valid_cron_schedule  # noqa: PLC0415  most commands start without Dagster

    if len(value.split()) != _CRON_FIELDS or not is_valid_cron_schedule(value):
        raise ValueError(
            "is no schedule: write five cron fields (minute, hour, day of month, month, day of week) or off"
        )
    return value


_CRON_FIELDS = 5
Cron = Annotated[str, AfterValidator(_cron)]
"""Five fields: minute, hour, day of month, month, day of week, in UTC; or `off`."""


class SettingsError(IcepuffinError):
    """The settings file is missing, is no TOML, or a value cannot be used. Names the key, and the file or variable."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class CatalogSettings(BaseModel):
    """PyIceberg catalog properties, handed on unchanged. Only `type` and `warehouse` ever show."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True)
    __pydantic_extra__: dict[str, SecretStr] = Field(init=False)

    @model_validator(mode="before")
    @classmethod
    def _as_texts(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError("must be a table of PyIceberg catalog properties, such as type, uri and warehouse")  # noqa: TRY004
        return _texts(value)

    @property
    def properties(self) -> dict[str, str]:
        return {key: item.get_secret_value() for key, item in self.__pydantic_extra__.items()}

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Of repr, str and Rich's printer."""
        shown = {key: value for key, value in self.properties.items() if key in _SHOWN_PROPERTIES}
        yield None, shown
        yield "not_shown", len(self.properties) - len(shown)


class KeepSettings(_Model):
    """Which versions of an index stay beside the newest, and for how long."""

    versions: Literal["all", "tagged", "newest"] = "all"
    last: int | None = Field(default=None, ge=1)
    days: float | None = Field(default=None, gt=0.0)


def _knob(name: str) -> Any:
    """A knob of an index, with the default and the limits that its definition has."""
    knob = KNOBS[name]
    return Field(default=knob.default) if knob.choices else Field(default=knob.default, ge=knob.low, le=knob.high)


class IndexSettings(_Model):
    """One ANN index of a table. Named by its key in `[tables.<key>.indexes.<name>]`."""

    column: str
    metric: MetricName = _knob("metric")
    max_degree: int = _knob("max_degree")
    search_list: int = _knob("search_list")
    alpha: float = _knob("alpha")
    pq_m: int = _knob("pq_m")
    vectors: VectorFormat = _knob("vectors")
    shards: int | None = _knob("shards")
    seed: int = _knob("seed")
    target_recall: float = _knob("target_recall")
    rebuild_ratio: float = _knob("rebuild_ratio")
    max_deltas: int = _knob("max_deltas")
    delta_share: float = _knob("delta_share")
    keep: KeepSettings | None = None


class TableSettings(_Model):
    """One table that is kept up to date."""

    catalog: str
    name: str = Field(pattern=r"^[^.]+(\.[^.]+)+$")
    snapshots: Literal["every", "newest"] = "every"
    watched_refs: tuple[str, ...] = ("main",)
    theta_sketches: bool = True
    theta_columns: tuple[str, ...] | None = None
    indexes: dict[str, IndexSettings] = Field(default_factory=dict)
    indexes_from_table: bool = True
    keep: KeepSettings = KeepSettings()
    sensor_running: bool = False
    sensor_interval_seconds: int = Field(default=30, ge=1, le=86_400)
    runs_ahead: int = Field(default=5, ge=1, le=1000)
    nightly: Cron = "0 2 * * *"
    maintenance: Cron = "0 4 * * 0"
    schedules_running: bool = False
    max_runtime_seconds: int = Field(default=86_400, ge=60)
    retries: int = Field(default=2, ge=0, le=10)
    retry_delay_seconds: float = Field(default=30.0, ge=0.0)
    max_freshness_lag: int = Field(default=1, ge=0)
    max_freshness_minutes: float = Field(default=0.0, ge=0.0)

    @field_validator("indexes")
    @classmethod
    def _names(cls, value: dict[str, IndexSettings]) -> dict[str, IndexSettings]:
        for name in value:
            try:
                validate_name(name)
            except DefinitionError as error:
                raise ValueError(str(error)) from None
        if pair := meeting(value):
            raise ValueError(f"'{pair[0]}' and '{pair[1]}' would be one in Dagster: rename one of them")
        return value

    @field_validator("watched_refs")
    @classmethod
    def _refs(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        ours = [ref for ref in value if ref.startswith("ann_") or ref == "theta_sketches"]
        if ours:
            raise ValueError(f"'{ours[0]}' is a tag that icepuffin writes itself; watch branches and tags of your own")
        if not value:
            raise ValueError("at least one ref must be watched, usually 'main'")
        return value


class SparkSettings(_Model):
    """Where the heavy work runs."""

    master: str = "local[*]"
    remote: SecretStr | None = None
    """With `;token=...`"""
    conf: dict[str, SecretStr] = Field(default_factory=dict)
    driver_only_rows: int = Field(default=200_000, ge=0)
    in_process_mb: int = Field(default=100, ge=0)

    @field_validator("conf", mode="before")
    @classmethod
    def _flat_conf(cls, value: Any) -> Any:
        return _texts(value) if isinstance(value, Mapping) else value


class ShardCacheSettings(_Model):
    """Where readers keep shards ready, and how many bytes of them."""

    directory: Path | None = None
    disk_mb: int = Field(default=20_480, ge=0)
    memory_mb: int = Field(default=2_048, ge=0)


class RetentionSettings(_Model):
    """How careful the sweep is: of versions that the tables' `keep` lets go, and of files that nothing references."""

    garbage_grace_hours: float = Field(default=24.0, ge=0.0)
    dry_run: bool = False


class PriceSettings(_Model):
    """What work costs; plans and materialisations then tell money beside seconds."""

    currency: str = Field(default="EUR", pattern=r"^[A-Za-z]{3}$")
    compute_hour: float = Field(default=0.0, ge=0.0)
    written_gib: float = Field(default=0.0, ge=0.0)
    read_gib: float = Field(default=0.0, ge=0.0)


class Settings(_Model):
    """Everything that can be set. See `docs/settings.md`."""

    catalogs: dict[str, CatalogSettings]
    tables: dict[str, TableSettings] = Field(default_factory=dict)
    spark: SparkSettings = SparkSettings()
    threads: int = Field(default=0, ge=0)
    cache: ShardCacheSettings | None = None
    retention: RetentionSettings = RetentionSettings()
    prices: PriceSettings | None = None
    dagster_home: Path | None = None

    @model_validator(mode="after")
    def _known_catalogs(self) -> Self:
        if not self.catalogs:
            raise ValueError(
                "no catalog is set; add [catalogs.<name>] with the PyIceberg properties type, uri and warehouse"
            )
        for key, table in self.tables.items():
            if table.catalog not in self.catalogs:
                known = ", ".join(sorted(self.catalogs))
                raise ValueError(
                    f"tables.{key}.catalog is '{table.catalog}', which is not among the catalogs set here: {known}"
                )
        return self

    @model_validator(mode="after")
    def _names_apart(self) -> Self:
        named: dict[str, str] = {}
        for key, table in self.tables.items():
            name = slug(table.catalog, table.name)
            if (other := named.setdefault(name, key)) != key:
                raise ValueError(
                    f"tables.{other} and tables.{key} would both be {name} in Dagster, which takes letters, digits and "
                    "'_' alone: rename one of the tables or catalogs, or watch it from a settings file of its own"
                )
        nodes = {key: node(table.catalog, table.name) for key, table in self.tables.items()}
        for key, other in itertools.permutations(nodes, 2):
            if is_within(nodes[key], nodes[other]):
                raise ValueError(
                    f"tables.{key} has the name that Dagster gives to what is derived from tables.{other}: rename one "
                    "of the tables, or watch it from a settings file of its own"
                )
        return self

    @property
    def thread_count(self) -> int:
        """Threads of one process: what is set, else every core."""
        return self.threads or os.cpu_count() or 1


def find(path: Path | None = None, directory: Path | None = None) -> Path:
    """The file to read: `path`, else that of `directory`, else of `ICEPUFFIN_SETTINGS`, else of the current folder."""
    if path is not None:
        return path
    if directory is not None:
        return directory / FILE_NAME
    named = os.environ.get(PATH_VARIABLE)
    return Path(named) if named else Path.cwd() / FILE_NAME


def load(path: Path | None = None, directory: Path | None = None) -> Settings:
    """Read, complete from the environment, and validate. Raises SettingsError, which names where, key and remedy."""
    file = find(path, directory)
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"), parse_float=Written)
    except FileNotFoundError as error:
        raise SettingsError(
            f"{file} does not exist: make it (docs/settings.md shows one), name another with --settings or "
            f"{PATH_VARIABLE}, or run `icepuffin demo`"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} is not valid TOML: {error}") from error
    try:
        return Settings.model_validate(overridden(_filled_in(raw, file, ()), os.environ, Settings))
    except OverrideError as error:
        raise SettingsError(str(error)) from None
    except ValidationError as error:
        raise SettingsError(
            _explain(file, error)
        ) from None  # pydantic's own text repeats the values, which may be secret


def _filled_in(value: Any, file: Path, key: tuple[str, ...]) -> Any:
    """Replace `${NAME}` in every text from the environment."""
    if isinstance(value, dict):
        return {name: _filled_in(item, file, (*key, name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_filled_in(item, file, key) for item in value]
    if not isinstance(value, str):
        return value

    def found(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ:
            raise SettingsError(
                f"{file}: {'.'.join(key)}: the environment variable {name} is not set; set it and start again"
            )
        return os.environ[name]

    return _VARIABLE.sub(found, value)


def _texts(value: Mapping[str, Any]) -> dict[str, str]:
    """Properties, each as it was written."""
    absent = [key for key, item in flattened(value) if item is None]
    if absent:
        raise ValueError(f"{absent[0]} is null; it takes a text")
    return {key: str(item).lower() if isinstance(item, bool) else str(item) for key, item in flattened(value)}


def _explain(file: Path, error: ValidationError) -> str:
    """One line: the file or the environment variable, each key, what is wrong, what to do. Never the value."""
    problems: dict[str, list[str]] = {}
    for detail in error.errors(include_input=False, include_url=False):
        key = ".".join(str(part) for part in detail["loc"]) or "(file)"
        text = detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "extra_forbidden":
            text = "no such setting; see docs/settings.md for those there are"
        elif detail["type"] == "missing":
            text = "is missing; set it"
        elif "ctx" in detail and "pattern" in detail["ctx"]:
            text = "has the wrong form: a table is namespace.table"
        variable = named_by(detail["loc"], os.environ)
        source = f"the environment variable {variable}" if variable else str(file)
        problems.setdefault(source, []).append(f"{key}: {text}")
    return "; ".join(f"{source}: {'; '.join(found)}" for source, found in problems.items())
