"""Theta sketches on executors: tasks read data files or row groups, and return one image per file and column."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.theta import Hashes, ThetaAccumulator, union
from icepuffin.ops.catalog.row_deletes import deleted_in_group
from icepuffin.ops.datafile import column_names, open_data_file, reporting_damage
from icepuffin.ops.live_rows import read_live
from icepuffin.ops.model import LiveFile, StorageConfig
from icepuffin.ops.parquet import ParquetObject
from icepuffin.ops.storage import Storage, open_storage
from icepuffin.ops.tasks.theta_columns import update_from_arrow
from icepuffin.puffin.blobs.theta import ThetaSketch, encode

BATCH_ROWS = 1 << 16
_ROUNDS = 8
"""File parts that a worker gets one after the other."""

Sketch = tuple[int, Hashes]


@dataclass(frozen=True, slots=True)
class FilePart:
    """The live rows of `file` in the row groups whose number is `part` modulo `parts`."""

    file: LiveFile
    columns: tuple[tuple[int, str], ...]
    """(field id, type)"""
    part: int = 0
    parts: int = 1


@dataclass(frozen=True, slots=True)
class SketchTask:
    """Parts of data files that one executor sketches, some of them at a time."""

    storage: StorageConfig
    schema: Schema
    """The schema whose columns are meant; a file may have been written under an older one."""
    file_parts: tuple[FilePart, ...]
    threads: int = 1


@dataclass(frozen=True, slots=True)
class SketchResult:
    """The theta images of the parts of one file, in the order of their columns."""

    path: str
    images: tuple[bytes, ...]


def sketch_files(task: SketchTask) -> tuple[SketchResult, ...]:
    """Sketch the live rows of some file parts, streaming record batches; one result per file, in their order.

    Memory: a batch and 128 KiB per column and thread, 8 bytes per deleted row where deletes are shared or compare
    keys, and what is returned: 32 KiB per file and column at most.
    Raises DataFileError, SketchTypeError, EqualityDeletesError.
    """
    deleted = deleted_in_group(
        lambda path: open_storage(path, task.storage), (file_part.file for file_part in task.file_parts)
    )
    with ThreadPoolExecutor(task.threads) as pool:
        sketched = list(
            pool.map(lambda file_part: _sketch(task, file_part, deleted.get(file_part.file.path)), task.file_parts)
        )
    by_path: dict[str, list[list[Sketch]]] = {}
    for file_part, sketches in zip(task.file_parts, sketched, strict=True):
        by_path.setdefault(file_part.file.path, []).append(sketches)
    return tuple(
        SketchResult(path, tuple(encode(ThetaSketch(*union(parts))) for parts in zip(*parts_of_file, strict=True)))
        for path, parts_of_file in by_path.items()
    )


def plan_tasks(
    file_parts: Sequence[FilePart], storage: StorageConfig, schema: Schema, *, parallelism: int, threads: int
) -> list[SketchTask]:
    """Distribute file parts over tasks: several per worker, the largest first, so that none waits long for the last.

    `parallelism`: tasks that run at once. `threads`: of one task.
    """
    if not file_parts:
        return []
    count = (
        min(len(file_parts), parallelism * _ROUNDS) if parallelism > 1 else -(-len(file_parts) // (threads * _ROUNDS))
    )
    ordered = sorted(file_parts, key=lambda s: (-s.file.record_count // s.parts, s.file.path, s.part))
    return [SketchTask(storage, schema, tuple(ordered[number::count]), threads) for number in range(count)]


def _sketch(task: SketchTask, file_part: FilePart, deleted: npt.NDArray[np.int64] | None) -> list[Sketch]:
    accumulators = {field_id: ThetaAccumulator() for field_id, _ in file_part.columns}
    types = dict(file_part.columns)
    for batch in _batches(file_part, task.schema, open_storage(file_part.file.path, task.storage), deleted):
        for field_id, column in batch.items():
            update_from_arrow(accumulators[field_id], column, types[field_id])
    return [accumulators[field_id].result() for field_id, _ in file_part.columns]


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
        field_ids = [field_id for field_id, _ in file_part.columns]
        names = {field_id: str(schema.find_column_name(field_id)) for field_id in field_ids}
        for live in read_live(storage, file_part.file, schema, field_ids, batch_rows=BATCH_ROWS, deleted=deleted):
            yield {field_id: live.columns.column(name) for field_id, name in names.items()}


def _column_names(parquet: ParquetObject, file_part: FilePart, schema: Schema) -> dict[int, str] | None:
    """The file's own names of the part's columns; those that it lacks are null in every row and left out.

    None where a column that the file lacks has a value all the same: the general reader knows those.
    """
    name_of = column_names(parquet.schema, file_part.file, schema)
    constant = frozenset(field_id for field_id, _ in file_part.file.constants)
    field_ids = [field_id for field_id, _ in file_part.columns]
    lacking = [field_id for field_id in field_ids if field_id not in name_of]
    if any(i in constant or schema.find_field(i).initial_default is not None for i in lacking):
        return None
    return {field_id: name_of[field_id] for field_id in field_ids if field_id in name_of}
