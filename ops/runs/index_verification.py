"""Proof of the version at an index's tag: its whole file is read, and compared with the table."""

from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import tagged_version
from icepuffin.ops.binding.commit import reload_table
from icepuffin.ops.catalog.read_restrictions import require_table
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.index.definitions.ddl import load_definition, only_index
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.search.errors import IndexUnavailableError
from icepuffin.ops.table.snapshots import table_name
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext, StageProgress

if TYPE_CHECKING:
    from icepuffin.ops.index.verify.integrity import Integrity


def verify(
    table: Table,
    index: str | None = None,
    *,
    storage: StorageConfig | None = None,
    threads: int | None = None,
    progress: StageProgress | None = None,
) -> "Integrity":
    """Read the whole file of an index, and compare it with the table. Writes nothing.

    Each shard is compared with its checksum and decoded; the addresses and vectors of all nodes are compared with all
    live rows of the version's snapshot; some rows of each shard are searched by their own vectors.

    Parameters
    ----------
    table : pyiceberg.table.Table
        The table. It is read anew from its catalog first.
    index : str, optional
        Name of the index. Default: the only one that the table has.
    storage, threads : optional
        As for `refresh`.
    progress : callable, optional
        Called with (stage, tasks done, tasks in all).

    Returns
    -------
    Integrity
        `faults`, none of a sound version, and `remedy`, the command that makes a damaged one anew; `path`, `shards`,
        `rows` that were compared, `bytes_read`, `self_search`.

    Raises
    ------
    DefinitionError
        There is no such index, or there are several and none was named.
    IndexUnavailableError
        The index has no version yet.
    NoRoomError
        A large shard cannot be read in this process, which is no fault of the version.
    ValueError
        `threads` is under 1.

    Examples
    --------
    >>> report = icepuffin.verify(table)
    >>> report.faults, report.rows
    ((), 6000)
    """
    require_table(table, "verify")
    runner = LocalRunner(threads)
    reload_table(table)
    name = load_definition(table, only_index(table) if index is None else index).name
    return verify_index(RunContext(table, storage or storage_of(table), runner, progress), name)


def verify_index(run: RunContext, index: str) -> "Integrity":
    """Check the version at the tag of an index. Raises IndexUnavailableError, and what `check_integrity` raises."""
    table, version = table_name(run.table), tagged_version(run.table, index)
    if version is None:
        raise IndexUnavailableError(
            f"{table} has no version at the tag of index {index}; "
            f"make one with: icepuffin refresh {quote(table)} --index {index}"
        )
    from icepuffin.ops.index.verify.integrity import check_integrity, remedy  # noqa: PLC0415  numba, not needed above

    report = check_integrity(run, version)
    return replace(report, remedy=remedy(table, index, version, report)) if report.faults else report
