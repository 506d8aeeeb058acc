"""Sketches per data file that earlier versions keep, and the commit of those of a new version."""

import logging
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from icepuffin.ops.catalog import bindings
from icepuffin.ops.catalog.bindings import LASTING_MS, Binding, LostRaceError
from icepuffin.ops.catalog.blob_kind import SKETCHES_TAG, BlobKind
from icepuffin.ops.catalog.bound_versions import sketch_versions
from icepuffin.ops.catalog.snapshots import table_name
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.steps import RunStep, reached
from icepuffin.ops.storage import Storage
from icepuffin.ops.storage.prefetch import PrefetchedSource
from icepuffin.ops.theta.columns import SketchedColumn
from icepuffin.ops.theta.file_sketches import (
    ColumnKey,
    FileKey,
    FileSketches,
    FileSketchesReader,
    file_key,
    image_bytes,
    within_budget,
    write_file_sketches,
)
from icepuffin.puffin import PuffinReader
from icepuffin.puffin.blobs.theta import ThetaSketch
from icepuffin.puffin.errors import PuffinError

if TYPE_CHECKING:
    from icepuffin.ops.theta.plan import SketchPlan

logger = logging.getLogger(__name__)

SIDE_TAG_AGE_MS = 7 * 24 * 3600 * 1000
"""Milliseconds for which the sketches per file of an older snapshot (backfill) are kept for its neighbours"""
_MAX_VERSIONS = 16
"""Number of versions whose footers are read in search of a file"""


class KeptSketches:
    """The sketches per data file that earlier versions left, nearest version first."""

    def __init__(self, readers: Sequence[FileSketchesReader], fields: Collection[int], notes: list[str]) -> None:
        self._readers = readers
        self._fields = frozenset(fields)
        self._notes = notes

    def field_ids(self) -> frozenset[int]:
        """Columns that had a sketch at this snapshot or before it."""
        return self._fields

    def read(self, keys: Iterable[FileKey], columns: Sequence[SketchedColumn]) -> dict[FileKey, dict[int, ThetaSketch]]:
        """The kept sketches of files, by field id, of the columns whose type is still the same."""
        sketches_by_key: dict[FileKey, dict[int, ThetaSketch]] = {key: {} for key in keys}
        types = {c.field_id: c.counted_as for c in columns}

        def lacking(key: FileKey, there: Iterable[ColumnKey]) -> list[ColumnKey]:
            return [(i, kind) for i, kind in there if types.get(i) == kind and i not in sketches_by_key[key]]

        for reader in self._readers:
            wanted = []
            for key in (key for key, sketches in sketches_by_key.items() if len(sketches) < len(types)):
                with self._noting(key):
                    if lacking(key, reader.columns(key)):
                        wanted.append(key)
            for group in reader.in_order(wanted):
                with suppress(IcepuffinError, PuffinError):  # each file's own read raises it again
                    reader.fetch(group)
                for key in group:
                    with self._noting(key):
                        sketches = reader.read(key).columns
                        sketches_by_key[key] |= {i: sketches[i, kind] for i, kind in lacking(key, sketches)}
        return sketches_by_key

    @contextmanager
    def _noting(self, key: FileKey) -> Iterator[None]:
        """Turn the error of a broken blob into a note: its file is counted again."""
        try:
            yield
        except (IcepuffinError, PuffinError) as error:
            self._notes.append(f"the kept sketches of {key.path} are broken: {error}")
            logger.warning("%s", self._notes[-1])

    def kept_fields(self, key: FileKey, columns: Sequence[SketchedColumn]) -> frozenset[int]:
        """Field ids of the columns whose sketches `read` would return, if no blob is broken. Reads nothing."""
        kept_columns = {column for reader in self._readers for column in reader.columns(key)}
        return frozenset(c.field_id for c in columns if (c.field_id, c.counted_as) in kept_columns)

    @property
    def note(self) -> str:
        """Sketches that were lost, in words; empty where there are none."""
        return "; ".join(self._notes)


def open_kept(table: Table, store: Storage, snapshot: Snapshot) -> KeptSketches:
    """The kept sketches for one snapshot. A version whose file is lost or broken is left out, with a note."""
    readers, fields, notes = [], set[int](), []
    here = snapshot.sequence_number or 0
    nearest_first = sorted(
        sketch_versions(table), key=lambda v: (abs(v.base_sequence_number - here), -v.sequence_number)
    )
    for version in nearest_first[:_MAX_VERSIONS]:
        try:
            source = PrefetchedSource(store, version.puffin_path)
            reader = FileSketchesReader(PuffinReader(source), source.fetch, version.base_ms)
        except (IcepuffinError, PuffinError) as error:
            notes.append(f"the sketches per file of snapshot {version.base_snapshot_id} are lost: {error}")
            logger.warning("%s: %s", table_name(table), notes[-1])
            continue
        readers.append(reader)
        if version.base_sequence_number <= here:
            fields |= reader.field_ids()
    return KeptSketches(readers, fields, notes)


@dataclass(frozen=True, slots=True)
class KeepResult:
    """Result of keeping a version's sketches per data file."""

    path: str | None
    bytes_written: int
    note: str


def keep(
    plan: "SketchPlan", store: Storage, sketches: Sequence[FileSketches], budget_bytes: int, measurement: str
) -> KeepResult:
    """Write the sketches per file and bind them to the table. As they are a cache, a failure is a note, not an error.

    `measurement`: text of the measurement of the run, for the summary of the snapshot.
    """
    table, snapshot, live, build_id = plan.table, plan.snapshot, plan.live, plan.version_id
    by_key = {s.key: s for s in sketches}
    files = [f for f in live.files if file_key(f, live.location) in by_key]
    sizes = {f.path: image_bytes(by_key[file_key(f, live.location)].columns.values()) for f in files}
    chosen, left_out = within_budget(files, sizes, budget_bytes)
    note = f"{left_out} files' sketches are over the budget of {budget_bytes:,} bytes" if left_out else ""
    if not chosen:
        return KeepResult(None, 0, note)
    path = f"{live.location.rstrip('/')}/metadata/theta-files-{snapshot.snapshot_id}-{uuid.uuid4()}.puffin"
    with store.open_output(path) as sink:
        info = write_file_sketches(
            sink,
            (by_key[file_key(f, live.location)] for f in chosen),
            snapshot_id=snapshot.snapshot_id,
            sequence_number=snapshot.sequence_number or 0,
            build_id=build_id,
        )
    reached(RunStep.FILE_SKETCHES_WRITTEN)
    tag, expected = _tag_for(table, snapshot)
    try:
        bindings.publish(
            table,
            Binding(
                kind=BlobKind.SKETCHES,
                name=BlobKind.SKETCHES,
                tag=tag,
                base_snapshot_id=snapshot.snapshot_id,
                build_id=build_id,
                puffin_path=path,
                file_size=info.file_size,
                footer_size=info.footer_size,
                expected_ref=expected,
                max_ref_age_ms=LASTING_MS if tag == SKETCHES_TAG else SIDE_TAG_AGE_MS,
                measurement=measurement,
            ),
        )
    except IcepuffinError as error:
        if isinstance(error, LostRaceError):  # after any other error a snapshot may still refer to the file
            store.delete(path)
        logger.warning("%s: the sketches per file were not kept: %s", table_name(table), error)
        return KeepResult(None, 0, f"the sketches per file were not kept: {error}")
    return KeepResult(path, info.file_size, note)


def _tag_for(table: Table, snapshot: Snapshot) -> tuple[str, int | None]:
    """(tag, snapshot that it points at now): the main tag, unless that holds the sketches of a newer snapshot."""
    tags = {tag: v for v in sketch_versions(table) for tag in v.tags}
    main = tags.get(SKETCHES_TAG)
    if main is None or main.base_sequence_number <= (snapshot.sequence_number or 0):
        return SKETCHES_TAG, main.index_snapshot_id if main else None
    side = f"{SKETCHES_TAG}-{snapshot.snapshot_id}"
    return side, tags[side].index_snapshot_id if side in tags else None
