"""The definition of an index: its column and the parameters that it is built with.

It is kept in the table's properties, as `ann.index.<name>.<parameter>`. Index parameters are declared once, as fields
of `IndexDefinition`. The command line, SQL, settings and table properties take their names, defaults and limits from
`INDEX_PARAMETERS`.
"""

import ast
import enum
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from icepuffin.ann_kernels.codes.code_sizes import ROTATED_BITS
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.errors import ArgumentError, require_type
from icepuffin.ops.presentation import Presentation
from icepuffin.ops.rows.analyzers import ANALYZERS
from icepuffin.ops.rows.element_types import ELEMENT_TYPES, OF_BITS, OF_COLUMN
from icepuffin.ops.table.blob_kind import SKETCHES_TAG, index_tag
from icepuffin.ops.table.json_texts import is_text, parse_json

if TYPE_CHECKING:
    from icepuffin.ann_kernels.graphs.vamana import VamanaParams

VectorFormat = Literal["none", "rq4", "rq5", "rq8", "f16", "f32"]
CellCodes = Literal["none", "sq4", "sq8"]
Method = Literal["diskann", "centroid"]
METHODS: tuple[str, ...] = get_args(Method)
BlobNames = Literal["flockdb", "community"]
OWN_NAMES = "flockdb"
"""Value of `blob_names` by which files are written in every release"""

PREFIX = "ann.index."
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]{0,63}")

T = TypeVar("T")


class DefinitionError(ArgumentError):
    """Raised when an index definition is not valid, or does not fit its table."""


class LaterDefinitionError(DefinitionError):
    """Raised when a version's definition has a parameter, or a value of one, that this release does not know."""


@dataclass(frozen=True, slots=True)
class IndexParameter:
    """One parameter that an index is built with: its default, its limits, and what it is for."""

    name: str
    default: int | float | str | None
    """Default value; None where the number of rows decides."""
    about: str
    """One line of help."""
    choices: tuple[str, ...] | tuple[int, ...] = ()
    """All valid values; empty where there are limits."""
    low: float = 0
    """Smallest valid number."""
    high: float = 1
    """Largest valid number."""

    @property
    def value_type(self) -> type[int] | type[float] | type[str]:
        return int if self.default is None else type(self.default)

    @property
    def takes(self) -> str:
        """The valid values, in words."""
        return ", ".join(map(str, self.choices)) if self.choices else f"{self.low} to {self.high}"

    def parse(self, text: str) -> int | float | str:
        """Convert a text. Raises DefinitionError where a number is expected and the text is none."""
        try:
            return text.lower() if self.value_type is str else self.value_type(text)
        except ValueError:
            raise DefinitionError(f"{self.name} is {text!r}; it takes {self.takes}") from None

    def check(self, value: Any) -> None:
        """Raises DefinitionError for a value that is not valid."""
        if value is None and self.default is None:
            return
        kind = Integral if self.value_type is int else Real
        if self.value_type is not str and (isinstance(value, bool) or not isinstance(value, kind)):
            raise DefinitionError(f"{self.name} is {value!r}; it takes {self.takes}")
        if not (value in self.choices if self.choices else self.low <= value <= self.high):
            raise DefinitionError(f"{self.name} is {value!r}; it takes {self.takes}")


def _parameter(default: T, about: str, **limits: Any) -> T:
    """A field that is an index parameter; `limits` are further fields of `IndexParameter`."""
    text_or_number = default.value if isinstance(default, enum.Enum) else default
    parameter: T = field(default=default, metadata={"default": text_or_number, "about": about, **limits})
    return parameter


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IndexDefinition(Presentation):
    """What an index is: its name, its column, and the parameters that it is built with.

    The settings page of the documentation says what each parameter costs, and which values it takes.

    Parameters
    ----------
    name : str
        Letters, digits, '_' and '.'; the tag becomes `ann_<name>`.
    column : str
        The vector column: a list of float or double, or of integers; or bytes, with `element_type`.
    field_id : int, optional
        The column's id in the schema, which survives its renaming. `create_index` sets it.
    filters : sequence of str
        Columns whose values versions keep, so that conditions on them read no data file. Default: none.
    filter_ids : sequence of int, optional
        Field ids of `filters`. `create_index` sets them.
    include : sequence of str
        Columns whose values versions store, so that the rows of an answer have them without a read of data files.
        Default: none.
    include_ids : sequence of int, optional
        Field ids of `include`. `create_index` sets them.
    text : sequence of str
        Columns of texts whose words versions have, for searches by words. Default: none.
    text_ids : sequence of int, optional
        Field ids of `text`. `create_index` sets them.
    analyzer : "en", "none", "ar", "da", "de", "es", "fi", "fr", "hu", "it", "nl", "no", "pt", "ro", "ru", "sv", "tr"
        Language whose stems words of text columns are compared by; none: words as they are. Default: en.
    element_type : "column", "f32", "f16", "i8", "u8", "bit"
        Numbers in a column of bytes, fixed[N] or binary; column: it is a list, and has the type. Default: column.
    metric : "l2", "cosine", "ip", "hamming"
        How distances are measured; hamming is for elements of one bit. Default: cosine.
    method : "diskann", "centroid"
        What versions hold: graphs over the vectors, or balls around those of each data file alone. Default: diskann.
    max_degree : int
        R: edges per node, at most. More: larger, better recall. Default: 64.
    search_list : int
        L of inserts, and of searches that set none. More: slower, better recall. Default: 100.
    alpha : float
        Pruning keeps longer edges where it is higher: fewer hops, more edges. Default: 1.2.
    pq_m : int
        Bytes of a vector's code in lean shards, lowered to a divisor of the dimensions. Default: 48.
    pq_nbits : 4, 8
        Bits of each part of a code; with 4 a codebook has a sixteenth of the size, and twice the parts. Default: 8.
    vectors : "none", "rq4", "rq5", "rq8", "f16", "f32"
        What shards hold to rank by: vectors, or codes of so many bits; none: lean, ranked from Parquet. Default: f32.
    cells : "none", "sq4", "sq8"
        Codes in small cells, which a process that has no shard yet reads alone: its first answer takes few bytes.
        Default: none.
    shards : int
        Graphs; more where one would exceed 2 GiB without its vectors. Default: by the size.
    seed : int
        Same rows, definition and seed: same bytes. Default: 0.
    target_recall : float
        Mean recall@10 under which a version is not published. Default: 0.9.
    rebuild_ratio : float
        Share of tombstones over which a shard is rebuilt. Default: 0.2.
    max_deltas : int
        Most delta shards. 0: new rows are inserted into the other shards. Default: 4.
    delta_share : float
        Most rows in deltas, as a share of the other shards' rows; beyond it they are distributed over these. Default:
        0.25.
    build_anew_rows : int
        Rows up to which a refresh builds the whole index anew by itself, where it no longer fits the rows. Default:
        10000000.
    blob_names : "flockdb", "community"
        Names that blob types have in files: those of the paper, or the community's. Default: flockdb.

    Raises
    ------
    DefinitionError
        The name or a parameter is not valid.

    Examples
    --------
    >>> icepuffin.IndexDefinition(name="embedding", column="embedding", metric="l2", target_recall=0.95).tag
    'ann_embedding'
    """

    name: str
    column: str
    """Name of the vector column when the index was made; `field_id` is what counts afterwards."""
    field_id: int | None = None
    filters: tuple[str, ...] = ()
    """Names of the columns for conditions when the index was made; `filter_ids` are what counts afterwards"""
    filter_ids: tuple[int, ...] | None = None
    include: tuple[str, ...] = ()
    """Names of the included columns when the index was made; `include_ids` are what counts afterwards"""
    include_ids: tuple[int, ...] | None = None
    text: tuple[str, ...] = ()
    """Names of the columns of texts when the index was made; `text_ids` are what counts afterwards"""
    text_ids: tuple[int, ...] | None = None
    analyzer: str = _parameter(
        "en",
        "Language whose stems words of text columns are compared by; none: words as they are.",
        choices=ANALYZERS,
    )
    element_type: str = _parameter(
        OF_COLUMN,
        "Numbers in a column of bytes, fixed[N] or binary; column: it is a list, and has the type.",
        choices=ELEMENT_TYPES,
    )
    """What the bytes of the vector column are: elements one after the other, little-endian"""
    metric: Metric = _parameter(  # noqa: RUF009  it makes a field
        Metric.COSINE,
        "How distances are measured; hamming is for elements of one bit.",
        choices=tuple(metric.value for metric in Metric),
    )
    """Metric of searches; a text such as "l2" becomes a `Metric`"""
    method: str = _parameter(
        "diskann",
        "What versions hold: graphs over the vectors, or balls around those of each data file alone.",
        choices=METHODS,
    )
    max_degree: int = _parameter(64, "R: edges per node, at most. More: larger, better recall.", low=4, high=512)
    search_list: int = _parameter(
        100, "L of inserts, and of searches that set none. More: slower, better recall.", low=8, high=4096
    )
    alpha: float = _parameter(
        1.2, "Pruning keeps longer edges where it is higher: fewer hops, more edges.", low=1, high=3
    )
    pq_m: int = _parameter(
        48, "Bytes of a vector's code in lean shards, lowered to a divisor of the dimensions.", low=1, high=1024
    )
    pq_nbits: int = _parameter(
        8,
        "Bits of each part of a code; with 4 a codebook has a sixteenth of the size, and twice the parts.",
        choices=(4, 8),
    )
    vectors: str = _parameter(
        "f32",
        "What shards hold to rank by: vectors, or codes of so many bits; none: lean, ranked from Parquet.",
        choices=get_args(VectorFormat),
    )
    cells: str = _parameter(
        "none",
        "Codes in small cells, which a process that has no shard yet reads alone: its first answer takes few bytes.",
        choices=get_args(CellCodes),
    )
    shards: int | None = _parameter(
        None, "Graphs; more where one would exceed 2 GiB without its vectors. Left out: by the size.", low=1, high=4096
    )
    seed: int = _parameter(0, "Same rows, definition and seed: same bytes.", low=0, high=2**31 - 1)
    target_recall: float = _parameter(0.9, "Mean recall@10 under which a version is not published.")
    rebuild_ratio: float = _parameter(0.2, "Share of tombstones over which a shard is rebuilt.", low=0.01)
    max_deltas: int = _parameter(4, "Most delta shards. 0: new rows are inserted into the other shards.", high=64)
    delta_share: float = _parameter(
        0.25,
        "Most rows in deltas, as a share of the other shards' rows; beyond it they are distributed over these.",
    )
    build_anew_rows: int = _parameter(
        10_000_000,
        "Rows up to which a refresh builds the whole index anew by itself, where it no longer fits the rows.",
        high=2**31 - 1,
    )
    blob_names: str = _parameter(
        OWN_NAMES,
        "Names that blob types have in files: those of the paper, or the community's.",
        choices=get_args(BlobNames),
    )

    def headline(self) -> str:
        """Name, column, metric, and the other parameters that are not the default."""
        shown = (item for item in fields(self) if not item.name.endswith(("_id", "_ids")))
        named = {item.name: getattr(self, item.name) for item in shown if getattr(self, item.name) != item.default}
        return ", ".join(f"{name}={value!r}" for name, value in {**named, "metric": self.metric.value}.items())

    def fields(self) -> dict[str, object]:
        """The parameters that have a value, lists as texts."""
        return {
            name: ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
            for name, value in self._written().items()
            if value not in (None, (), [])
        }

    def __post_init__(self) -> None:
        require_type(self.name, str, "an index has a name", 'write IndexDefinition(name="i", column="embedding")')
        require_type(self.column, str, "an index has a column", 'write IndexDefinition(name="i", column="embedding")')
        validate_name(self.name)
        for names_of, ids_of in COLUMN_LISTS.items():
            names, ids = checked_columns(getattr(self, names_of), names_of, self.name), getattr(self, ids_of)
            object.__setattr__(self, names_of, names)
            if ids is not None:
                object.__setattr__(self, ids_of, tuple(map(int, ids)) or None)
            if ids and len(ids) != len(names):
                raise DefinitionError(f"index {self.name}: {ids_of} has {len(ids)} ids for {names}")
        try:
            for name, parameter in INDEX_PARAMETERS.items():
                parameter.check(getattr(self, name))
        except DefinitionError as error:
            raise DefinitionError(f"index {self.name}: {error}") from None
        object.__setattr__(self, "metric", Metric.parse(self.metric))
        if fault := metric_fault(self.metric, self.element_type):
            raise DefinitionError(f"index {self.name}: {fault}")
        if self.code_bits and self.element_type == OF_BITS:
            raise DefinitionError(
                f"index {self.name}: {self.vectors} has more bits per dimension than elements of one bit: take vectors "
                "f16 or f32"
            )
        if not self.has_graphs and self.metric is Metric.INNER_PRODUCT:
            raise DefinitionError(
                f"index {self.name}: method centroid rules out files by the triangle inequality, which the inner "
                "product does not obey: take metric l2 or cosine, or method diskann"
            )

    @property
    def has_graphs(self) -> bool:
        """Whether versions have shards; else they have balls around the vectors of each data file alone."""
        return self.method != "centroid"

    def require_meaning(self) -> None:
        """Raises DefinitionError for a parameter that means nothing to the method of the index, or without texts.

        Where somebody has set one in the table's properties it is read: this is for new definitions.
        """
        if not self.text and self.analyzer != INDEX_PARAMETERS["analyzer"].default:
            raise DefinitionError(
                f"index {self.name}: analyzer = {self.analyzer} is for columns of texts, and it has none: name them "
                "with text, or leave it out"
            )
        defaults = {name: INDEX_PARAMETERS[name].default for name in _OF_GRAPHS}
        if not self.has_graphs and (odd := [name for name in _OF_GRAPHS if getattr(self, name) != defaults[name]]):
            raise DefinitionError(
                f"index {self.name}: {odd[0]} = {getattr(self, odd[0])} is for graphs, and an index of method "
                f"{self.method} has none: leave it out, or take method diskann"
            )

    @property
    def code_bits(self) -> int:
        """Bits per dimension of the rotated codes in shards; 0 where shards have none."""
        return ROTATED_BITS.get(self.vectors, 0) if self.has_graphs else 0

    @property
    def cell_bits(self) -> int:
        """Bits per dimension of the codes in cells; 0 where shards have none."""
        return {"sq4": 4, "sq8": 8}.get(self.cells, 0) if self.has_graphs else 0

    @property
    def holds_vectors(self) -> bool:
        """Whether shards hold vectors; else their rows' vectors are read from the data files where a graph changes."""
        return self.vectors in ("f16", "f32")

    @property
    def params(self) -> "VamanaParams":
        from icepuffin.ann_kernels.graphs.vamana import VamanaParams  # noqa: PLC0415  numba, which only builds need

        return VamanaParams(self.max_degree, self.search_list, self.alpha, self.seed)

    @property
    def tag(self) -> str:
        return index_tag(self.name)

    def to_json(self) -> str:
        """Canonical: equal definitions give equal text. Without columns of texts 0.1.0 reads it, too."""
        return json.dumps(self._written(), sort_keys=True, separators=(",", ":"))

    def _written(self) -> dict[str, Any]:
        """All parameters but those of texts where there are none."""
        left_out = () if self.text else ("text", "text_ids", "analyzer")
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    @classmethod
    def from_json(cls, text: str) -> "IndexDefinition":
        later = "not an index definition of this release: a later one wrote it"
        try:
            parameters = parse_json(text)
            unknown = ", ".join(sorted({*parameters} - {field.name for field in fields(cls)}))
            if not unknown:
                return cls(**parameters)
        except DefinitionError as error:
            raise LaterDefinitionError(f"{later}: {error}") from error
        except (TypeError, ValueError) as error:
            raise DefinitionError(f"not an index definition: {error}") from error
        raise LaterDefinitionError(f"{later}, with {unknown}")

    def graph_identity(self) -> dict[str, Any]:
        """The part of the definition that graphs depend on; versions that differ in it share nothing."""
        if not self.has_graphs:
            return {name: getattr(self, name) for name in ("method", "field_id", "metric", "seed", "element_type")}
        upkeep = ("target_recall", "rebuild_ratio", "max_deltas", "delta_share", "build_anew_rows", "blob_names")
        skipped = ("name", "column", "analyzer", *COLUMN_LISTS, *COLUMN_LISTS.values(), *upkeep)
        return {key: value for key, value in asdict(self).items() if key not in skipped}

    def to_properties(self) -> dict[str, str]:
        """Table properties; parameters without a value are left out."""
        items = {key: value for key, value in self._written().items() if key != "name" and value is not None}
        for names_of, ids_of in COLUMN_LISTS.items():
            of_columns = {key: json.dumps(items.pop(key, ())) for key in (names_of, ids_of)}
            items |= of_columns if getattr(self, names_of) else {}
        return {f"{PREFIX}{self.name}.{key.replace('_', '-')}": str(value) for key, value in items.items()}


INDEX_PARAMETERS: Mapping[str, IndexParameter] = {
    item.name: IndexParameter(item.name, **item.metadata) for item in fields(IndexDefinition) if item.metadata
}
"""All index parameters, by name."""


_OF_GRAPHS = (
    *("max_degree", "search_list", "alpha", "pq_m", "pq_nbits", "vectors", "cells", "shards"),
    *("rebuild_ratio", "max_deltas", "delta_share", "build_anew_rows"),
)
"""Parameters of graphs, and of their upkeep: without graphs they mean nothing"""
COLUMN_LISTS = {"filters": "filter_ids", "include": "include_ids", "text": "text_ids"}
"""Parameters that are lists of columns, by name, and those that have the field ids of each"""


def checked_columns(names: object, parameter: str, index: str) -> tuple[str, ...]:
    """Names of columns, of a sequence, or of a text: a list such as `["a", "b"]`, or names with commas between them.

    Raises DefinitionError.
    """
    if isinstance(names, str):
        try:
            names = _listed(names) if names.lstrip().startswith("[") else names.split(",")
        except (ValueError, SyntaxError):
            raise DefinitionError(
                f'index {index}: {parameter} is {names:.80}, which is no list: write ["a", "b"], or a,b'
            ) from None
        names = [name.strip() if isinstance(name, str) else name for name in names if name]
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and name and is_text(name) for name in names):
        raise DefinitionError(f"index {index}: {parameter} is {names!r}; it takes names of columns")
    if len(set(names)) < len(names):
        raise DefinitionError(f"index {index}: {parameter} names a column twice: {', '.join(names)}")
    return tuple(names)


def _listed(text: str) -> Any:
    """The value of a JSON text, or of one in single quotes. Raises ValueError or SyntaxError."""
    try:
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return ast.literal_eval(text.strip())
    except (MemoryError, RecursionError, TypeError) as error:  # too deeply nested, or a key that can be none
        raise ValueError(text) from error


def metric_fault(metric: Metric, element_type: str) -> str:
    """The reason for which no vectors of this element type are compared by the metric; empty where they are."""
    if metric is not Metric.HAMMING or element_type == OF_BITS:
        return ""
    return f"metric hamming counts bits that differ, so it needs element_type {OF_BITS}, not {element_type}"


def validate_name(name: str) -> None:
    """An index name becomes part of Iceberg tags and file names. Raises DefinitionError."""
    if name == SKETCHES_TAG:
        raise DefinitionError(f"{name!r} cannot name an index: reports have the table's sketches under this name")
    if not _NAME.fullmatch(name):
        raise DefinitionError(
            f"{name!r} cannot name an index: use 1 to 64 letters, digits, '_' and '.', starting with a letter or digit"
        )


CHECKS = ("freshness", "integrity", "live_recall")
"""Checks of an index that Dagster runs as steps of their own. `<index>_<check>` is reserved: it is no index name."""


def find_name_clash(names: Iterable[str]) -> tuple[str, str] | None:
    """Two names that are one in Dagster; None where there are no such two. They differ in '.' and '_' alone, or one is
    that of a check of the other.
    """
    owners: dict[str, str] = {}
    for name in names:
        plain = name.replace(".", "_")
        for reserved in (plain, *(f"{plain}_{check}" for check in CHECKS)):
            if (other := owners.setdefault(reserved, name)) != name:
                return other, name
    return None


def index_of_property(key: str) -> str | None:
    """The index that a table property is about; None for other properties. Names may hold dots, parameters may not."""
    return key.removeprefix(PREFIX).rpartition(".")[0] if key.startswith(PREFIX) else None


def from_properties(properties: Mapping[str, str]) -> tuple[IndexDefinition, ...]:
    """All definitions among a table's properties, by name. Raises DefinitionError for one that is broken."""
    by_name: dict[str, dict[str, Any]] = {}
    for key, value in properties.items():
        name = index_of_property(key)
        if name is None:
            continue
        parameter = key.rpartition(".")[2].replace("-", "_")
        by_name.setdefault(name, {})[parameter] = _parse(key, parameter, value)
    missing = [name for name, items in by_name.items() if "column" not in items]
    if missing:
        raise DefinitionError(f"index {missing[0]}: table property {PREFIX}{missing[0]}.column is missing")
    for name, items in by_name.items():
        for names_of, ids_of in COLUMN_LISTS.items():
            if len(items.get(ids_of, ())) != len(checked_columns(items.get(names_of, ()), names_of, name)):
                items.pop(ids_of, None)  # somebody set the names alone
    return tuple(IndexDefinition(name=name, **items) for name, items in sorted(by_name.items()))


def _parse(key: str, parameter: str, value: str) -> Any:
    if parameter == "column" or parameter in COLUMN_LISTS:
        return value
    try:
        if parameter in COLUMN_LISTS.values():
            return tuple(map(int, parse_json(value)))
        return int(value) if parameter == "field_id" else INDEX_PARAMETERS[parameter].parse(value)
    except KeyError:
        every = ("column", "field_id", *INDEX_PARAMETERS, *COLUMN_LISTS, *COLUMN_LISTS.values())
        names = ", ".join(name.replace("_", "-") for name in every)
        raise DefinitionError(f"table property {key!r} is no parameter of an index; there are {names}") from None
    except (ValueError, TypeError, OverflowError, DefinitionError) as error:
        raise DefinitionError(f"table property {key}: {error}") from None
