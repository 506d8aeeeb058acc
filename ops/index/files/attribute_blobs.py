"""The values of the columns for conditions in a new version: those of the base version's files are copied as they are,
those of other files are read. See docs/formats.md.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyiceberg.types import ListType

from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index.files.unread_columns import live_files_by_slot, unread_columns
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.versions.version_reader import read_attribute_blob
from icepuffin.ops.model import Action, FileSlot, LiveFile, StorageConfig
from icepuffin.ops.rows.attributes import is_by_name, reading_of
from icepuffin.ops.tasks.attribute_task import AttributesTask, read_attributes
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.puffin.blobs import attributes_blob as attribute_blob
from icepuffin.puffin.blobs.attributes_blob import AttributeBlob, AttributeEntry
from icepuffin.puffin.blobs.routing_blob import CoveredFile
from icepuffin.puffin.errors import PuffinError
from icepuffin.puffin.types import MAX_BLOB_BYTES

_BLOB_FULL = "the values of all files are more than a blob may hold (2 GiB)"
_log = logging.getLogger(__name__)


def attribute_blobs(run: RunContext, plan: VersionPlan, files: Sequence[CoveredFile]) -> list[AttributeBlob]:
    """One blob per column that the definition names and the snapshot has. `files`: the version's file table.

    Raises DataFileError, StorageError.
    """
    files_by_slot = live_files_by_slot(plan, files)
    entries = {field_id: _kept(plan, field_id, files_by_slot, run.storage) for field_id in plan.filter_ids}
    groups, chosen = unread_columns(plan, files_by_slot, entries, run.runner)
    tasks = [AttributesTask(group, plan.column_schema, run.storage) for group in groups]
    watched = run.stage_progress("attributes")
    for new in chosen.run(read_attributes, tasks, label="read columns for conditions", progress=watched):
        for field_id, entry in new:
            entries[field_id][FileSlot(entry.slot)] = entry
    blobs = []
    for field_id, by_slot in entries.items():
        of_lists = isinstance(plan.column_schema.find_type(field_id), ListType)
        in_order = tuple(by_slot[slot] for slot in sorted(by_slot))
        blobs.append(_fitting(AttributeBlob(field_id, in_order, of_lists=of_lists)))
    return blobs


def _kept(
    plan: VersionPlan, field_id: int, files_by_slot: Mapping[FileSlot, LiveFile], storage: StorageConfig
) -> dict[FileSlot, AttributeEntry]:
    """The base version's entries of files that are live still, and would be read in the same way."""
    base = plan.base if plan.action is Action.REFRESHED else None
    if base is None or field_id not in base.attributes:
        return {}
    try:
        blob = read_attribute_blob(base, field_id, storage)
    except (PuffinError, IcepuffinError) as error:
        _log.warning("the values of column %s are read anew: %s", field_id, error)
        return {}
    kept = {}
    for entry in blob.entries:
        slot = FileSlot(entry.slot)
        file = files_by_slot.get(slot)  # no other file than the base version has there: that slot was not free
        if file and entry.reading == reading_of(plan.column_schema, file, field_id, by_name=is_by_name(entry.reading)):
            kept[slot] = entry
    return kept


def _fitting(blob: AttributeBlob) -> AttributeBlob:
    """The blob, without the values of its last files where it would be too large."""
    if attribute_blob.encoded_bytes(blob.entries) <= MAX_BLOB_BYTES:
        return blob
    _log.warning("column %s: %s", blob.field_id, _BLOB_FULL)
    entries, size = [], attribute_blob.encoded_bytes(_without_values(entry) for entry in blob.entries)
    for entry in blob.entries:
        size += len(entry.stored)
        entries.append(entry if size <= MAX_BLOB_BYTES else _without_values(entry))
    return replace(blob, entries=tuple(entries))


def _without_values(entry: AttributeEntry) -> AttributeEntry:
    return AttributeEntry(entry.slot, entry.rows, entry.kind, entry.reading, entry.left_out or _BLOB_FULL)
