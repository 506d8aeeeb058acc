"""Messages on wrong settings: what the setting takes, in place of pydantic's own message on the value."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from icepuffin.orchestration.overrides import plain_type

_BOUNDS = {Ge: "of at least", Gt: "over", Le: "of at most", Lt: "under"}
_KINDS = {
    "bool": "true or false",
    "string": "a text",
    "tuple": "a list",
    "list": "a list",
    "dict": "a table of settings",
    "model": "a table of settings",
    "path": "a path",
}
"""Kind of a value, by the start of the type of pydantic's error"""


def problem(detail: ErrorDetails, model: type[BaseModel]) -> str:
    """What is wrong with the setting at `detail["loc"]` of `model`. Never the value, which may be secret."""
    kind, path = detail["type"], detail["loc"]
    if kind == "extra_forbidden":
        known = _fields(_walk(path[:-1], model)[0])
        alike = get_close_matches(str(path[-1]), known, n=1)
        return f"no such setting{f' (there is {alike[0]})' if alike else ''}; there are: {', '.join(known)}"
    if kind == "string_pattern_mismatch":
        return "has the wrong form: a table is namespace.table"  # the only text of a form
    if kind == "literal_error":
        return f"takes {detail['ctx']['expected']}"
    if kind == "value_error":
        return detail["msg"].removeprefix("Value error, ")
    _, field = _walk(path, model)
    if field is not None and (number := _number(field)):
        return f"takes {number}"
    named = _KINDS.get(kind.partition("_")[0])
    return f"takes {named}" if named else str(detail["msg"])


def _walk(path: Sequence[str | int], model: type[BaseModel]) -> tuple[Any, FieldInfo | None]:
    """Type and field at this path in the settings; no field for an entry of a table or a list."""
    kind: Any = model
    field: FieldInfo | None = None
    for part in path:
        if fields := _fields(kind):
            field = fields.get(str(part))
            kind = None if field is None else plain_type(field.annotation)
        else:
            field, kind = None, plain_type(get_args(kind)[1]) if get_origin(kind) in (dict, Mapping) else None
    return kind, field


def _fields(kind: Any) -> Mapping[str, FieldInfo]:
    return kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else {}


def _number(field: FieldInfo) -> str:
    """The numbers that a field takes, such as "a whole number from 4 to 512"; empty where it takes none."""
    kind = plain_type(field.annotation)
    if kind not in (int, float):
        return ""
    name = "a whole number" if kind is int else "a number"
    limits = {
        type(limit): getattr(limit, type(limit).__name__.lower()) for limit in field.metadata if type(limit) in _BOUNDS
    }
    if limits.keys() == {Ge, Le}:
        return f"{name} from {limits[Ge]:g} to {limits[Le]:g}"
    bounds = " and ".join(f"{_BOUNDS[limit]} {value:g}" for limit, value in limits.items())
    return f"{name} {bounds}".rstrip()
