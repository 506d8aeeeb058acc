"""Builds that missed the gate, as the refresh before them had: they are not made again of mostly the same rows.

A build of the same rows by the same definition has the same recall, whatever is published meanwhile. The record lies
among staged objects, which garbage collection deletes: then, or for other rows, a build is tried once more.
"""

import hashlib
import json
import logging

from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index.errors import GateFailedError
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.versions.version_sizes import graph_id
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.storage import ObjectMissingError, open_storage, relative_to
from icepuffin.ops.table.json_texts import parse_json
from icepuffin.ops.table.row_deletes import fingerprint

OTHER_ROWS = 0.2
"""Share of rows in other files, or in files with other deletes, up to which a build in vain is not made again"""
_log = logging.getLogger(__name__)


def record_vain_build(plan: VersionPlan, recall: float, storage: StorageConfig) -> None:
    """Keep the recall of a build of all rows of a plan's snapshot. Where that fails, the next run tries another."""
    store, path = open_storage(plan.live.location, storage), _path(plan)
    try:
        store.delete(path)
        store.create(path, json.dumps({"recall": recall, "rows": _rows_by_file(plan)}).encode())
    except IcepuffinError as error:
        _log.warning("that a build was in vain is not kept, so the next snapshot tries one again: %s", error)


def find_vain_build(plan: VersionPlan, storage: StorageConfig) -> GateFailedError | None:
    """The error that a build in place of a refresh would end with, by a record of mostly the same rows; None where it
    may succeed.
    """
    store, path = open_storage(plan.live.location, storage), _path(plan)
    try:
        build = parse_json(store.read_range(path, 0, store.size(path)).decode())
        recall, before = float(build["recall"]), {str(file): int(rows) for file, rows in build["rows"].items()}
    except ObjectMissingError:
        return None
    except (ValueError, OverflowError, TypeError, KeyError, AttributeError) as fault:
        _log.warning("the record of a build in vain cannot be read, so one is tried again: %r", fault)
        return None
    now = _rows_by_file(plan)
    same = sum(rows for file, rows in now.items() if file in before)
    share = same / max(1, sum(before.values()), sum(now.values()))
    if recall >= plan.definition.target_recall or share < 1 - OTHER_ROWS:
        return None
    error = GateFailedError(
        f"All rows were indexed anew before, with recall@10 {recall:.4f}, and {share:.0%} of them are the same: that "
        f"is tried again once {OTHER_ROWS:.0%} differ, or `icepuffin gc` has deleted the record"
    )
    error.recall = recall
    return error


def _path(plan: VersionPlan) -> str:
    folder = plan.staging_prefix.rpartition("/")[0]
    return f"{folder}/vain-build-{graph_id(plan.definition, plan.field_id)}.json"


def _rows_by_file(plan: VersionPlan) -> dict[str, int]:
    """Rows of each live data file, by a hash of its path and its deletes."""
    files = ((relative_to(file.path, plan.live.location).encode(), file) for file in plan.live.files)
    return {hashlib.sha256(path + fingerprint(file)).hexdigest()[:16]: file.record_count for path, file in files}
