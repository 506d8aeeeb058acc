"""Sketches on executors: tasks read data files or row groups, and return images of files and of unions."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema

from icepuffin.ops.model import LiveFile, StorageConfig
from icepuffin.ops.rows.datafile import column_names, open_data_file, reporting_damage
from icepuffin.ops.rows.parquet import ParquetObject
from icepuffin.ops.storage import Storage, open_storage
from icepuffin.ops.table.live_rows import read_live
from icepuffin.ops.table.row_deletes import deleted_in_group
from icepuffin.ops.tasks.sketches.accumulators import Accumulator, UnitedSketches, union_of
from icepuffin.ops.tasks.sketches.images import Sketch, encode
from icepuffin.ops.tasks.sketches.statistic import Kind, Statistic, StatisticKey, field_ids_of

BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class FilePart:
    """The live rows of `file` in the row groups whose number is `part` modulo `parts`."""

    file: LiveFile
    statistics: tuple[Statistic, ...]
    part: int = 0
    parts: int = 1


@dataclass(frozen=True, slots=True)
class SketchTask:
    """Parts of data files that one executor sketches, some of them at a time."""

    storage: StorageConfig
    schema: Schema
    """The schema whose columns are meant; a file may have been written under an older one."""
    file_parts: tuple[FilePart, ...]
    """Parts of files, those of one file side by side"""
    threads: int = 1
    together: int | None = None
    """Number of parts whose deletes are read, and are in memory, at once; None: all"""
    image_bytes: int | None = None
    """Bytes of the images of single files that are returned, at most; None: all"""


@dataclass(frozen=True, slots=True)
class FileImages:
    """The images of the parts of one file, in the order of their statistics."""

    path: str
    images: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SketchResult:
    """The images of a task."""

    files: tuple[FileImages, ...]
    """Images of single files"""
    others: Mapping[StatisticKey, bytes]
    """Image of the union of all other files of the task, by statistic"""


def sketch_files(task: SketchTask) -> SketchResult:
    """Sketch the live rows of some file parts, streaming record batches.

    The first files, in the order of the task, are returned one by one as far as `image_bytes` admits, the others as one
    union per statistic.
    Memory: a batch and an accumulator per statistic and thread, and one per statistic more, 8 bytes per deleted row
    where deletes are shared or compare keys, and what is returned: 32 KiB per file and statistic at most.
    Raises DataFileError, SketchTypeError, EqualityDeletesError.
    """
    files, others, room = [], UnitedSketches(), task.image_bytes
    for path, sketched in groupby(_sketched(task), key=lambda pair: pair[0].file.path):
        file_parts, sketches_of_parts = zip(*sketched, strict=True)
        keys = [statistic.key for statistic in file_parts[0].statistics]
        sketches = [union_of(key, parts) for key, parts in zip(keys, zip(*sketches_of_parts, strict=True), strict=True)]
        images = tuple(map(encode, sketches))
        size = sum(map(len, images))
        if room is None or size <= room:
            files.append(FileImages(path, images))
            room = None if room is None else room - size
        else:
            for key, sketch in zip(keys, sketches, strict=True):
                others.add(key, sketch)
    return SketchResult(tuple(files), {key: encode(sketch) for key, sketch in others.unions().items()})


def _sketched(task: SketchTask) -> Iterator[tuple[FilePart, list[Sketch]]]:
    """The parts, each with its sketches, in the order of its statistics."""
    together = task.together or max(1, len(task.file_parts))
    for start in range(0, len(task.file_parts), together):
        file_parts = task.file_parts[start : start + together]
        deleted = deleted_in_group(
            lambda path: open_storage(path, task.storage), (file_part.file for file_part in file_parts)
        )
        with ThreadPoolExecutor(task.threads) as pool:
            sketches = pool.map(partial(_sketch_part, task, deleted), file_parts)
            yield from zip(file_parts, sketches, strict=True)


def _sketch_part(
    task: SketchTask, deleted_by_path: Mapping[str, npt.NDArray[np.int64]], file_part: FilePart
) -> list[Sketch]:
    deleted = deleted_by_path.get(file_part.file.path)
    accumulators = [(Accumulator(statistic.key), statistic.columns) for statistic in file_part.statistics]
    for batch in _batches(file_part, task.schema, open_storage(file_part.file.path, task.storage), deleted):
        for accumulator, columns in accumulators:
            if columns[0].field_id in batch:
                accumulator.update([batch[c.field_id] for c in columns], [c.type for c in columns])
    return [accumulator.result() for accumulator, _ in accumulators]


def _batches(
    file_part: FilePart, schema: Schema, storage: Storage, deleted: npt.NDArray[np.int64] | None
) -> Iterator[Mapping[int, pa.Array]]:
    """Columns by field id, of some rows at a time."""
    if not file_part.file.deletes:
        parquet = open_data_file(storage, file_part.file)
        names = _column_names(parquet, file_part, schema)
        if names is not None:
            groups = list(range(parquet.metadata.num_row_groups))[file_part.part :: file_part.parts]
            with reporting_damage(file_part.file):
                for batch in parquet.batches(list(names.values()), batch_rows=BATCH_ROWS, groups=groups):
                    yield {field_id: batch.column(name) for field_id, name in names.items()}
            return
    if file_part.part == 0:  # rows by position, or defaults: the general reader takes the file as a whole
        field_ids = sorted(field_ids_of(file_part.statistics))
        names = {field_id: str(schema.find_column_name(field_id)) for field_id in field_ids}
        for live in read_live(storage, file_part.file, schema, field_ids, batch_rows=BATCH_ROWS, deleted=deleted):
            yield {field_id: live.columns.column(name) for field_id, name in names.items()}


def _column_names(parquet: ParquetObject, file_part: FilePart, schema: Schema) -> dict[int, str] | None:
    """The file's own names of the part's columns; those that it lacks are null in every row and left out.

    None where a column that the file lacks has a value all the same, or its nulls count, as in a joint count: the
    general reader knows those.
    """
    name_of = column_names(parquet.schema, file_part.file, schema)
    constant = frozenset(field_id for field_id, _ in file_part.file.constants)
    field_ids = sorted(field_ids_of(file_part.statistics))
    lacking = {field_id for field_id in field_ids if field_id not in name_of}
    if any(
        statistic.kind is Kind.JOINT and lacking.intersection(statistic.field_ids) for statistic in file_part.statistics
    ):
        return None
    if any(i in constant or schema.find_field(i).initial_default is not None for i in lacking):
        return None
    return {field_id: name_of[field_id] for field_id in field_ids if field_id in name_of}
