"""Settings from the environment: `ICEPUFFIN__SPARK__MASTER=local[4]` is `[spark] master`, over the file's.

A variable's value is text, and stays text unless the setting is a list or a table: these are JSON. So a token that
consists of digits is not read as a number.
"""

import json
import types
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr

from icepuffin.ops.errors import ArgumentError

PREFIX = "ICEPUFFIN__"
_PACKAGE = "ICEPUFFIN_"
_VARIABLES = (
    "ICEPUFFIN_SETTINGS",
    "ICEPUFFIN_SHARD_CACHE",
    "ICEPUFFIN_SHARD_CACHE_DISK_MB",
    "ICEPUFFIN_SHARD_CACHE_LAYOUT",
    "ICEPUFFIN_SHARD_CACHE_PREFETCH",
    "ICEPUFFIN_SHARD_CACHE_MEMORY_MB",
    "ICEPUFFIN_SHARD_CACHE_ROWS_MB",
    "ICEPUFFIN_SHARD_CACHE_TAIL_MB",
)
"""Variables that are read here and are no settings"""
_ELSEWHERE = ("ICEPUFFIN_CACHE",)
"""Variables of the set-up that have the name of a section of the settings"""


class SettingsError(ArgumentError):
    """The settings file is missing, is no TOML, or a value cannot be used. Names the key, and the file or variable."""


class WrittenNumber(float):
    """A number with its text: where a setting takes text, 1.10 must not become 1.1, nor 1e5 become 100000.0."""

    text: str

    def __new__(cls, text: str) -> "WrittenNumber":
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text


def overridden(raw: Mapping[str, Any], environment: Mapping[str, str], model: type[BaseModel]) -> dict[str, Any]:
    """The settings of a file, overridden by those of the environment. `model` says which settings take text."""
    merged = dict(raw)
    _refuse_near_misses(raw, environment, model)
    for name in sorted(environment):
        if not name.upper().startswith(PREFIX):
            continue
        path = name[len(PREFIX) :].split("__")
        if path[0].lower() not in model.model_fields:
            valid = ", ".join(PREFIX + field.upper() for field in model.model_fields)
            raise SettingsError(f"the environment variable {name} names no setting; there are {valid}")
        merged = _overridden(merged, path, model, environment[name], name)
    return merged


def _refuse_near_misses(raw: Mapping[str, Any], environment: Mapping[str, str], model: type[BaseModel]) -> None:
    """Raise SettingsError for a variable that seems to be meant as a setting, or as one of `_VARIABLES`.

    Others may begin with ICEPUFFIN_ as well: Kubernetes makes ICEPUFFIN_SERVICE_HOST of a service's name.
    """
    settings = {"_".join(path).upper(): PREFIX + "__".join(path).upper() for path in _paths(raw, model)}
    for name in sorted(environment):
        upper = name.upper()
        is_read = name in _VARIABLES or upper in _ELSEWHERE
        if not upper.startswith(_PACKAGE) or upper.startswith(PREFIX) or is_read:
            continue
        rest = upper.removeprefix(_PACKAGE)
        setting = PREFIX + name[len(_PACKAGE) :] if "__" in rest else settings.get(rest)
        if setting is not None:
            raise SettingsError(f"the environment variable {name} names no setting: write {setting}, with __ each time")
        if alike := get_close_matches(upper, _VARIABLES, n=1, cutoff=0.9):
            raise SettingsError(f"the environment variable {name} is not read; correct it to {alike[0]}, or unset it")


def _paths(raw: Any, annotation: Any) -> Iterator[tuple[str, ...]]:
    """Paths of the settings and sections of a model; where names are free, those of the file."""
    annotation = plain_type(annotation)
    inner: dict[str, Any] = {}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        inner = {name: field.annotation for name, field in annotation.model_fields.items()}
    below = raw if isinstance(raw, Mapping) else {}
    if not inner:  # a table whose keys are free, or a value
        inner = dict.fromkeys(below, get_args(annotation)[1] if get_origin(annotation) in (dict, Mapping) else None)
    for name, annotation in inner.items():
        yield (name,)
        yield from ((name, *path) for path in _paths(below.get(name), annotation))


def named_by(setting: Sequence[str | int], environment: Mapping[str, str]) -> str | None:
    """The variable that set the value of this setting; None where no variable did."""
    for name in sorted(environment, reverse=True):  # the last one applied wins
        path = name[len(PREFIX) :].lower().split("__")
        is_prefix = name.upper().startswith(PREFIX) and path == [str(part).lower() for part in setting[: len(path)]]
        if is_prefix and (len(path) == len(setting) or _sets_value_at(environment[name], setting[len(path) :])):
            return name
    return None


def variable_below(setting: Sequence[str | int], environment: Mapping[str, str]) -> str | None:
    """A variable that sets anything below this setting; None where none does."""
    parts = [str(part).lower() for part in setting]
    for name in sorted(environment, reverse=True):
        path = name[len(PREFIX) :].lower().split("__")
        if name.upper().startswith(PREFIX) and path[: len(parts)] == parts:
            return name
    return None


def _sets_value_at(text: str, path: Sequence[str | int]) -> bool:
    """Whether a variable's value sets this path below its own. A text or a list sets everything below it."""
    try:
        value = json.loads(text)
    except ValueError:
        return True
    for part in path:
        if not isinstance(value, Mapping):
            return True
        if part not in value:
            return False
        value = value[str(part)]
    return True


def _overridden(raw: Any, path: list[str], annotation: Any, text: str, name: str) -> Any:
    """`raw` with the value of the variable at `path`, which may be empty."""
    is_text_or_list = {str, tuple} <= {get_origin(kind) or kind for kind in map(plain_type, _choices(annotation))}
    annotation = plain_type(annotation)
    fields = annotation.model_fields if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    named = get_args(annotation)[1] if get_origin(annotation) in (dict, Mapping) else None
    if not path:
        if is_text_or_list:
            return _json(text, name, tuple[str, ...]) if text.lstrip().startswith("[") else text
        value = text if fields is None and get_origin(annotation) is None else _json(text, name, annotation)
        return _merged(raw, value) if isinstance(raw, Mapping) and isinstance(value, Mapping) else value
    below = dict(raw) if isinstance(raw, Mapping) else {}
    if fields == {} or named in (str, SecretStr):  # properties: their names have dots, which TOML reads as tables
        flat = dict(flattened(below))
        return {**flat, _key(".".join(path), flat): text}
    if fields is None and named is None:
        setting = name.removesuffix("__".join(("", *path)))
        raise SettingsError(f"the environment variable {name} names no setting: {setting} has nothing below it")
    key = _key(path[0], fields or below)
    inner = named if fields is None else fields[key].annotation if key in fields else str
    return {**below, key: _overridden(below.get(key), path[1:], inner, text, name)}


def _key(part: str, existing: Mapping[str, Any]) -> str:
    """The key for a part of a variable's name: an existing one, whatever its case; else a new one."""
    if part in existing:
        return part
    alike = [key for key in existing if key.lower() == part.lower()]
    return alike[0] if alike else part.lower() if part.isupper() else part


def flattened(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Flat properties: TOML reads the key `s3.endpoint` as a table in a table."""
    pairs: list[tuple[str, Any]] = []
    for key, item in value.items():
        pairs += flattened(item, f"{prefix}{key}.") if isinstance(item, Mapping) else [(f"{prefix}{key}", item)]
    return pairs


def plain_type(annotation: Any) -> Any:
    """The type without None; a choice of texts counts as text."""
    if get_origin(annotation) in (Union, types.UnionType):
        return plain_type(next(item for item in get_args(annotation) if item is not type(None)))
    if get_origin(annotation) is Annotated:
        return plain_type(get_args(annotation)[0])
    return str if get_origin(annotation) is Literal else annotation


def _choices(annotation: Any) -> tuple[Any, ...]:
    """The types that a union is of; none of any other type."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else ()


def _json(text: str, name: str, annotation: Any) -> Any:
    try:
        return json.loads(text, parse_float=WrittenNumber)
    except ValueError:
        is_list = get_origin(annotation) in (list, tuple)
        form = 'a list, such as ["a", "b"]' if is_list else 'an object, such as {"key": "value"}'
        raise SettingsError(f"the environment variable {name} is not valid JSON: write {form}") from None


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(under[key], item) if isinstance(under.get(key), Mapping) and isinstance(item, Mapping) else item
        for key, item in over.items()
    }
    return {**under, **both}
