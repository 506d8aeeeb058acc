"""The values of columns for conditions, by data file: as an index version keeps them."""

from collections.abc import Collection
from typing import Protocol

from pyiceberg.schema import Schema

from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ops.index.versions.version_reader import OpenVersion, read_attribute_blob, same_files
from icepuffin.ops.model import FileNumber, FileSlot, LiveFiles, StorageConfig
from icepuffin.ops.rows.attributes import is_by_name, reading_of
from icepuffin.puffin.blobs.attributes_blob import AttributeEntry

Entries = tuple[dict[FileNumber, AttributeEntry], dict[FileNumber, str]]
"""Entries of one column by live file, and the live files without one, with the reason"""


class ValueSource(Protocol):
    """Where the values of some columns come from, for the live files of a snapshot."""

    @property
    def field_ids(self) -> Collection[int]:
        """Field ids of the columns."""

    def entries(self, field_id: int) -> Entries:
        """The values of one column. Raises PuffinError, StorageError, DataFileError."""


class VersionValues:
    """The values that an index version keeps."""

    def __init__(self, opened: OpenVersion, live: LiveFiles, schema: Schema, storage: StorageConfig) -> None:
        self._opened = opened
        self._live = live
        self._schema = schema
        self._storage = storage

    @property
    def field_ids(self) -> Collection[int]:
        """See ValueSource."""
        return self._opened.attributes

    def entries(self, field_id: int) -> Entries:
        """See ValueSource."""
        missing = {FileNumber(number): "the version lacks them" for number in range(len(self._live.files))}
        entries: dict[FileNumber, AttributeEntry] = {}
        for entry in read_attribute_blob(self._opened, field_id, self._storage).entries:
            number = self._numbers.get(FileSlot(entry.slot))
            if number is None:
                continue
            missing[number] = self._unlike(entry, number, field_id)
            if not missing[number]:
                entries[number] = entry
                del missing[number]
        return entries, missing

    @cached_property
    def lacking(self) -> frozenset[FileNumber]:
        """Live files that the version has no values of, as it does not have the files: they have no node."""
        return frozenset(self._live.numbers).difference(self._numbers.values())

    @cached_property
    def _numbers(self) -> dict[FileSlot, FileNumber]:
        """File number of each file slot whose file is live in the snapshot."""
        same = same_files(self._opened, self._live)
        files = enumerate(self._opened.routing.files)
        return {FileSlot(slot): same[file.path] for slot, file in files if file.present and file.path in same}

    def _unlike(self, entry: AttributeEntry, number: FileNumber, field_id: int) -> str:
        """Reason why an entry cannot be used; empty where it can."""
        file = self._live.files[number]
        if entry.left_out:
            return entry.left_out
        if entry.rows != file.record_count:
            return "the file has another number of rows"
        if entry.reading != reading_of(self._schema, file, field_id, by_name=is_by_name(entry.reading)):
            return "the schema has changed since they were read"
        return ""
