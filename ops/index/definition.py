"""What an index is: kept as table properties `ann.index.<name>.<knob>`, so that every reader of the table finds it.

Its knobs are told once, as fields of `IndexDefinition`: the command line, SQL, settings and table properties have their
names, defaults and limits from `KNOBS`.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args

from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, ListType

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.vamana import VamanaParams
from icepuffin.ops.catalog.blob_kind import index_tag
from icepuffin.ops.errors import IcepuffinError

MetricName = Literal["l2", "cosine", "ip"]
VectorFormat = Literal["none", "f32", "f16"]

PREFIX = "ann.index."
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]{0,63}")

T = TypeVar("T")


class DefinitionError(IcepuffinError):
    """Raised when an index definition is not valid, or does not fit its table."""

    retryable = False


@dataclass(frozen=True, slots=True)
class Knob:
    """What one knob of an index takes, and what it is for."""

    name: str
    default: int | float | str | None
    """None: chosen by the number of rows."""
    about: str
    choices: tuple[str, ...] = ()
    low: float = 0
    high: float = 1
    """Of numbers; both ends are taken."""

    @property
    def kind(self) -> type[int] | type[float] | type[str]:
        return int if self.default is None else type(self.default)

    @property
    def takes(self) -> str:
        """In words."""
        return ", ".join(self.choices) if self.choices else f"{self.low} to {self.high}"

    def parse(self, text: str) -> int | float | str:
        """The value that a text means. Raises DefinitionError where it is no number and should be one."""
        try:
            return text.lower() if self.choices else self.kind(text)
        except ValueError:
            raise DefinitionError(f"{self.name} is {text!r}; it takes {self.takes}") from None

    def check(self, value: Any) -> None:
        """Raises DefinitionError for a value that is not taken."""
        if value is None and self.default is None:
            return
        if not (value in self.choices if self.choices else self.low <= value <= self.high):
            raise DefinitionError(f"{self.name} is {value!r}; it takes {self.takes}")


def _knob(default: T, about: str, **limits: Any) -> T:
    """A field that is a knob; `limits` as `Knob` has them."""
    made: T = field(default=default, metadata={"default": default, "about": about, **limits})
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDefinition:
    """One index of one table. Raises DefinitionError where the name or a knob is not valid."""

    name: str
    column: str
    """Name of the vector column when the index was made; `field_id` is what counts afterwards."""
    field_id: int | None = None
    metric: str = _knob("cosine", "Which rows are near.", choices=get_args(MetricName))
    max_degree: int = _knob(64, "R: edges a node. More: larger, better recall.", low=4, high=512)
    search_list: int = _knob(
        100, "L of searches that name none, and of inserts. More: slower, better recall.", low=8, high=4096
    )
    alpha: float = _knob(1.2, "How long the edges are that pruning keeps.", low=1, high=3)
    pq_m: int = _knob(
        48, "Bytes of a vector's code in lean shards, lowered to a divisor of the dimensions.", low=1, high=1024
    )
    vectors: str = _knob(
        "f32", "What shards hold for exact ranking; none: lean, ranked from Parquet.", choices=get_args(VectorFormat)
    )
    shards: int | None = _knob(
        None, "Graphs, or more where one would be over 2 GiB. Left out: as few as the size allows.", low=1, high=4096
    )
    seed: int = _knob(0, "Same rows, definition and seed: same bytes.", low=0, high=2**31 - 1)
    target_recall: float = _knob(0.9, "recall@10 under which a version is not published.")
    rebuild_ratio: float = _knob(0.2, "Share of tombstones over which a shard is rebuilt.", low=0.01)
    max_deltas: int = _knob(
        4, "Small shards of new rows beside the others; 0: new rows are inserted into those.", high=64
    )
    delta_share: float = _knob(
        0.25, "Rows of deltas, as a share of the others', over which they are dealt out to those."
    )

    def __post_init__(self) -> None:
        validate_name(self.name)
        try:
            for name, knob in KNOBS.items():
                knob.check(getattr(self, name))
        except DefinitionError as error:
            raise DefinitionError(f"index {self.name}: {error}") from None

    @property
    def metric_value(self) -> Metric:
        return Metric.parse(self.metric)

    @property
    def params(self) -> VamanaParams:
        return VamanaParams(self.max_degree, self.search_list, self.alpha, self.seed)

    @property
    def tag(self) -> str:
        return index_tag(self.name)

    def to_json(self) -> str:
        """Canonical: equal definitions give equal text."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "IndexDefinition":
        try:
            return cls(**json.loads(text))
        except (TypeError, json.JSONDecodeError) as error:
            raise DefinitionError(f"not an index definition: {error}") from error

    def graph_identity(self) -> dict[str, Any]:
        """The part of the definition that graphs depend on; versions that differ in it share nothing."""
        skipped = ("name", "column", "target_recall", "rebuild_ratio", "max_deltas", "delta_share")
        return {key: value for key, value in asdict(self).items() if key not in skipped}

    def to_properties(self) -> dict[str, str]:
        """Table properties; knobs without a value are left out."""
        items = ((key, value) for key, value in asdict(self).items() if key != "name" and value is not None)
        return {f"{PREFIX}{self.name}.{key.replace('_', '-')}": str(value) for key, value in items}


KNOBS: Mapping[str, Knob] = {
    item.name: Knob(item.name, **item.metadata) for item in fields(IndexDefinition) if item.metadata
}
"""By name."""


def validate_name(name: str) -> None:
    """An index name becomes part of Iceberg tags and file names. Raises DefinitionError."""
    if not _NAME.fullmatch(name):
        raise DefinitionError(
            f"{name!r} cannot name an index: use 1 to 64 letters, digits, '_' and '.', starting with a letter or digit"
        )


CHECKS = ("freshness", "integrity")
"""Checks of an index that Dagster runs apart, each under the name of the index, `_` and its own."""


def meeting(names: Iterable[str]) -> tuple[str, str] | None:
    """Two names that are one in Dagster; None where there are no such two. They differ in '.' and '_' alone, or one is
    that of a check of the other.
    """
    seen: dict[str, str] = {}
    for name in names:
        plain = name.replace(".", "_")
        for taken in (plain, *(f"{plain}_{check}" for check in CHECKS)):
            if (other := seen.setdefault(taken, name)) != name:
                return other, name
    return None


def defined_by(key: str) -> str | None:
    """The index that a table property is about; None where it is about none. A name may hold dots, a knob may not."""
    return key.removeprefix(PREFIX).rpartition(".")[0] if key.startswith(PREFIX) else None


def from_properties(properties: Mapping[str, str]) -> tuple[IndexDefinition, ...]:
    """All definitions among a table's properties, by name. Raises DefinitionError for one that is broken."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in properties.items():
        name = defined_by(key)
        if name is None:
            continue
        option = key.rpartition(".")[2]
        knob = option.replace("-", "_")
        found.setdefault(name, {})[knob] = _parse(key, knob, value)
    missing = [name for name, items in found.items() if "column" not in items]
    if missing:
        raise DefinitionError(f"index {missing[0]}: table property {PREFIX}{missing[0]}.column is missing")
    return tuple(IndexDefinition(name=name, **items) for name, items in sorted(found.items()))


def _parse(key: str, knob: str, value: str) -> Any:
    if knob == "column":
        return value
    try:
        return int(value) if knob == "field_id" else KNOBS[knob].parse(value)
    except KeyError:
        names = ", ".join(name.replace("_", "-") for name in ("column", "field_id", *KNOBS))
        raise DefinitionError(f"table property {key!r} is no knob of an index; there are {names}") from None
    except (ValueError, DefinitionError) as error:
        raise DefinitionError(f"table property {key}: {error}") from None


def resolve_field(definition: IndexDefinition, schema: Schema, table: str) -> int:
    """The field id of the vector column in a snapshot's schema.

    Raises DefinitionError where the column was dropped, or is no list of float or double there.
    """
    field_id = definition.field_id
    if field_id is None:
        field = next((item for item in schema.fields if item.name == definition.column), None)
        if field is None:
            names = ", ".join(item.name for item in schema.fields)
            raise DefinitionError(f"{table} has no column {definition.column!r} at its top level; it has {names}")
        field_id = field.field_id
    found = next((item for item in schema.fields if item.field_id == field_id), None)
    if found is None:
        raise DefinitionError(
            f"{table}: column {definition.column!r} (field {field_id}) of index {definition.name} is not in this "
            "snapshot's schema: it was dropped, or not there yet. Drop the index, or take another snapshot"
        )
    kind = found.field_type
    if not isinstance(kind, ListType) or not isinstance(kind.element_type, FloatType | DoubleType):
        raise DefinitionError(f"{table}: column {found.name!r} is {kind}; an index needs list<float> or list<double>")
    return field_id
