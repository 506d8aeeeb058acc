"""Builds that missed the gate: they are not made again of mostly the same rows, unless they are asked for.

A build of the same rows by the same definition has the same recall, whatever is published meanwhile. The record lies
among staged objects. Garbage collection leaves it there while the table defines the index.
"""

import hashlib
import json
import logging
from dataclasses import replace
from shlex import quote

from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index.errors import GateFailedError
from icepuffin.ops.index.planning.deleted_rows import deleted_rows
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.versions.version_sizes import graph_id
from icepuffin.ops.storage import ObjectMissingError, RefusedError, open_storage, relative_to
from icepuffin.ops.table.json_texts import parse_json
from icepuffin.ops.table.shared_deletes import DeleteFilter, compares_keys, distinct_deletes
from icepuffin.ops.tasks.task_runner import RunContext

OTHER_ROWS = 0.2
"""Share of rows in other files, or deleted since, up to which a build in vain is not made again"""
RECORDS = "vain-builds"
"""Folder of records, in that of an index's staged objects"""
_log = logging.getLogger(__name__)


def record_vain_build(plan: VersionPlan, error: GateFailedError, run: RunContext) -> None:
    """Keep the recall of a build of all rows of a plan's snapshot, in place of records by other definitions. Where that
    fails, the next run tries another.
    """
    store, path = open_storage(plan.live.location, run.storage), _path(plan)
    try:
        record = {
            "recall": error.recall,
            "advice": error.advice,
            "rows": _rows_by_file(plan),
            "deleted": _deleted_rows(plan, run),
        }
        store.delete_all([item.path for item in store.list(path.rpartition("/")[0])])
        store.create(path, json.dumps(record).encode())
    except IcepuffinError as fault:
        _log.warning("that a build was in vain is not kept, so the next snapshot tries one again: %s", fault)


def find_vain_build(plan: VersionPlan, run: RunContext) -> GateFailedError | None:
    """The error that a build of all rows of a plan's snapshot would end with, by a record of mostly the same rows; None
    where it may succeed. Raises StorageError, but not where a store refuses the name, as some do before the trial of
    the catalog has chosen a folder, or whoever may not list, for an object that is not there. Where there is a record,
    the keys of rows are read for the snapshot's equality deletes; raises as `deleted_rows`.
    """
    store, path = open_storage(plan.live.location, run.storage), _path(plan)
    try:
        content = store.read_range(path, 0, store.size(path))
    except (ObjectMissingError, RefusedError):
        return None
    try:
        build = parse_json(content.decode())
        recall, advice, deleted = float(build["recall"]), str(build["advice"]), int(build["deleted"])
        before = {str(file): int(rows) for file, rows in build["rows"].items()}
    except (ValueError, OverflowError, TypeError, KeyError, AttributeError) as fault:
        _log.warning("the record of a build in vain, %s, cannot be read, so one is tried again: %r", path, fault)
        return None
    now = _rows_by_file(plan)
    same = sum(rows for file, rows in now.items() if file in before) - abs(_deleted_rows(plan, run) - deleted)
    share = max(0, same) / max(1, sum(before.values()), sum(now.values()))
    if not 0 <= recall < plan.definition.target_recall or share < 1 - OTHER_ROWS:
        return None
    command = f"icepuffin refresh {quote(plan.live.table)} --index {plan.definition.name}"
    error = GateFailedError(
        f"All rows were indexed anew before, with recall@10 {recall:.4f}, and {share:.0%} of them are the same: that "
        f"is tried again once {OTHER_ROWS:.0%} differ, the definition is another one, or you ask for it: {command}"
    )
    error.recall, error.advice = recall, advice
    return error


def _path(plan: VersionPlan) -> str:
    folder = plan.staging_prefix.rpartition("/")[0]
    return f"{folder}/{RECORDS}/{graph_id(plan.definition, plan.field_id)}.json"


def _rows_by_file(plan: VersionPlan) -> dict[str, int]:
    """Rows of each live data file, deleted ones included, by a hash of its path."""
    paths = ((relative_to(file.path, plan.live.location).encode(), file) for file in plan.live.files)
    return {hashlib.sha256(path).hexdigest()[:16]: file.record_count for path, file in paths}


def _deleted_rows(plan: VersionPlan, run: RunContext) -> int:
    """Rows that deletes remove. So a few deletes in a large file do not make other rows of all of its rows.

    Equality deletes count by the rows that they find: a key may have none, as those of new rows in Flink's upserts, or
    many.
    """
    keyed = DeleteFilter(compares_keys)
    compared = [replace(file, deletes=keys) for file in plan.live.files if (keys := keyed.select(file.deletes))]
    found = sum(map(len, deleted_rows(compared, run.storage, run.runner).values()))
    return found + sum(one.record_count for one in distinct_deletes(plan.live.files) if not compares_keys(one))
