"""Settings of one table and of its indexes: what `[tables.<key>]` in `icepuffin.toml` takes.

What each setting costs is written in `docs/settings.md`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    field_validator,
    model_validator,
)

from icepuffin.ops.index.definitions.index_definition import (
    INDEX_PARAMETERS,
    DefinitionError,
    IndexParameter,
    find_name_clash,
    validate_name,
)
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy, RetentionScope
from icepuffin.ops.theta.requested_statistics import RequestedStatistics

_CRON_FIELDS = 5
_TABLE_NAME = r"^[^.]+(\.[^.]+)+$"


class SettingsModel(BaseModel):
    """Frozen, without unknown keys; an error does not repeat the value, which may be secret."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _cron(value: str) -> str:
    if value == "off":
        return value
    import dagster as dg  # noqa: PLC0415  most commands start without Dagster

    try:
        if len(value.split()) == _CRON_FIELDS:
            dg.ScheduleDefinition(name="cron", job_name="cron", cron_schedule=value)
            return value
    except dg.DagsterInvalidDefinitionError:
        pass
    raise ValueError("is no schedule: write five cron fields (minute, hour, day of month, month, day of week) or off")


Cron = Annotated[str, AfterValidator(_cron)]
"""Five fields in UTC (minute, hour, day of month, month, day of week), or `off`."""


class KeepSettings(SettingsModel):
    """Which versions of an index stay beside the newest, and for how long."""

    versions: Literal["all", "tagged", "newest"] = "all"
    last: int | None = Field(default=None, ge=1)
    days: float | None = Field(default=None, gt=0.0)

    @property
    def retention(self) -> RetentionPolicy:
        return RetentionPolicy(RetentionScope(self.versions), self.last, self.days)


def _columns(value: Any) -> Any:
    names = isinstance(value, list | tuple) and value and all(isinstance(name, str) for name in value)
    if value in ("*", "off") or names:
        return value
    raise ValueError('takes "*", "off", or a list of names of columns')


StatisticsColumns = Annotated[str | tuple[str, ...], BeforeValidator(_columns)]
"""Columns that have statistics of one kind: `*` for those that the kind chooses, `off` for none, or names."""


def _tuples(value: Any) -> Any:
    lists = isinstance(value, list | tuple) and value and all(isinstance(names, list | tuple) for names in value)
    if value == "off" or (lists and all(len({*names}) == len(names) > 1 for names in value)):
        return value
    raise ValueError('takes "off", or a list of lists of two or more names of columns')


class StatisticsSettings(SettingsModel):
    """Statistics that are kept of a table's columns: a key for each kind."""

    ndv: StatisticsColumns = "*"
    histogram: StatisticsColumns = "off"
    size: StatisticsColumns = "off"
    frequent: StatisticsColumns = "off"
    joint: Annotated[Literal["off"] | tuple[tuple[str, ...], ...], BeforeValidator(_tuples)] = "off"
    partitions: bool = True
    drift: dict[str, Annotated[float, Field(gt=0, strict=True)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_ndv(self) -> "StatisticsSettings":
        others = [kind for kind in _OTHER_KINDS if getattr(self, kind) != "off"] + ["drift"] * bool(self.drift)
        if others and not self.keeps_ndv:
            raise ValueError(f'{others[0]} needs ndv of one column at least, whose entry names the file: ndv = ["id"]')
        return self

    @property
    def keeps_ndv(self) -> bool:
        return self.ndv != "off"

    @property
    def requested(self) -> RequestedStatistics:
        """The statistics that a run is to make."""
        others = {kind: () if (names := getattr(self, kind)) == "off" else names for kind in _OTHER_KINDS}
        return RequestedStatistics(
            None if isinstance(self.ndv, str) else self.ndv, **others, partitions=self.partitions
        )


_OTHER_KINDS = ("histogram", "size", "frequent", "joint")


def _one_of(parameter: IndexParameter) -> Callable[[int], int]:
    def checked(value: int) -> int:
        if value not in parameter.choices:
            raise ValueError(f"takes {parameter.takes}")
        return value

    return checked


def _field(parameter: IndexParameter) -> tuple[Any, Any]:
    """(type, field) of one index parameter, with the default and the limits that its definition has."""
    if parameter.choices and parameter.value_type is str:
        return Literal[parameter.choices], Field(default=parameter.default)
    if parameter.choices:  # a Literal of numbers would refuse them as texts, which variables of the environment are
        return Annotated[parameter.value_type, AfterValidator(_one_of(parameter))], Field(default=parameter.default)
    field_type = parameter.value_type if parameter.default is not None else parameter.value_type | None
    return field_type, Field(default=parameter.default, ge=parameter.low, le=parameter.high)


_FIELDS: Any = {name: _field(parameter) for name, parameter in INDEX_PARAMETERS.items()}
_IndexParameters: Any = create_model("_IndexParameters", __base__=SettingsModel, **_FIELDS)
"""A field per index parameter: names, defaults and limits are written once, in the index definition."""


class NearPairsSettings(SettingsModel):
    """Pairs of near rows of an index, which an asset writes to a table of their own."""

    table: str = Field(pattern=_TABLE_NAME)
    within: float = Field(gt=0.0)
    columns: tuple[str, ...] = Field(min_length=1)
    limit: int = Field(default=1_000_000, ge=1)


class IndexSettings(_IndexParameters):
    """One ANN index of a table. Named by its key in `[tables.<key>.indexes.<name>]`."""

    column: str
    filters: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    keep: KeepSettings | None = None
    near_pairs: NearPairsSettings | None = None


RUN_NUMBERS = ("rows", "bytes", "new_rows", "shards", "tasks", "memory_mb")
"""Numbers of a run that tags of the settings may name in braces."""
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
HIDDEN_TAGS = ".dagster/icepuffin."
"""Prefix of tags that Dagster's pages do not show, as eight of them make each run of a list 250 pixels high"""
_OWN_TAGS = ("icepuffin/", ".dagster/", "dagster/max_runtime")


def has_numbers(value: Any) -> bool:
    """Whether a tag's value names numbers of a run."""
    return any(_PLACEHOLDER.search(text) for text in _texts_within(value))


def with_numbers(value: Any, numbers: Mapping[str, int]) -> Any:
    """A tag's value with the numbers of a run in place of their names in braces."""
    if isinstance(value, Mapping):
        return {key: with_numbers(entry, numbers) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [with_numbers(entry, numbers) for entry in value]
    return _PLACEHOLDER.sub(lambda name: str(numbers[name[1]]), value) if isinstance(value, str) else value


def _texts_within(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_within(entry)


class TableSettings(SettingsModel):
    """One table that is kept up to date."""

    catalog: str
    name: str = Field(pattern=_TABLE_NAME)
    snapshots: Literal["every", "newest"] = "every"
    watched_refs: tuple[str, ...] = ("main",)
    statistics: StatisticsSettings = StatisticsSettings()
    indexes: dict[str, IndexSettings] = Field(default_factory=dict)
    indexes_from_table: bool = True
    keep: KeepSettings = KeepSettings()
    sensor_running: bool = False
    sensor_interval_seconds: int = Field(default=30, ge=1, le=86_400)
    runs_ahead: int = Field(default=5, ge=1, le=1000)
    nightly: Cron = "0 2 * * *"
    maintenance: Cron = "0 4 * * 0"
    schedules_running: bool = False
    recall_reports: str | None = None
    recall_check: Cron = "0 * * * *"
    max_runtime_seconds: int = Field(default=86_400, ge=60)
    run_tags: dict[str, Any] = Field(default_factory=dict)
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
        if pair := find_name_clash(value):
            raise ValueError(f"'{pair[0]}' and '{pair[1]}' would be one in Dagster: rename one of them")
        return value

    @field_validator("recall_reports")
    @classmethod
    def _folder(cls, value: str | None) -> str | None:
        if value is not None:
            from icepuffin.ops.recall.recall_reports import require_absolute  # noqa: PLC0415  slow, and seldom needed
            from icepuffin.ops.storage import StorageError  # noqa: PLC0415

            try:
                require_absolute(value)
            except StorageError as error:
                raise ValueError(str(error)) from None
        return value

    @field_validator("run_tags")
    @classmethod
    def _tags(cls, value: dict[str, Any]) -> dict[str, Any]:
        ours = [key for key in value if key.startswith(_OWN_TAGS)]
        if ours:
            raise ValueError(f"'{ours[0]}' is a tag that icepuffin writes itself; max_runtime_seconds sets the runtime")
        names = {name for text in _texts_within(value) for name in _PLACEHOLDER.findall(text)}
        if wrong := sorted(names - {*RUN_NUMBERS}):
            listed = ", ".join(f"{{{name}}}" for name in RUN_NUMBERS)
            raise ValueError(f"{{{wrong[0]}}} is no number of a run; there are {listed}")
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
