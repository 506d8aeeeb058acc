"""Settings: one TOML file, overridden from the environment, validated when it is loaded.

`load(path)` reads the file named by the argument, by `ICEPUFFIN_SETTINGS`, or `icepuffin.toml` in the current folder.
`ICEPUFFIN__SPARK__MASTER=local[4]` overrides `[spark] master`; `${NAME}` in a text value is taken from the environment,
which is where secrets belong. What each setting costs is written in `docs/settings.md`.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from icepuffin.assets.table_settings import SettingsModel, TableSettings
from icepuffin.ops.model import DRIVER_ONLY_ROWS, IN_PROCESS_MB, MAX_GRACE_HOURS
from icepuffin.ops.process.threads import thread_count
from icepuffin.orchestration.overrides import (
    SettingsError,
    WrittenNumber,
    flattened,
    named_by,
    overridden,
    variable_below,
)
from icepuffin.orchestration.setting_errors import problem

FILE_NAME = "icepuffin.toml"
PATH_VARIABLE = "ICEPUFFIN_SETTINGS"
_ADD_CATALOG = "set catalogs.<name> to the PyIceberg properties type, uri and warehouse"
_NAME_OF_THE_PAPER = "coordinator_ann_probe_threshold_mb"
"""Other name of `in_process_mb`"""
_SHOWN_PROPERTIES = frozenset({"type", "warehouse"})
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def _not_empty(folder: Any) -> Any:
    if folder == "":
        raise ValueError("is empty: name a folder, or leave it out")
    return folder


Folder = Annotated[Path, BeforeValidator(_not_empty)]
"""A path; an empty text, as of a variable that is not set, would be the current folder"""


class CatalogSettings(BaseModel):
    """PyIceberg catalog properties, passed on unchanged. Only `type` and `warehouse` are ever printed."""

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
        """What repr, str and Rich print: no property that may be secret."""
        printed = {key: value for key, value in self.properties.items() if key in _SHOWN_PROPERTIES}
        yield None, printed
        yield "not_shown", len(self.properties) - len(printed)


class SparkSettings(SettingsModel):
    """Spark, which does the heavy work."""

    master: str = "local[*]"
    remote: SecretStr | None = None
    """Address of a Spark Connect server, `;token=...` included."""
    conf: dict[str, SecretStr] = Field(default_factory=dict)
    driver_only_rows: int = Field(default=DRIVER_ONLY_ROWS, ge=0)
    in_process_mb: int = Field(default=IN_PROCESS_MB, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _by_the_name_of_the_paper(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or _NAME_OF_THE_PAPER not in value:
            return value
        if "in_process_mb" in value:
            raise ValueError(f"in_process_mb and {_NAME_OF_THE_PAPER} are the same setting: give one")
        return {"in_process_mb" if key == _NAME_OF_THE_PAPER else key: item for key, item in value.items()}

    @field_validator("conf", mode="before")
    @classmethod
    def _flat_conf(cls, value: Any) -> Any:
        return _texts(value) if isinstance(value, Mapping) else value


class ShardCacheSettings(SettingsModel):
    """The shard cache: its folder, its size on disk and in memory, how shards lie there, and rows for answers."""

    directory: Folder | None = None
    disk_mb: int = Field(default=20_480, ge=0)
    memory_mb: int = Field(default=2_048, ge=0)
    layout: Literal["auto", "fast", "compact"] = "auto"
    tail_mb: int = Field(default=512, ge=0)
    rows_mb: int = Field(default=4_096, ge=0)
    prefetch: Literal["background", "never"] = "background"


class GarbageSettings(SettingsModel):
    """How long garbage collection waits before it expires versions and deletes files."""

    garbage_grace_hours: float = Field(default=24.0, ge=0.0, le=MAX_GRACE_HOURS)
    dry_run: bool = False


class Settings(SettingsModel):
    """Everything that can be set. See `docs/settings.md`."""

    catalogs: dict[str, CatalogSettings]
    tables: dict[str, TableSettings] = Field(default_factory=dict)
    spark: SparkSettings = SparkSettings()
    threads: int = Field(default=0, ge=0)
    cache: ShardCacheSettings | None = None
    retention: GarbageSettings = GarbageSettings()
    dagster_home: Folder | None = None

    @model_validator(mode="after")
    def _catalogs_exist(self) -> Self:
        if not self.catalogs:
            raise ValueError(f"no catalog is set; {_ADD_CATALOG}")
        for key, table in self.tables.items():
            if table.catalog not in self.catalogs:
                names = ", ".join(sorted(self.catalogs))
                raise ValueError(
                    f"tables.{key}.catalog is '{table.catalog}', which is not among the catalogs set here: {names}"
                )
        return self

    @model_validator(mode="after")
    def _tables_once(self) -> Self:
        named: dict[tuple[str, str], str] = {}
        for key, table in self.tables.items():
            if (other := named.setdefault((table.catalog, table.name), key)) != key:
                raise ValueError(f"tables.{other} and tables.{key} are the same table: leave one of them out")
        return self

    @property
    def thread_count(self) -> int:
        """Threads of one process: as set, or one per core that it may use."""
        return thread_count(self.threads or None)


def find(path: Path | None = None, directory: Path | None = None) -> Path:
    """The file to read: `path`, else that of `directory`, else of `ICEPUFFIN_SETTINGS`, else of the current folder."""
    if path is not None:
        return path
    if directory is not None:
        return directory / FILE_NAME
    named = os.environ.get(PATH_VARIABLE)
    return Path(named) if named else Path.cwd() / FILE_NAME


def load(path: Path | None = None) -> Settings:
    """Read, complete from the environment, and validate. Raises SettingsError, which names where, key and remedy."""
    file = find(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise SettingsError(
            f"{file} does not exist: make it with `icepuffin init`, or name another with --settings or {PATH_VARIABLE}"
        ) from error
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}; name a file with --settings") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file} is no text in UTF-8, as TOML is; name a settings file with --settings") from error
    return parse(text, file)


def parse(text: str, file: Path) -> Settings:
    """Settings of a text. `file` is named in errors. Raises SettingsError, as `load`."""
    try:
        raw = tomllib.loads(text, parse_float=WrittenNumber)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{file} is not valid TOML: {error}") from error
    try:
        return Settings.model_validate(overridden(_substituted(raw, file, ()), os.environ, Settings))
    except ValidationError as error:
        raise SettingsError(
            _explain(file, raw, error)
        ) from None  # pydantic's own text repeats the values, which may be secret


def _substituted(value: Any, file: Path, key: tuple[str, ...]) -> Any:
    """Replace `${NAME}` in every text from the environment."""
    if isinstance(value, dict):
        return {name: _substituted(item, file, (*key, name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_substituted(item, file, key) for item in value]
    if not isinstance(value, str):
        return value

    def value_of(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ:
            raise SettingsError(
                f"{file}: {'.'.join(key)}: the environment variable {name} is not set; set it and start again"
            )
        return os.environ[name]

    return _VARIABLE.sub(value_of, value)


def _texts(value: Mapping[str, Any]) -> dict[str, str]:
    """Properties, each with the text that stands in the file."""
    absent = [key for key, entry in flattened(value) if entry is None]
    if absent:
        unset = (
            "`{{ env.X }}` is null where X is not set: set it in the environment, or in the project's `.env`; "
            "Dagster's error names X where `{{ env('X') }}` is written"
        )
        raise ValueError(f"{absent[0]} is null; it takes a text ({unset})")
    return {key: str(entry).lower() if isinstance(entry, bool) else str(entry) for key, entry in flattened(value)}


def _has_table(raw: Any, path: Sequence[str | int]) -> bool:
    """Whether the file has a table of settings at this path."""
    for part in path:
        raw = raw.get(part) if isinstance(raw, Mapping) else None
    return isinstance(raw, Mapping)


def _explain(file: Path, raw: Mapping[str, Any], error: ValidationError) -> str:
    """One line: the file or the environment variable, each key, what is wrong, what to do. Never the value."""
    problems: dict[str, list[str]] = {}
    for detail in error.errors(include_input=False, include_url=False):
        path, table = detail["loc"], detail["loc"][:-1]
        making = None if _has_table(raw, table) else variable_below(table, os.environ)
        if detail["type"] != "missing":
            text = problem(detail, Settings)
        elif making:
            text = (
                f"is missing; {file} has no {'.'.join(map(str, table))}: correct the variable's name, or set this too"
            )
        else:
            text = f"is missing; {'set it' if table else _ADD_CATALOG}"
        variable, key = named_by(path, os.environ) or making, ".".join(map(str, path))
        source = f"the environment variable {variable}" if variable else str(file)
        problems.setdefault(source, []).append(f"{key}: {text}" if key else text)
    return "; ".join(f"{source}: {'; '.join(texts)}" for source, texts in problems.items())
