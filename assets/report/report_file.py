"""The file of a report: written whole or not at all, and in place of nothing but a report."""

import uuid
from pathlib import Path

from pyiceberg.table import Table

from icepuffin.assets.report.page_style import GENERATOR
from icepuffin.assets.report.report_page import report_page
from icepuffin.assets.report.table_report import TableReport, table_report
from icepuffin.assets.spec import TableSpec
from icepuffin.assets.table_settings import TableSettings
from icepuffin.ops.binding.commit import reload_table
from icepuffin.ops.catalog.read_restrictions import require_table
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.errors import ArgumentError, faults_of
from icepuffin.ops.index.definitions.ddl import list_definitions
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.table.snapshots import table_name

_HEAD_BYTES = 400


class ReportFileError(ArgumentError):
    """Raised for a file that is no report or cannot be written, and for a folder that is not there."""


def write_report(
    table: Table, path: str | Path, *, ref: str = "main", storage: StorageConfig | None = None
) -> TableReport:
    """Write a page on a table, as one HTML file: snapshots, index versions, recall by cost, shards, sizes, distinct
    values, and what is behind.

    Reads metadata, statistics files of more than distinct values, and of each index its map and the columns in
    `filters`, and no vectors. The page needs no other file and no network.

    Parameters
    ----------
    table : pyiceberg.table.Table
        The table. It is read anew from its catalog first.
    path : str or Path
        The file. A report that is there is replaced; until then readers have the whole of the old one.
    ref : str
        Branch or tag that the indexes follow.
    storage : StorageConfig, optional
        How files are reached. Default: what the catalog says and vends.

    Returns
    -------
    TableReport
        What the page says: `shortfalls` has what is behind, each with the command that mends it.

    Raises
    ------
    ArgumentError
        A file that is no report has the name, there is no such folder, or the file cannot be written.
    TableFaultError
        The metadata has something that nothing here is made for.

    Examples
    --------
    >>> icepuffin.write_report(table, "report.html").shortfalls
    ()
    """
    require_table(table, "write_report")
    require_folder(Path(path))
    reload_table(table)
    settings = TableSettings(catalog=table.catalog.name, name=table_name(table), watched_refs=(ref,))
    with faults_of(settings.name):
        report = table_report(table, TableSpec(settings, list_definitions(table)), storage or storage_of(table))
    write_page(report, Path(path))
    return report


def require_folder(path: Path) -> None:
    """Raises ReportFileError where a page cannot be written, or would replace something else than a report."""
    if not path.absolute().parent.is_dir():
        raise ReportFileError(f"{path}: there is no folder {path.absolute().parent}; make it, or name another file")
    if path.is_dir():
        raise ReportFileError(f"{path} is a folder: name a file in it")
    if path.exists() and not (path.is_file() and _is_report(path)):
        raise ReportFileError(f"{path} is there and is no report: delete it, or name another file")


def _is_report(path: Path) -> bool:
    with path.open("rb") as file:
        return GENERATOR.encode() in file.read(_HEAD_BYTES)


def write_page(report: TableReport, path: Path) -> None:
    """Write the page whole or not at all: a file that was there stays until then."""
    path = path.resolve()  # a link stays one
    aside = path.with_name(f".{uuid.uuid4().hex}{path.suffix}")
    try:
        aside.write_text(report_page(report), encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        raise ReportFileError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        aside.unlink(missing_ok=True)
