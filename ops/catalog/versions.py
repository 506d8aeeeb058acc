"""What is bound to a table already: index versions and kept sketches, as its metadata tells them. Reads no file."""

from dataclasses import dataclass

from pyiceberg.table import Table


@dataclass(frozen=True, slots=True)
class DerivedVersion:
    """A bound version, as the table's metadata tells it."""

    kind: str
    name: str
    derived_snapshot_id: int
    """S' itself."""
    base_snapshot_id: int
    build_id: str
    puffin_path: str
    sequence_number: int
    timestamp_ms: int
    base_sequence_number: int
    """Of the data snapshot; where that has expired, the version's own."""
    tags: tuple[str, ...]
    """Tags that point at it; none where it only waits to expire."""
    took: str = ""
    """What making it took, as its maker noted it; empty where that was not noted."""


def versions(table: Table, kind: str, name: str) -> tuple[DerivedVersion, ...]:
    """All versions in the table's metadata, oldest first, tagged or not."""
    tags: dict[int, list[str]] = {}
    for ref, target in table.metadata.refs.items():
        tags.setdefault(target.snapshot_id, []).append(ref)
    sequence = {item.snapshot_id: item.sequence_number or 0 for item in table.metadata.snapshots}
    paths = {entry.snapshot_id: entry.statistics_path for entry in table.metadata.statistics}
    found = []
    for snapshot in table.metadata.snapshots:
        properties = snapshot.summary.additional_properties if snapshot.summary else {}
        base = properties.get(f"{kind}.base-snapshot-id")
        # the statistics entry is the truth for the path: moving a table rewrites it, and not the summary
        path = paths.get(snapshot.snapshot_id)
        if base is None or path is None or properties.get(f"{kind}.index", kind) != name:
            continue
        found.append(
            DerivedVersion(
                kind=kind,
                name=name,
                derived_snapshot_id=snapshot.snapshot_id,
                base_snapshot_id=int(base),
                build_id=properties.get(f"{kind}.build-id", ""),
                puffin_path=path,
                sequence_number=snapshot.sequence_number or 0,
                timestamp_ms=snapshot.timestamp_ms,
                base_sequence_number=sequence.get(int(base), snapshot.sequence_number or 0),
                tags=tuple(sorted(tags.get(snapshot.snapshot_id, ()))),
                took=properties.get(f"{kind}.took", ""),
            )
        )
    return tuple(sorted(found, key=lambda version: (version.sequence_number, version.timestamp_ms)))


def bound_names(table: Table, kind: str) -> frozenset[str]:
    """Names that have a version in the table's metadata."""
    summaries = (snapshot.summary.additional_properties for snapshot in table.metadata.snapshots if snapshot.summary)
    return frozenset(found.get(f"{kind}.index", kind) for found in summaries if f"{kind}.base-snapshot-id" in found)


def tag_target(table: Table, tag: str) -> int | None:
    """The snapshot that a tag points at; None where there is no such tag."""
    ref = table.metadata.refs.get(tag)
    return ref.snapshot_id if ref else None
