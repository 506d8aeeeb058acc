"""File slots: the numbers that data files have within an index version."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.stages import SlottedFile
from icepuffin.ops.model import Action, FileSlot
from icepuffin.ops.storage import relative_to
from icepuffin.ops.table.row_deletes import fingerprint
from icepuffin.puffin.blobs.routing_blob import FREE_SLOT, CoveredFile


def assign_slots(plan: VersionPlan) -> tuple[SlottedFile, ...]:
    """Give each live file its slot: the base version's where its nodes stay, else a free one."""
    base_files = _base_files(plan)
    slot_of = {file.path: slot for slot, file in enumerate(base_files) if file.present}
    added = {file.path for file in plan.added}
    free = itertools.chain(
        (slot for slot, file in enumerate(base_files) if not file.path), itertools.count(len(base_files))
    )
    return tuple(
        (FileSlot(next(free) if file.path in added else slot_of[relative_to(file.path, plan.live.location)]), file)
        for file in plan.live.files
    )


def file_table(
    plan: VersionPlan,
    files: Sequence[SlottedFile],
    rows_read: Mapping[FileSlot, int],
    removed_rows: Mapping[FileSlot, int],
    referenced: frozenset[FileSlot] | None = None,
) -> tuple[CoveredFile, ...]:
    """The version's file table, by file slot.

    rows_read: live rows of the files that were read. removed_rows: rows that are gone since the base version, of
    the files that were not read. referenced: slots in which some node lies; other slots without a live file become
    free. None where this is not known: then no slot becomes free.
    """
    base_files = _base_files(plan)
    table = [
        replace(file, live_rows=0, present=False) if referenced is None or slot in referenced else FREE_SLOT
        for slot, file in enumerate(base_files)
    ]
    table += [FREE_SLOT] * (max((slot + 1 for slot, _ in files), default=0) - len(table))
    for slot, file in files:
        live_rows = rows_read[slot] if slot in rows_read else base_files[slot].live_rows - removed_rows.get(slot, 0)
        path = relative_to(file.path, plan.live.location)
        table[slot] = CoveredFile(path, file.record_count, live_rows, fingerprint(file), present=True)
    while table and table[-1] == FREE_SLOT:
        table.pop()
    return tuple(table)


def _base_files(plan: VersionPlan) -> tuple[CoveredFile, ...]:
    return plan.base.routing.files if plan.action is Action.REFRESHED and plan.base else ()
