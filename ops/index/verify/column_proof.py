"""Proof that values of columns in a version, for conditions and for answers, are those of the data files: all of them
are read again.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from pyiceberg.schema import Schema

from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.index.versions.version_reader import location_of
from icepuffin.ops.model import FileSlot, LiveFile
from icepuffin.ops.rows.analyzers import ANALYZERS, analyzer_identity
from icepuffin.ops.rows.attributes import analyzer_of, is_by_name, reading_of
from icepuffin.ops.tasks.attribute_task import AttributesTask, ColumnsOfFile, read_attributes
from icepuffin.ops.tasks.included_task import IncludedCheck, IncludedPart, PartToCheck, check_included
from icepuffin.ops.tasks.task_runner import RunContext, balanced_groups, small_work_runner
from icepuffin.ops.tasks.words_task import check_words
from icepuffin.puffin.blobs.attributes_blob import (
    AttributeBlob,
    AttributeEntry,
    FileTokens,
    FileValues,
    lists_of,
    values_of,
)
from icepuffin.puffin.blobs.included_columns_blob import IncludedBlob, IncludedEntry, WordsEntry


def attribute_faults(
    run: RunContext, blobs: Sequence[AttributeBlob], files: Mapping[FileSlot, LiveFile], schemas: Sequence[Schema]
) -> Iterator[str]:
    """One line on each column of a file whose values are not those of the file.

    `files`: those of the version's snapshot. `schemas`: those that the columns may have been read by. What would be
    read in another way today is not used, so it is not compared. Raises DataFileError, StorageError, PuffinError.
    """
    entries: dict[tuple[int, int], tuple[AttributeBlob, AttributeEntry]] = {}
    columns: dict[tuple[int, FileSlot], list[int]] = {}
    for blob in blobs:
        for entry in blob.entries:
            slot = FileSlot(entry.slot)
            file = None if entry.left_out else files.get(slot)
            reading = (number for number, schema in enumerate(schemas) if _reads_so(schema, file, blob.field_id, entry))
            if (number := next(reading, None)) is not None:
                entries[entry.slot, blob.field_id] = blob, entry
                columns.setdefault((number, slot), []).append(blob.field_id)
    tasks = []
    by_schema: list[list[ColumnsOfFile]] = [[] for _ in schemas]
    for (number, slot), ids in columns.items():
        by_schema[number].append(ColumnsOfFile(slot, files[slot], tuple(ids)))
    size = sum(one.size(schema) for blocks, schema in zip(by_schema, schemas, strict=True) for one in blocks)
    runner = small_work_runner(run.runner, size)
    for blocks, schema in zip(by_schema, schemas, strict=True):
        groups = balanced_groups(blocks, runner, lambda one: (one.slot, one.file.record_count * len(one.field_ids)))
        tasks += [AttributesTask(group, schema, run.storage) for group in groups]
    for part in runner.run(read_attributes, tasks, label="read columns for conditions"):
        for field_id, read in part:
            blob, kept = entries[read.slot, field_id]
            if not _equal(kept, read, of_lists=blob.of_lists):
                yield f"{files[FileSlot(read.slot)].path}: the values of column {field_id} for conditions are others"


def included_faults(
    run: RunContext,
    version: DerivedVersion,
    blobs: Sequence[IncludedBlob],
    files: Mapping[FileSlot, LiveFile],
    schemas: Sequence[Schema],
) -> Iterator[str]:
    """One line on each column of a file whose stored values are damaged, or not those of the file.

    `files`: those of the version's snapshot. `schemas`: those that the columns may have been read by. What would be
    read in another way today is not used: it is read and decoded, and not compared. Raises DataFileError, StorageError.
    """
    parts = []
    for blob in blobs:
        for entry in blob.entries:
            if entry.left_out:
                continue
            part = IncludedPart(blob.field_id, entry, location_of(version, entry))
            if not part.location.path:
                yield f"column {blob.field_id}: the pack of the values of file slot {entry.slot} is gone"
                continue
            file = files.get(FileSlot(entry.slot))
            schema = next((schema for schema in schemas if _reads_so(schema, file, blob.field_id, entry)), None)
            parts.append(PartToCheck(part, None if schema is None else file, schema))
    chosen = small_work_runner(run.runner, sum(part.part.entry.length for part in parts))
    for of_words, check in ((False, check_included), (True, check_words)):
        of_kind = [part for part in parts if isinstance(part.part.entry, WordsEntry) is of_words]
        groups = balanced_groups(of_kind, chosen, lambda part: (part.part.entry.slot, part.part.entry.length))
        tasks = [IncludedCheck(group, run.storage) for group in groups]
        for faults in chosen.run(check, tasks, label="read columns of texts" if of_words else "read included columns"):
            yield from faults


def _reads_so(schema: Schema, file: LiveFile | None, field_id: int, entry: AttributeEntry | IncludedEntry) -> bool:
    """Whether a file's column would be read by a schema as its values were; never, where there is no file."""
    if file is None or field_id not in {field.field_id for field in schema.fields}:
        return False
    analyzer = ""
    if isinstance(entry, WordsEntry):
        name = analyzer_of(entry.reading).partition("/")[0]
        if name not in ANALYZERS:
            return False
        analyzer = analyzer_identity(name)
    by_name = is_by_name(entry.reading)
    return entry.reading == reading_of(schema, file, field_id, by_name=by_name, analyzer=analyzer)


def _equal(kept: AttributeEntry, read: AttributeEntry, *, of_lists: bool) -> bool:
    """Whether all rows have the values that were read now. Another release may have numbered them differently."""
    if kept.rows != read.rows or read.left_out:
        return kept.rows == read.rows
    if bytes(kept.stored) == bytes(read.stored):
        return True
    if of_lists:
        one, other = lists_of(kept), lists_of(read)
        return np.array_equal(one.states, other.states) and _rows_by_element(one) == _rows_by_element(other)
    return _same_values(values_of(kept), values_of(read))


def _same_values(one: FileValues, other: FileValues) -> bool:
    pairs = np.unique(np.stack([one.codes.astype(np.int64), other.codes.astype(np.int64)]), axis=1)
    return all(_value(one, first) == _value(other, second) for first, second in pairs.T.tolist())


def _rows_by_element(lists: FileTokens) -> dict[bytes | None, bytes]:
    """Rows whose lists have an element, as bytes, by the element."""
    parts = np.split(lists.rows, lists.starts[1:-1])
    return {_value(lists.tokens, code): parts[code].tobytes() for code in range(lists.tokens.count)}


def _value(values: FileValues, code: int) -> bytes | None:
    """The value of a code, as bytes; None for null."""
    if code == values.count:
        return None
    if values.offsets is None:
        return values.values[code * values.width : (code + 1) * values.width]
    return values.values[int(values.offsets[code]) : int(values.offsets[code + 1])]
