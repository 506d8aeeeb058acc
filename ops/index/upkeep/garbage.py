"""Garbage collection: deletes files of icepuffin that no metadata of the table references."""

import re
from collections.abc import Collection
from datetime import timedelta

from pyiceberg.table import Table

from icepuffin.ops.binding.commit import reload_table
from icepuffin.ops.binding.files_folder import FilesFolder, folder_of
from icepuffin.ops.binding.manifest_lists import OWN_LISTS
from icepuffin.ops.index.definitions.ddl import defined_names
from icepuffin.ops.index.planning.index_report import GcReport
from icepuffin.ops.index.vain_builds import RECORDS
from icepuffin.ops.index.versions.exported_metadata import SUFFIX
from icepuffin.ops.model import CREATED_BY, StorageConfig
from icepuffin.ops.storage import ObjectMissingError, normalize, open_storage
from icepuffin.ops.table.blob_kind import STATISTICS_FILE_KEY
from icepuffin.ops.table.metadata_memo import partition_statistics_by_id
from icepuffin.ops.table.snapshots import require_all_snapshots, table_name
from icepuffin.ops.table.summaries import summary_of
from icepuffin.ops.theta.partition_statistics import own_statistics
from icepuffin.puffin import PuffinReader
from icepuffin.puffin.errors import PuffinError

OUR_FILES = ("ann-", "theta-")
"""Prefixes of the names, under metadata/, of Puffin files that icepuffin writes."""
_CUT_OFF = tuple(f".{name}" for name in OUR_FILES)
"""Prefixes of files that a killed process was writing on a local disk"""
_STATISTICS = re.compile(r"-?\d+-[0-9a-f-]{36}\.stats|partition-stats--?\d+-[0-9a-f-]{36}\.parquet")
"""Names of statistics files, which Spark gives to its own, too"""
_CUT_OFF_STATISTICS = re.compile(rf"\.({_STATISTICS.pattern})\.[0-9a-f]{{32}}")


def collect_garbage(
    table: Table,
    *,
    storage: StorageConfig,
    grace: timedelta = timedelta(hours=24),
    dry_run: bool = False,
    expiring: Collection[int] = (),
) -> GcReport:
    """Delete icepuffin's own files that no metadata references and that are older than the grace period.

    Considers only what icepuffin made: staged objects, `ann-*` and `theta-*` Puffin files, statistics files by what is
    written in them, manifest lists of derived snapshots under metadata/, and all that lies in its own folder. A file
    that a snapshot or statistics slot of the table names is never deleted, nor is the record of a build in vain while
    the table defines its index. A dry run may count snapshots in `expiring` as gone. Ages are by the store's own clock.
    Elsewhere, as under a location that the table had, files may be another table's, and stay.

    Raises TableFaultError, and what the catalog and the store raise.
    """
    reload_table(table)
    location = normalize(table.metadata.location).rstrip("/")
    store, current = open_storage(location, storage), folder_of(table)
    cut_off_ms = store.now_ms(f"{location}/{current}") - int(grace.total_seconds() * 1000)
    ours = [
        file
        for folder in FilesFolder
        for file in store.list(f"{location}/{folder}")
        if folder is current is FilesFolder.OWN or _is_ours(normalize(file.path).removeprefix(f"{location}/{folder}/"))
    ]
    reload_table(table)  # after the listing, so that files that were referenced meanwhile stay
    require_all_snapshots(table)
    staying = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in expiring]
    referenced = {normalize(snapshot.manifest_list) for snapshot in staying}
    # the paper's own binding, which other writers may use, names its file in a summary and nowhere else
    summaries = map(summary_of, staying)
    referenced |= {
        normalize(properties[STATISTICS_FILE_KEY]) for properties in summaries if STATISTICS_FILE_KEY in properties
    }
    referenced |= {
        normalize(entry.statistics_path) for entry in table.metadata.statistics if entry.snapshot_id not in expiring
    }
    # PyIceberg leaves the entries of snapshots that have expired
    in_slots = (partition_statistics_by_id(table.metadata).get(snapshot.snapshot_id) for snapshot in staying)
    referenced |= {normalize(entry.statistics_path) for entry in in_slots if entry}
    records = tuple(f"{location}/{current.staging}/{name}/{RECORDS}/" for name in defined_names(table))
    doomed, postponed, freed = [], 0, 0
    for file in ours:
        path = normalize(file.path)
        if path.removesuffix(SUFFIX) in referenced or path.startswith(records):
            continue
        if file.modified_ms > cut_off_ms:
            postponed += 1
            continue
        if _STATISTICS.fullmatch(file.path.rpartition("/")[2]) and not _is_created_by_icepuffin(file.path, storage):
            continue
        doomed.append(file.path)
        freed += file.size
    if not dry_run:
        store.delete_all(doomed)
    return GcReport(table_name(table), dry_run, tuple(sorted(doomed)), freed, postponed)


def _is_created_by_icepuffin(statistics_path: str, storage: StorageConfig) -> bool:
    """Whether a statistics file says that icepuffin made it."""
    if statistics_path.endswith(".parquet"):
        return own_statistics(statistics_path, storage) is not None
    try:
        footer = PuffinReader(open_storage(statistics_path, storage).source(statistics_path)).footer
    except (PuffinError, ObjectMissingError):
        return False
    return footer.properties.get("created-by", "").startswith(f"{CREATED_BY.split()[0]} ")


def _is_ours(name: str) -> bool:
    """Whether icepuffin gives such names, under metadata/: statistics files alone may be another engine's."""
    if name.startswith(("_icepuffin/", *_CUT_OFF)) or _CUT_OFF_STATISTICS.fullmatch(name):
        return True
    return (
        bool(_STATISTICS.fullmatch(name))
        or (name.startswith(OUR_FILES) and name.removesuffix(SUFFIX).endswith(".puffin"))
        or (name.startswith(OWN_LISTS) and name.endswith(".avro"))
    )
