"""What an index is: kept as table properties `ann.index.<name>.<knob>`, so that every reader of the table finds it."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, ListType

from ann_kernels.metric import Metric
from ann_kernels.vamana import VamanaParams
from ops.errors import IcepuffinError

PREFIX = "ann.index."
VECTOR_FORMATS = ("none", "f32", "f16")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]{0,63}")


class DefinitionError(IcepuffinError):
    """Raised when an index definition is not valid, or does not fit its table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDefinition:
    """One index of one table."""

    name: str
    column: str
    """Name of the vector column when the index was made; `field_id` is what counts afterwards."""
    field_id: int | None = None
    metric: str = "cosine"
    """`l2`, `cosine` or `ip`."""
    max_degree: int = 64
    search_list: int = 100
    alpha: float = 1.2
    pq_m: int = 48
    """Bytes a vector in lean shards (`vectors = "none"`), lowered to a divisor of the dimensions."""
    vectors: str = "f32"
    """What shards hold for exact ranking: `none` (lean, ranked from Parquet), `f16` or `f32`."""
    shards: int | None = None
    """None: by the number of rows."""
    seed: int = 0
    target_recall: float = 0.9
    """recall@10 under which a version is not published."""
    rebuild_ratio: float = 0.2
    """Share of tombstones over which a shard is rebuilt."""
    max_deltas: int = 4
    """Small shards of new rows that may stand beside the others; 0: new rows are inserted into those."""
    delta_share: float = 0.25
    """Rows of deltas, as a share of the others', over which they are dealt out to those."""

    def __post_init__(self) -> None:
        validate_name(self.name)
        if self.vectors not in VECTOR_FORMATS:
            raise DefinitionError(f"index {self.name}: vectors is {self.vectors!r}, not one of {VECTOR_FORMATS}")
        if self.shards is not None and self.shards < 1:
            raise DefinitionError(f"index {self.name}: shards is {self.shards}; it must be at least 1")
        if not 0 <= self.target_recall <= 1 or not 0 < self.rebuild_ratio <= 1 or self.pq_m < 1:
            raise DefinitionError(f"index {self.name}: target_recall, rebuild_ratio or pq_m is out of range: {self}")
        if self.max_deltas < 0 or not 0 <= self.delta_share <= 1:
            raise DefinitionError(f"index {self.name}: max_deltas or delta_share is out of range: {self}")
        try:
            _ = self.metric_value, self.params
        except ValueError as error:
            raise DefinitionError(f"index {self.name}: {error}") from error

    @property
    def metric_value(self) -> Metric:
        return Metric.parse(self.metric)

    @property
    def params(self) -> VamanaParams:
        return VamanaParams(self.max_degree, self.search_list, self.alpha, self.seed)

    @property
    def tag(self) -> str:
        return f"ann_{self.name}"

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


def validate_name(name: str) -> None:
    """An index name becomes part of Iceberg tags and file names. Raises DefinitionError."""
    if not _NAME.fullmatch(name):
        raise DefinitionError(
            f"{name!r} cannot name an index: use 1 to 64 letters, digits, '_' and '.', starting with a letter or digit"
        )


def from_properties(properties: Mapping[str, str]) -> tuple[IndexDefinition, ...]:
    """All definitions among a table's properties, by name. Raises DefinitionError for one that is broken."""
    knobs = {field.name.replace("_", "-"): field for field in fields(IndexDefinition)}
    found: dict[str, dict[str, Any]] = {}
    for key, value in properties.items():
        if not key.startswith(PREFIX):
            continue
        name, _, knob = key.removeprefix(PREFIX).rpartition(".")
        if knob not in knobs or not name:
            raise DefinitionError(f"table property {key!r} is no knob of an index; there are {sorted(knobs)}")
        found.setdefault(name, {})[knob.replace("-", "_")] = _parse(key, knobs[knob].type, value)
    missing = [name for name, items in found.items() if "column" not in items]
    if missing:
        raise DefinitionError(f"index {missing[0]}: table property {PREFIX}{missing[0]}.column is missing")
    return tuple(IndexDefinition(name=name, **items) for name, items in sorted(found.items()))


def _parse(key: str, kind: Any, value: str) -> Any:
    try:
        if "int" in str(kind):
            return int(value)
        return float(value) if "float" in str(kind) else value
    except ValueError as error:
        raise DefinitionError(f"table property {key} is {value!r}, not a number") from error


def resolve_field(definition: IndexDefinition, schema: Schema, table: str) -> int:
    """The field id of the vector column in a snapshot's schema.

    Raises DefinitionError where the column was dropped, or is no list of float or double there.
    """
    field_id = definition.field_id
    if field_id is None:
        field = next((item for item in schema.fields if item.name == definition.column), None)
        if field is None:
            names = ", ".join(item.name for item in schema.fields)
            raise DefinitionError(f"{table} has no column {definition.column!r}; it has {names}")
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
