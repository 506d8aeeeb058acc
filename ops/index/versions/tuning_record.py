"""The recall of an index for a user's own queries, as `icepuffin tune` measured it, kept in a table property.

Readers have the table's metadata anyway, so the record costs them no request. It holds for versions that are built
as the one that it was measured with; a refresh leaves it as it is.
"""

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
from pyiceberg.table import Table
from pyiceberg.table.update import AssertRefSnapshotId, RemovePropertiesUpdate, SetPropertiesUpdate, TableUpdate

from icepuffin.ops.binding.bound_versions import own_tags, tag_target
from icepuffin.ops.binding.commit import CommitOutcome, attempt_commit, commit_attempts, reload_table
from icepuffin.ops.errors import FileDamageError
from icepuffin.ops.index.versions.version_sizes import fit_of
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.recall.measured_points import SHARES, MeasuredPoint
from icepuffin.ops.table.blob_kind import index_tag
from icepuffin.ops.table.json_texts import parse_json
from icepuffin.ops.table.snapshots import table_name

if TYPE_CHECKING:
    from icepuffin.ops.index.versions.version_reader import OpenVersion

PREFIX = "ann.tuning."
"""Table properties that hold records: the index's name follows"""
_RECORD_FORMAT = 1
_DECIMALS = 5
"""Decimals of a recall: those of a thousand queries for a hundred rows each"""
_YEAR_10000_MS = 253_402_300_800_000
_CENTROIDS = 16
"""Centroids by which a codebook is known, at most"""


class TuningError(FileDamageError):
    """Raised for a record of tuning that cannot be read or kept."""


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """Recall and cost of an index at several search parameters, for queries of a user's."""

    points: tuple[MeasuredPoint, ...]
    queries: int
    """Queries that were measured"""
    index_snapshot_id: SnapshotId
    """Index snapshot whose version was measured"""
    base_snapshot_id: SnapshotId
    """Data snapshot of that version"""
    timestamp_ms: int
    """Time of the measurement, milliseconds since the epoch"""
    identity: Mapping[str, Any]
    """Parameters of that version that the points depend on"""

    @property
    def day(self) -> str:
        """Date of the measurement, UTC, as `2026-11-23`."""
        return time.strftime("%Y-%m-%d", time.gmtime(self.timestamp_ms / 1000))

    @property
    def origin(self) -> str:
        """The queries, the version and the date of the measurement, in words."""
        version = f"index version {self.index_snapshot_id} of snapshot {self.base_snapshot_id}"
        return f"{self.queries:,} queries that `icepuffin tune` measured with {version} on {self.day}"

    def as_kept(self) -> "TuningRecord":
        """The record as readers have it: numbers are rounded."""
        return TuningRecord.from_json(self.to_json())

    def to_json(self) -> str:
        """Compact: a table's properties are rewritten with each commit, and some catalogs limit their length."""
        return json.dumps(self.document(), separators=(",", ":"))

    def document(self) -> dict[str, Any]:
        """The record as JSON has it."""
        rounded = (replace(point, distances=round(point.distances, 1)) for point in self.points)
        points = [
            [None if math.isinf(value) else round(value, _DECIMALS) for value in astuple(point)[:-1]]
            for point in rounded
        ]
        return {
            "format": _RECORD_FORMAT,
            "queries": self.queries,
            "index-snapshot-id": str(self.index_snapshot_id),
            "base-snapshot-id": str(self.base_snapshot_id),
            "timestamp-ms": self.timestamp_ms,
            "identity": dict(self.identity),
            "points": points,
            # apart from the points, of which 0.1.0 reads eight numbers each
            "reached": [[round(recall, _DECIMALS) for recall in point.reached] for point in self.points],
        }

    @classmethod
    def from_json(cls, text: str) -> "TuningRecord":
        """Raises TuningError."""
        try:
            document = parse_json(text)
            if document["format"] != _RECORD_FORMAT:
                raise TuningError(f"it has format {document['format']}, and this release reads {_RECORD_FORMAT}")
            return cls(
                tuple(_points(document)),
                int(document["queries"]),
                SnapshotId(int(document["index-snapshot-id"])),
                SnapshotId(int(document["base-snapshot-id"])),
                _timestamp(document["timestamp-ms"]),
                dict(document["identity"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise TuningError(f"it is no record of tuning: {error!r}") from error


def _timestamp(value: Any) -> int:
    milliseconds = int(value)
    if not 0 <= milliseconds < _YEAR_10000_MS:
        raise ValueError(value)
    return milliseconds


def _points(document: Mapping[str, Any]) -> Iterator[MeasuredPoint]:
    rows = document["points"]
    for row, reached in zip(rows, document.get("reached", [()] * len(rows)), strict=True):
        recalls = tuple(map(float, reached))
        if len(recalls) not in (0, len(SHARES)) or not all(0 <= recall <= 1 for recall in recalls):
            raise ValueError(reached)
        yield replace(_point(row), reached=recalls)


def _point(row: list[Any]) -> MeasuredPoint:
    k, search_list, oversample, slack, recall, margin, distances, shards = row
    point = MeasuredPoint(
        int(k), int(search_list), int(oversample), math.inf if slack is None else float(slack), float(recall),
        float(margin), float(distances), float(shards),
    )  # fmt: skip
    if not (min(point.k, point.search_list, point.oversample) >= 1 and point.probe_slack >= 0 <= point.recall <= 1):
        raise ValueError(row)
    return point


def identity_of(opened: "OpenVersion") -> dict[str, Any]:
    """What measured points depend on: a version's parameters of graphs, and its codebook, which another model of equal
    dimensions replaces, or whose rows lie farther from it. As JSON has them.
    """
    routing = opened.routing
    identity: dict[str, Any] = json.loads(json.dumps(opened.definition.graph_identity()))
    return {
        **identity,
        "dims": routing.dims,
        "routed_shards": len(np.unique(routing.partition_to_shard)),
        "codebook": hashlib.sha256(np.ascontiguousarray(routing.codebook[:_CENTROIDS]).tobytes()).hexdigest()[:8],
        "codebook_apart": fit_of(opened.bound.sizes).steps_apart,
    }


def find_record(table: Table, index: str) -> TuningRecord | None:
    """The record of an index; None where there is none. Raises TuningError for one that cannot be read."""
    text = table.metadata.properties.get(PREFIX + index)
    if text is None:
        return None
    try:
        return TuningRecord.from_json(text)
    except TuningError as error:
        remedy = (
            f"tune the index again, or forget the record: icepuffin tune {quote(table_name(table))} {index} --forget"
        )
        raise TuningError(
            f"{table_name(table)}: table property {PREFIX}{index} is not used: {error}; {remedy}"
        ) from None


def usable_record(table: Table, index: str, opened: "OpenVersion") -> tuple[TuningRecord | None, str]:
    """(the record of an index where it holds for a version, the reason why there is one and it does not)."""
    try:
        record = find_record(table, index)
    except TuningError as error:
        return None, str(error)
    if record is None:
        return None, ""
    changes = changes_of(record.identity, identity_of(opened))
    if not changes:
        return record, ""
    remedy = f"tune the index again: icepuffin tune {quote(table_name(table))} {index} --queries FILE"
    return None, f"the recall by {record.origin} is not used, since the index has changed: {changes}; {remedy}"


def changes_of(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """How two versions differ in what measured points depend on, in words; empty where they do not."""
    names = sorted(name for name in {*now, *then} if now.get(name) != then.get(name))
    return ", ".join(f"{name} was {then.get(name)} and is {now.get(name)}" for name in names)


def keep_record(table: Table, index: str, record: TuningRecord) -> None:
    """Write a record into the table's properties, in place of an earlier one.

    Raises TuningError where no commit succeeds, or the index was dropped meanwhile.
    """
    _commit(table, index, record.to_json())


def forget_record(table: Table, index: str) -> bool:
    """Remove the record of an index from the table's properties. False where there is none.

    Raises TuningError where no commit succeeds.
    """
    return _commit(table, index, None)


def _commit(table: Table, index: str, text: str | None) -> bool:
    """Set the record, or remove it; whether that was done by a commit of this call, as far as the answers show."""
    key, tag, sent = PREFIX + index, index_tag(index), False
    for attempt in commit_attempts(table):
        reload_table(table, patient=attempt.number > 0)
        if table.metadata.properties.get(key) == text:
            return sent
        if not attempt.may_commit:
            break
        if text is not None and not own_tags(table, tag):
            raise TuningError(f"{table_name(table)}: index {index} was dropped meanwhile; nothing is kept")
        update: TableUpdate = (
            RemovePropertiesUpdate(removals=[key]) if text is None else SetPropertiesUpdate(updates={key: text})
        )
        unmoved = AssertRefSnapshotId(ref=tag, snapshot_id=tag_target(table, tag))  # a drop meanwhile wins
        requirements = () if text is None else (unmoved,)
        sent = True
        if attempt_commit(table, (update,), requirements, attempt.number) is CommitOutcome.DONE:
            reload_table(table, patient=True)
            return True
    raise TuningError(
        f"{table_name(table)}: table property {key} could not be changed in {attempt.number} attempts; try again"
    )
