"""File slots: the numbers that data files have within an index version."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from icepuffin.ops.catalog.row_deletes import fingerprint
from icepuffin.ops.index.plan import VersionPlan
from icepuffin.ops.index.report import Action
from icepuffin.ops.index.stages import Slotted
from icepuffin.ops.storage import relative_to
from icepuffin.puffin.blobs.routing import FREE_SLOT, CoveredFile


def slots_of(plan: VersionPlan) -> tuple[Slotted, ...]:
    """Slot of each live file: the base's where it keeps its nodes, else one that is free."""
    old = plan.base.routing.files if plan.action is Action.REFRESHED and plan.base else ()
    known = {file.path: slot for slot, file in enumerate(old) if file.present}
    added = {file.path for file in plan.added}
    free = itertools.chain((slot for slot, file in enumerate(old) if not file.path), itertools.count(len(old)))
    return tuple(
        (next(free) if file.path in added else known[relative_to(file.path, plan.live.location)], file)
        for file in plan.live.files
    )


def file_table(
    plan: VersionPlan,
    slots: Sequence[Slotted],
    read: Mapping[int, int],
    lost: Mapping[int, int],
    referenced: frozenset[int] | None = None,
) -> tuple[CoveredFile, ...]:
    """All slots. By slot, `read` are the live rows of files that were read, `lost` those that others have lost since
    the base was made. Slots of other files become free unless they are `referenced`; all are where that is not known.
    """
    old = plan.base.routing.files if plan.action is Action.REFRESHED and plan.base else ()
    table = [
        replace(file, live_rows=0, present=False) if referenced is None or slot in referenced else FREE_SLOT
        for slot, file in enumerate(old)
    ]
    table += [FREE_SLOT] * (max((slot + 1 for slot, _ in slots), default=0) - len(table))
    for slot, file in slots:
        live = read[slot] if slot in read else old[slot].live_rows - lost.get(slot, 0)
        path = relative_to(file.path, plan.live.location)
        table[slot] = CoveredFile(path, file.record_count, live, fingerprint(file), present=True)
    while table and table[-1] == FREE_SLOT:
        table.pop()
    return tuple(table)
