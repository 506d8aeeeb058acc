"""Proof that the values of included columns are those of the data files: all of them are read again."""

from collections.abc import Iterator, Mapping, Sequence

from pyiceberg.schema import Schema

from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.index.versions.version_reader import place_of
from icepuffin.ops.model import FileSlot, LiveFile
from icepuffin.ops.rows.attributes import is_by_name, reading_of
from icepuffin.ops.tasks.included_task import IncludedCheck, IncludedPart, PartToCheck, check_included
from icepuffin.ops.tasks.task_runner import RunContext, balanced_groups, small_work_runner
from icepuffin.puffin.blobs.included_columns_blob import IncludedBlob


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
            part = IncludedPart(blob.field_id, entry, place_of(version, entry))
            if not part.place.path:
                yield f"column {blob.field_id}: the pack of the values of file slot {entry.slot} is gone"
                continue
            file = files.get(FileSlot(entry.slot))
            schema = None if file is None else _schema_of(part, file, schemas)
            parts.append(PartToCheck(part, None if schema is None else file, schema))
    chosen = small_work_runner(run.runner, sum(part.part.entry.length for part in parts))
    groups = balanced_groups(parts, chosen, lambda part: (part.part.entry.slot, part.part.entry.length))
    tasks = [IncludedCheck(group, run.storage) for group in groups]
    for faults in chosen.run(check_included, tasks, label="read included columns"):
        yield from faults


def _schema_of(part: IncludedPart, file: LiveFile, schemas: Sequence[Schema]) -> Schema | None:
    """The first schema by which a file's column would be read as it was; None where there is none."""
    reading, field_id = part.entry.reading, part.field_id
    for schema in schemas:
        if field_id in {field.field_id for field in schema.fields} and reading == reading_of(
            schema, file, field_id, by_name=is_by_name(reading)
        ):
            return schema
    return None
