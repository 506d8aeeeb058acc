"""Executor side of theta sketches: one data file, or a share of its row groups, in; one image a column out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema

from ann_kernels.theta import ThetaAccumulator
from ops.datafile import DataFileError, StorageFile, read_live
from ops.model import LiveFile, StorageConfig
from ops.storage import ObjectMissingError, Storage, normalize, open_storage
from ops.storage.local import to_path
from ops.tasks.theta_columns import update_from_arrow
from puffin.blobs.theta import ThetaSketch, encode

BATCH_ROWS = 1 << 16
_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class SketchTask:
    """The live rows of `file` in the row groups whose number is `part` modulo `parts`."""

    storage: StorageConfig
    file: LiveFile
    schema: Schema
    """The schema whose columns are meant; the file may have been written under an older one."""
    columns: tuple[tuple[int, str], ...]
    """(field id, type)"""
    part: int = 0
    parts: int = 1


@dataclass(frozen=True, slots=True)
class SketchResult:
    """The theta images of one task, in the order of its columns."""

    path: str
    images: tuple[bytes, ...]


def sketch_file(task: SketchTask) -> SketchResult:
    """Sketch the columns of one data file's live rows, streaming record batches.

    Memory: one batch and a table of 128 KiB a column. Raises DataFileError, SketchTypeError, EqualityDeletesError.
    """
    accumulators = {field_id: ThetaAccumulator() for field_id, _ in task.columns}
    types = dict(task.columns)
    for batch in _batches(task, open_storage(task.file.path, task.storage)):
        for field_id, column in batch.items():
            update_from_arrow(accumulators[field_id], column, types[field_id])
    images = tuple(encode(ThetaSketch(*accumulators[field_id].result())) for field_id, _ in task.columns)
    return SketchResult(task.file.path, images)


def _batches(task: SketchTask, storage: Storage) -> Iterator[Mapping[int, pa.Array]]:
    """Columns by field id, of some rows at a time."""
    if not task.file.deletes:
        parquet = _open(task.file, storage)
        names = _column_names(parquet, task)
        if names is not None:
            groups = list(range(parquet.metadata.num_row_groups))[task.part :: task.parts]
            try:
                for batch in parquet.iter_batches(BATCH_ROWS, groups, list(names.values()), use_threads=False):
                    yield {field_id: batch.column(name) for field_id, name in names.items()}
            except pa.ArrowInvalid as error:
                raise DataFileError(f"{task.file.path} is damaged: {error}") from error
            return
    if task.part == 0:  # rows by position, or defaults: the general reader takes the file as a whole
        field_ids = [field_id for field_id, _ in task.columns]
        names = {field_id: str(task.schema.find_column_name(field_id)) for field_id in field_ids}
        for live in read_live(storage, task.file, task.schema, field_ids, batch_rows=BATCH_ROWS):
            yield {field_id: live.columns.column(name) for field_id, name in names.items()}


def _open(file: LiveFile, storage: Storage) -> pq.ParquetFile:
    if file.file_format.upper() != "PARQUET":
        raise DataFileError(f"{file.path} is {file.file_format}; only Parquet data files are read")
    try:
        if normalize(file.path).startswith("file:"):
            return pq.ParquetFile(to_path(file.path), memory_map=True)
        return pq.ParquetFile(pa.PythonFile(StorageFile(storage, file.path, file.size), mode="r"), pre_buffer=True)
    except (ObjectMissingError, FileNotFoundError) as error:
        raise DataFileError(f"{file.path} is missing, although the snapshot's manifests name it") from error
    except pa.ArrowInvalid as error:
        raise DataFileError(f"{file.path} is no readable Parquet file: {error}") from error


def _column_names(parquet: pq.ParquetFile, task: SketchTask) -> dict[int, str] | None:
    """The file's own names of the task's columns; those that it lacks are null in every row and left out.

    Without any field ids (imported files) columns go by the schema's names, as in the general reader. None where a
    column that the file lacks has a default: the general reader knows those.
    """
    found = {int(f.metadata[_FIELD_ID]): f.name for f in parquet.schema_arrow if _FIELD_ID in (f.metadata or {})}
    if not found:
        names = set(parquet.schema_arrow.names)
        found = {field.field_id: field.name for field in task.schema.fields if field.name in names}
    wanted = [field_id for field_id, _ in task.columns]
    if any(i not in found and task.schema.find_field(i).initial_default is not None for i in wanted):
        return None
    return {field_id: found[field_id] for field_id in wanted if field_id in found}
