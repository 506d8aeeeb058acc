"""What a search covers: the column and snapshot that are searched, what its reader may see, the version that answers.

Where a catalog restricts a table, `Restriction` is the one place where a reader enforces that. The row filter joins
each condition, and stands where there was none. Columns under a mask are out of the schema by which rows are returned.
What an answer says of itself loses all that rows of others have a part in.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.catalog.restricted_tables import (
    ReadRestrictions,
    RestrictedTableError,
    restriction_error,
    unknown_form,
)
from icepuffin.ops.filters.condition_parser import parse_condition
from icepuffin.ops.filters.policy_expression import policy_expression
from icepuffin.ops.filters.predicate import RowPredicate
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.versions.version_reader import OpenVersion
from icepuffin.ops.messages import plural
from icepuffin.ops.model import FileNumber, LiveFiles, SnapshotId, StorageConfig
from icepuffin.ops.rows.vector_column import VectorSchema, element_type_of
from icepuffin.ops.search.arguments import Condition, field_ids
from icepuffin.ops.search.errors import FilterError
from icepuffin.ops.search.indexed.distributed_search import DistributedVersion
from icepuffin.ops.search.indexed.loaded_version import LoadedVersion
from icepuffin.ops.search.result import Coverage, Profile, StalePolicy

_STRATEGY = "within what the catalog allows"


@dataclass(frozen=True, slots=True)
class Restriction:
    """The read restrictions of a table, for one snapshot and one vector column."""

    table: str
    row_filter: BooleanExpression | None
    """Condition that rows of answers satisfy; None for all rows"""
    masked: frozenset[str]
    """Names of the top-level columns under a mask, or with a nested column under one"""
    schema: Schema
    """Schema of the snapshot, masked columns included"""
    visible: Schema
    """Schema without masked columns"""
    what: str
    """What the catalog does, in words"""

    @classmethod
    def from_catalog(
        cls, restrictions: ReadRestrictions | None, table: str, schema: Schema, field_id: int
    ) -> "Restriction | None":
        """None where the catalog allows all. `field_id`: of the vector column.

        Raises RestrictedTableError where it cannot be enforced, or the vectors themselves are masked.
        """
        if restrictions is None:
            return None
        row_filter = _row_filter(restrictions, table, schema)
        masked = [field for field in schema.fields if not restrictions.masked.isdisjoint(_ids(field))]
        if row_filter is None and not masked:
            return None
        others = [field for field in schema.fields if field not in masked]
        keys = {field.field_id for field in others}.intersection(schema.identifier_field_ids)
        plain = Schema(*others, schema_id=schema.schema_id, identifier_field_ids=sorted(keys))
        visible = VectorSchema.with_element_type(plain, field_id, element_type_of(schema, field_id))
        names = frozenset(field.name for field in masked)
        made = cls(table, row_filter, names, schema, visible, restrictions.what)
        made.require_visible(field.name for field in schema.fields if field.field_id == field_id)
        return made

    def require_visible(self, names: Iterable[str]) -> None:
        """Raises RestrictedTableError where a column is masked."""
        if hidden := sorted(self.masked.intersection(names)):
            raise self.refusal(f"{', '.join(hidden)} is masked: it is neither returned nor compared, leave it out")

    def refusal(self, why: str) -> RestrictedTableError:
        """The error for what would tell more than the catalog allows."""
        return restriction_error(self.table, self.what, why)

    def narrowed(self, where: Condition | None) -> Condition | None:
        """The condition that rows of an answer satisfy, of one that the caller has; None without any.

        Raises FilterError, and RestrictedTableError where the caller's is on a masked column.
        """
        if where is None:
            return self.row_filter
        self.require_visible(RowPredicate(where, self.schema).columns)
        if self.row_filter is None:
            return where
        return And(self.row_filter, parse_condition(where) if isinstance(where, str) else where)

    def allowed_profile(self, whole: Profile) -> Profile:
        """What an answer may say of itself: where rows are hidden, nothing that these have a part in."""
        why = f"{whole.why}; the catalog {self.what}"
        if self.row_filter is None:
            return replace(whole, why=why)
        return Profile(
            why=why,
            strategy=_STRATEGY,
            shards=0,
            nodes_expanded=0,
            distances=0,
            tail_rows=0,
            milliseconds={"search": sum(whole.milliseconds.values())},
            matching_rows=whole.matching_rows,
            queries=whole.queries,
            tier=whole.tier,
            withheld=True,
        )


def _row_filter(restrictions: ReadRestrictions, table: str, schema: Schema) -> BooleanExpression | None:
    """The row filter on a snapshot's columns; None where it is true of all rows. Raises RestrictedTableError."""
    if restrictions.row_filter is None:
        return None
    try:
        expression = policy_expression(restrictions.row_filter, schema)
        predicate = RowPredicate(expression, schema)
    except RecursionError:
        raise unknown_form(table, "the row filter is nested too deeply") from None  # whose trace has thousands of lines
    except (ValueError, FilterError) as error:
        raise unknown_form(table, f"of the row filter: {error}") from error
    return None if isinstance(predicate.bound, AlwaysTrue) else expression


def _ids(field: NestedField) -> set[int]:
    """Field ids of a column and of all that is nested in it."""
    return set(index_by_id(Schema(field)))


@dataclass(frozen=True, slots=True)
class SearchTarget:
    """One column of a table at one snapshot."""

    table: Table
    live: LiveFiles
    schema: Schema
    """Schema of the snapshot"""
    field_id: int
    """Field id of the vector column"""
    metric: Metric
    definition: IndexDefinition | None
    """Index to search; None where every row is compared, whatever indexes there are"""
    storage: StorageConfig
    restriction: Restriction | None = None
    """Rows and columns that its reader may see; None where these are all"""

    @property
    def visible(self) -> Schema:
        """Schema by which rows are returned: that of the snapshot, without masked columns."""
        return self.schema if self.restriction is None else self.restriction.visible

    @property
    def hides_rows(self) -> bool:
        """Whether the catalog hides rows from the reader."""
        return self.restriction is not None and self.restriction.row_filter is not None

    def returned(self, columns: Sequence[str] | None) -> list[int]:
        """Field ids of the columns to return, as of `field_ids`. Raises RestrictedTableError for a masked one, too."""
        if self.restriction is not None and not isinstance(columns, str | None):
            self.restriction.require_visible(columns)
        return field_ids(self.visible, columns, self.live.table)


@dataclass(frozen=True, slots=True)
class VersionChoice:
    """The index version that answers, in memory or where tasks run. Without one, every row is compared."""

    opened: OpenVersion | None
    loaded: LoadedVersion | DistributedVersion | None
    why: str
    """Reason for this choice, in words"""
    warnings: tuple[str, ...]
    """Versions that could not be used"""
    tier_why: str = "no index is loaded: data files are read here"
    """Reason for the tier that searches the version, in words"""

    @property
    def is_of_balls(self) -> bool:
        """Whether the version has no graphs: its balls rule files out, and all rows of the others are compared."""
        return self.opened is not None and not self.opened.definition.has_graphs

    @property
    def graphs(self) -> LoadedVersion | DistributedVersion | None:
        """The version whose graphs are searched; none where it has no live rows, of whichever dimensions these were."""
        return None if self.is_of_balls or not self._has_rows else self.loaded

    @property
    def _has_rows(self) -> bool:
        return self.loaded is not None and (self.is_of_balls or bool(self.loaded.live_rows().any()))

    @property
    def here(self) -> LoadedVersion | None:
        """The version whose graphs are searched in this process."""
        graphs = self.graphs
        return graphs if isinstance(graphs, LoadedVersion) else None

    @property
    def remote(self) -> DistributedVersion | None:
        """The version whose graphs are searched by tasks."""
        graphs = self.graphs
        return graphs if isinstance(graphs, DistributedVersion) else None

    @property
    def dims(self) -> int | None:
        """Dimensions of the vectors, where an index knows them."""
        return self.loaded.dims if self.loaded and self._has_rows else None

    @property
    def covered(self) -> frozenset[FileNumber]:
        """File numbers of the live files that the version covers."""
        return self.loaded.covered if self.loaded else frozenset()


@dataclass(frozen=True, slots=True)
class SnapshotCoverage:
    """How the version that answers covers the snapshot that is searched."""

    coverage: Coverage
    tail: tuple[FileNumber, ...]
    """File numbers of the freshness tail, which every search scans"""
    warnings: tuple[str, ...]
    """Warnings that every answer has"""

    @classmethod
    def from_choice(cls, target: SearchTarget, choice: VersionChoice, stale: StalePolicy) -> "SnapshotCoverage":
        """The coverage that the policy gives."""
        live = target.live
        uncovered = tuple(FileNumber(number) for number in range(len(live.files)) if number not in choice.covered)
        if choice.opened is None:
            return cls(Coverage.EXACT_SCAN, uncovered, choice.warnings)
        if is_own(choice.opened.bound, live.snapshot_id) and not uncovered:
            return cls(Coverage.EXACT_VERSION, (), choice.warnings)
        if stale is not StalePolicy.NEAREST_ONLY:
            return cls(Coverage.NEAREST_VERSION_AND_TAIL, uncovered, choice.warnings)
        rows = "rows" if target.hides_rows else f"up to {plural(live.record_count_of(uncovered), 'row')}"
        missing = f"{rows} of snapshot {live.snapshot_id} are not in the index that answered"
        warnings = (missing, *choice.warnings) if uncovered else choice.warnings
        return cls(Coverage.NEAREST_VERSION_ONLY, (), warnings)


def is_own(version: DerivedVersion, snapshot_id: SnapshotId) -> bool:
    """Whether the version was made for the snapshot. The index snapshot counts too: it has the same rows, and stands
    for the data snapshot once that has expired.
    """
    return snapshot_id in (version.base_snapshot_id, version.index_snapshot_id)
