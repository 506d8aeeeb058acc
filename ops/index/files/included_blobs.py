"""The values of included columns, and the words of columns of texts, in a new version: those of the base version's
files are copied or shared as they are, those of other files are read and staged. See docs/formats.md.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index.files.unread_columns import live_files_by_slot, unread_columns
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.versions.version_reader import location_of, read_included_blob
from icepuffin.ops.model import Action, FileSlot, ObjectRange, StorageConfig
from icepuffin.ops.rows.analyzers import analyzer_identity
from icepuffin.ops.rows.attributes import is_by_name, reading_of
from icepuffin.ops.storage import relative_to
from icepuffin.ops.tasks.included_task import IncludedPart, IncludedTask, stage_included, without_values
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.tasks.words_task import WordsTask, stage_words
from icepuffin.puffin.blobs.included_columns_blob import IncludedBlob, WordsBlob
from icepuffin.puffin.blobs.routing_blob import CoveredFile
from icepuffin.puffin.errors import PuffinError
from icepuffin.puffin.types import MAX_BLOB_BYTES

_TOO_LARGE = "its values are more than a blob may hold (2 GiB)"
_log = logging.getLogger(__name__)


ColumnKey = tuple[int, bool]
"""(field id, whether it is of the words of the column)"""
Values = tuple[int, FileSlot, bool]
"""(field id, file slot, whether of words) of the values of one column in one file"""
PackOffset = tuple[int, int]
"""(number of the pack, or 0 for the version's own file; offset)"""


@dataclass(frozen=True, slots=True)
class IncludedColumn:
    """The values of one column in all files of a version, by file slot."""

    field_id: int
    parts: tuple[IncludedPart, ...]
    of_words: bool
    """Whether they are words of the column"""


def kept_parts(plan: VersionPlan, storage: StorageConfig) -> dict[ColumnKey, tuple[IncludedPart, ...]]:
    """The base version's values, by column, of files that are live still, and would be read in the same way."""
    base = plan.base if plan.action is Action.REFRESHED else None
    if base is None:
        return {}
    live = {relative_to(file.path, plan.live.location): file for file in plan.live.files}
    added = {file.path for file in plan.added}
    kept = {}
    for field_id, of_words in _columns(plan):
        if field_id not in (base.texts if of_words else base.included):
            continue
        try:
            blob = read_included_blob(base, field_id, storage, of_words=of_words)
        except (PuffinError, IcepuffinError) as error:
            _log.warning("the values of column %s are read anew: %s", field_id, error)
            continue
        analyzer, parts = analyzer_identity(plan.definition.analyzer) if of_words else "", []
        for entry in blob.entries:
            covered, location = base.routing.files[entry.slot], location_of(base.bound, entry)
            file = live.get(covered.path) if covered.present else None
            if file is None or file.path in added or not location.path:
                continue
            by_name = is_by_name(entry.reading)
            if entry.reading == reading_of(plan.column_schema, file, field_id, by_name=by_name, analyzer=analyzer):
                parts.append(IncludedPart(field_id, entry, location))
        kept[field_id, of_words] = tuple(parts)
    return kept


def _columns(plan: VersionPlan) -> list[ColumnKey]:
    return [*((i, False) for i in plan.include_ids), *((i, True) for i in plan.text_ids)]


def included_columns(
    run: RunContext, plan: VersionPlan, kept: Mapping[ColumnKey, Sequence[IncludedPart]], files: Sequence[CoveredFile]
) -> list[IncludedColumn]:
    """The values of each column that the definition includes and the snapshot has, then the words of those of texts.
    `files`: the version's file table.

    `kept`: of `kept_parts`. Raises DataFileError, StorageError.
    """
    # files that are not added have the slots of the base version
    parts = {key: {FileSlot(part.entry.slot): part for part in kept.get(key, ())} for key in _columns(plan)}
    live, analyzer = live_files_by_slot(plan, files), plan.definition.analyzer
    for of_words in (False, True):
        unread = {field_id: slots for (field_id, words), slots in parts.items() if words is of_words}
        if not unread:
            continue
        groups, chosen = unread_columns(plan, live, unread, run.runner, of_words=of_words)
        sources = ((group, plan.column_schema, plan.staging_prefix, run.storage) for group in groups)
        watched = run.stage_progress("text" if of_words else "included")
        if of_words:
            tasks = [WordsTask(*source, analyzer) for source in sources]
            results = chosen.run(stage_words, tasks, label="read columns of texts", progress=watched)
        else:
            values = [IncludedTask(*source) for source in sources]
            results = chosen.run(stage_included, values, label="read included columns", progress=watched)
        for staged in results:
            for part in staged:
                is_too_large = part.entry.length > MAX_BLOB_BYTES
                own_part = without_values(part, _TOO_LARGE) if is_too_large else part
                parts[part.field_id, of_words][FileSlot(part.entry.slot)] = own_part
    return [
        IncludedColumn(field_id, tuple(slots[slot] for slot in sorted(slots)), of_words)
        for (field_id, of_words), slots in parts.items()
    ]


@dataclass(frozen=True, slots=True)
class ValuesBlob:
    """Values of one column that a version writes, as one blob."""

    field_id: int
    parts: tuple[IncludedPart, ...]
    of_words: bool

    @property
    def length(self) -> int:
        return sum(part.location.length for part in self.parts)

    @property
    def sources(self) -> tuple[ObjectRange, ...]:
        """The locations of the values now, in order; those that follow each other in one object are one."""
        joined: list[ObjectRange] = []
        for part in self.parts:
            location, last = part.location, joined[-1] if joined else None
            if last is not None and (last.path, last.offset + last.length) == (location.path, location.offset):
                joined[-1] = replace(last, length=last.length + location.length)
            else:
                joined.append(location)
        return tuple(joined)

    def offsets(self, pack: int, offset: int) -> dict[Values, PackOffset]:
        """The offsets of the values, where the blob begins at `offset` of a pack, or of the version's own file."""
        offsets = {}
        for part in self.parts:
            offsets[part.values] = pack, offset
            offset += part.location.length
        return offsets


P = TypeVar("P")


def blob_groups(pieces: Iterable[P], length_of: Callable[[P], int], most: int) -> Iterator[tuple[P, ...]]:
    """All pieces in order, as many at a time as have `most` bytes together; one alone may have more."""
    group, size = list[P](), 0
    for piece in pieces:
        if group and size + length_of(piece) > most:
            yield tuple(group)
            group, size = [], 0
        group.append(piece)
        size += length_of(piece)
    if group:
        yield tuple(group)


def values_blobs(columns: Sequence[IncludedColumn], is_written: Callable[[IncludedPart], bool]) -> list[ValuesBlob]:
    """The values that a version writes, by column and file slot; split where a blob would be too large."""
    return [
        ValuesBlob(column.field_id, parts, column.of_words)
        for column in columns
        for parts in blob_groups(filter(is_written, column.parts), lambda part: part.location.length, MAX_BLOB_BYTES)
    ]


def included_blob(column: IncludedColumn, offsets: Mapping[Values, PackOffset]) -> IncludedBlob:
    """The blob of a column whose values lie at `offsets`. Its length does not depend on these."""
    entries = tuple(part.entry.moved(*offsets.get(part.values, (0, 0))) for part in column.parts)
    return (WordsBlob if column.of_words else IncludedBlob)(column.field_id, entries)
