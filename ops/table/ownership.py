"""Which snapshots icepuffin made. See docs/formats.md, section 11.

A writer may set any property of a summary, and tools copy all of them to other snapshots. Rows in a snapshot that is
taken for one of ours are in no answer. So ours is only what can have no rows of its own; the rest is the owner's data.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.blob_kind import FIELDS_KEY, KIND_KEY, STATISTICS_FILE_KEY, BlobKind
from icepuffin.ops.table.metadata_memo import once_per_metadata
from icepuffin.ops.table.summaries import number_of, summary_of

_log = logging.getLogger(__name__)
_CHANGES = ("added-", "deleted-", "removed-")
"""Prefixes of the counts of a commit that changed files"""
_MARKS = {f"{kind}.{key}": kind for kind in BlobKind for key in ("base-snapshot-id", "pack")}
"""Kinds by the keys by which snapshots without `KIND_KEY` are known"""


@dataclass(frozen=True, slots=True)
class OwnSnapshot:
    """A snapshot that icepuffin made: one of a version, or the holder of a pack."""

    kind: str
    """Prefix of its keys: a `BlobKind`, or the kind of a later release"""
    base_id: SnapshotId | None
    """Data snapshot that a version belongs to; None for others"""
    pack_owner: str | None
    """Index whose pack a holder carries, for one of file sketches the name of their kind; None for others"""
    pack_ids: tuple[SnapshotId, ...]
    """Holders of the packs that a version shares, in the order of their numbers"""
    fields: frozenset[int]
    """Field ids of the columns that have file sketches; none for others"""


class _HalfOwnError(ValueError):
    """Raised for a snapshot that has keys of ours, and cannot be one."""


def own_snapshot(snapshot: Snapshot) -> OwnSnapshot | None:
    """What icepuffin made the snapshot for; None for the owner's own, and for those that only look like one of ours."""
    try:
        return _judged(snapshot)
    except _HalfOwnError:
        return None


@once_per_metadata
def own_snapshots(metadata: TableMetadata) -> Mapping[SnapshotId, OwnSnapshot]:
    """All snapshots that icepuffin made, in the order of the metadata. Others that look so are warned of, once."""
    ours: dict[SnapshotId, OwnSnapshot] = {}
    for snapshot in metadata.snapshots:
        try:
            owned = _judged(snapshot)
        except _HalfOwnError as error:
            _warn(metadata.location, snapshot.snapshot_id, str(error))
        else:
            if owned is not None:
                ours[SnapshotId(snapshot.snapshot_id)] = owned
    return ours


def _judged(snapshot: Snapshot) -> OwnSnapshot | None:
    properties = summary_of(snapshot)
    kind = properties.get(KIND_KEY) or next((kind for key, kind in _MARKS.items() if key in properties), "")
    if not kind:
        return None
    if snapshot.summary is None or snapshot.summary.operation is not Operation.REPLACE:
        raise _HalfOwnError("its operation is not replace")
    for key, value in properties.items():
        if key.startswith(_CHANGES) and value != "0":
            raise _HalfOwnError(f"it has {key}")
    base, owner = _id(properties, f"{kind}.base-snapshot-id"), properties.get(f"{kind}.pack")
    if snapshot.parent_snapshot_id is not None and (KIND_KEY in properties or snapshot.parent_snapshot_id != base):
        raise _HalfOwnError("it has a parent, as no version has")
    pack_ids = tuple(map(SnapshotId, _ids(properties, f"{kind}.packs") or ()))
    fields = frozenset(_ids(properties, FIELDS_KEY) or ())
    if kind not in tuple(BlobKind):
        return OwnSnapshot(kind, base, None, pack_ids, frozenset())
    if base is None and owner is None:
        raise _HalfOwnError(f"it has neither {kind}.base-snapshot-id nor {kind}.pack")
    keys = (f"{kind}.build-id", *((STATISTICS_FILE_KEY,) if kind == BlobKind.INDEX else ()))
    if base is not None and (lacking := _lacking(properties, keys)):
        raise _HalfOwnError(f"it lacks {lacking}")
    if base is not None:
        owner = None
    return OwnSnapshot(kind, base, owner, pack_ids, fields)


def _lacking(properties: Mapping[str, str], keys: Iterable[str]) -> str:
    return ", ".join(key for key in keys if not properties.get(key))


def _id(properties: Mapping[str, str], key: str) -> SnapshotId | None:
    ids = _ids(properties, key)
    if ids is not None and len(ids) != 1:
        raise _HalfOwnError(f"its {key} is no id")
    return SnapshotId(ids[0]) if ids else None


def _ids(properties: Mapping[str, str], key: str) -> tuple[int, ...] | None:
    """Ids, by commas; None where there is no such key."""
    text = properties.get(key)
    if text is None:
        return None
    ids = [number_of(part) for part in text.split(",") if part]
    if None in ids:
        raise _HalfOwnError(f"its {key} is no id, and no list of ids")
    return tuple(number for number in ids if number is not None)


@lru_cache(maxsize=4096)
def _warn(location: str, snapshot_id: int, why: str) -> None:
    _log.warning(
        "%s: snapshot %s has properties of icepuffin's in its summary, and counts as data: %s. Whoever wrote it set or "
        "copied them; have it leave them out",
        location, snapshot_id, why,
    )  # fmt: skip
