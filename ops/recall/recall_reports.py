"""Reports of live recall: what processes that search have measured, in a folder that others read.

Each process writes one small JSON object per index version, and a newer one in its place while it goes on measuring.
Names are never given twice, as the stores demand: the newer object comes before the older one goes. Objects with other
names belong to somebody else: they are neither read nor deleted.
"""

import json
import os
import re
import time
import uuid
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from icepuffin.ops.errors import FileDamageError
from icepuffin.ops.model import ObjectInfo, SnapshotId, StorageConfig
from icepuffin.ops.recall.confidence import confidence_interval
from icepuffin.ops.storage import ObjectMissingError, Storage, StorageError, normalize, open_storage

_FORMAT = 1
_READINGS = 5
"""Attempts to read reports of which some are replaced meanwhile"""
_READ_AT_ONCE = 16
_LONGEST_WAIT = 3600.0
"""Most seconds between two attempts to write reports that cannot be written"""
_NAME = re.compile(r"(?P<version>\d{1,19})/(?P<reader>[0-9a-f]{32})-(?P<number>\d{1,18})\.json")


class RecallReportError(FileDamageError):
    """Raised for a report that this release cannot read; the message names it."""


@dataclass(frozen=True, slots=True)
class ReportedRecall:
    """Recall of the live queries that an index version has answered, in all processes that report it."""

    index_snapshot_id: SnapshotId
    readers: int
    """Processes that have reported, those that have ended since included"""
    queries: int
    """Queries that were answered exactly, too: the size of the sample"""
    recall: float | None
    """Mean share of the k nearest rows that an answer had; None without a sample"""
    low: float
    """Lower end of the 95 % confidence interval of `recall`; 0 without a sample"""
    high: float
    """Upper end of the 95 % confidence interval of `recall`; 1 without a sample"""
    left_out: int
    """Drawn queries that were not measured"""


@dataclass(frozen=True, slots=True)
class _Report:
    """One stored report, by its path `<table uuid>/<index>/<version>/<reader>-<number>.json`."""

    stored: ObjectInfo
    version: SnapshotId
    reader: str
    number: int


@dataclass(frozen=True, slots=True)
class _Content:
    queries: int
    recall_sum: float
    left_out: int


def require_absolute(folder: str) -> None:
    """Raises StorageError for a folder that each process would look for in its own working directory."""
    if not folder.startswith("/") and not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", folder):
        raise StorageError(f"recall_reports is {folder!r}; give a location such as s3://bucket/recall or /srv/recall")


class RecallReports:
    """The reports about one table in a folder, which tables may share. Raises StorageError for a folder of no store."""

    def __init__(self, folder: str, storage: StorageConfig, table_uuid: uuid.UUID) -> None:
        require_absolute(folder)
        self._root = f"{normalize(folder).rstrip('/')}/{table_uuid}"
        # a lease of its own: a refusal here is no sign that the keys for the table's files are refused
        vended = storage.vended and replace(storage.vended, who=f"{storage.vended.who} recall reports")
        self._config = replace(storage, vended=vended)
        _ = self._storage

    @property
    def _storage(self) -> Storage:
        """The store of this process: clients do not survive a fork."""
        return open_storage(self._root, self._config)

    def read(self, index: str, versions: Collection[SnapshotId]) -> dict[SnapshotId, ReportedRecall]:
        """What was reported of these versions of an index; those without a report are left out.

        Raises RecallReportError, StorageError.
        """
        for _ in range(_READINGS - 1):
            try:
                return self._read(index, versions)
            except ObjectMissingError:  # a newer report took its place meanwhile
                continue
        return self._read(index, versions)

    def _read(self, index: str, versions: Collection[SnapshotId]) -> dict[SnapshotId, ReportedRecall]:
        newest: dict[tuple[SnapshotId, str], _Report] = {}
        for report in self._reports(index):
            if report.version in versions:
                key = report.version, report.reader
                newest[key] = max(newest.get(key, report), report, key=lambda item: item.number)
        with ThreadPoolExecutor(_READ_AT_ONCE) as readers:
            contents = list(readers.map(self._content, newest.values()))
        by_version: dict[SnapshotId, list[tuple[_Report, _Content]]] = {}
        for report, content in zip(newest.values(), contents, strict=True):
            by_version.setdefault(report.version, []).append((report, content))
        return {version: _joined(version, reports) for version, reports in by_version.items()}

    def _content(self, report: _Report) -> _Content:
        stored = report.stored
        try:
            document = json.loads(self._storage.read_range(stored.path, 0, stored.size))
            content = _Content(document["queries"], float(document["recall_sum"]), document["left_out"])
            are_counts = all(type(count) is int and count >= 0 for count in (content.queries, content.left_out))
            if document["format"] != _FORMAT or not are_counts or not 0 <= content.recall_sum <= content.queries:
                raise ValueError(document)  # noqa: TRY301
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise RecallReportError(
                f"{stored.path} is no report of live recall that this release reads: delete it, or install the "
                "release that wrote it"
            ) from error
        return content

    def of_other_versions(self, versions: Collection[int], *, older_than_ms: int) -> Iterator[ObjectInfo]:
        """Reports about versions that are not among `versions`, and that nobody has written to since a time."""
        for report in self._reports(""):
            if report.version not in versions and report.stored.modified_ms < older_than_ms:
                yield report.stored

    def delete(self, *paths: str) -> None:
        """Delete reports; one that is gone already is no error."""
        self._storage.delete_all(paths)

    def now_ms(self) -> int:
        """The store's time, milliseconds since the epoch, by the clock that dates reports."""
        return self._storage.now_ms(self._root)

    def _reports(self, index: str) -> Iterator[_Report]:
        """The reports about one index; about all of the table where `index` is empty."""
        folder = f"{self._root}/{index}".rstrip("/")
        for stored in self._storage.list(folder):
            below = normalize(stored.path).removeprefix(f"{self._root}/").split("/", 1)
            if len(below) == 2 and (name := _NAME.fullmatch(below[1])):
                yield _Report(stored, SnapshotId(int(name["version"])), name["reader"], int(name["number"]))

    def create(self, name: str, document: dict[str, float]) -> str:
        """Write a report under a free name within the folder of the table; returns its path."""
        path = f"{self._root}/{name}"
        self._storage.create(path, json.dumps({"format": _FORMAT, **document}).encode())
        return path


def _joined(version: SnapshotId, reports: list[tuple[_Report, _Content]]) -> ReportedRecall:
    queries = sum(content.queries for _, content in reports)
    recall = sum(content.recall_sum for _, content in reports) / queries if queries else None
    low, high = confidence_interval(recall or 0.0, queries)
    left_out = sum(content.left_out for _, content in reports)
    return ReportedRecall(version, len(reports), queries, recall, low, high, left_out)


class RecallReporter:
    """Writes the reports of one process about one index, once per `interval` seconds at most. For one thread.

    A process that is forked reports under a name of its own.
    """

    def __init__(self, reports: RecallReports, index: str, *, interval: float = 60.0) -> None:
        self._reports = reports
        self._index = index
        self._interval = self._wait = interval
        self._due = 0.0
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._reader = uuid.uuid4().hex
        self._number = 0
        self._paths: dict[SnapshotId, str] = {}

    @property
    def seconds_until_due(self) -> float:
        """Seconds until the next report; 0 where it may be written now."""
        return max(0.0, self._due - time.monotonic())

    def finished(self, *, written: bool) -> None:
        """Begin the wait for the next report: longer each time, up to an hour, while none can be written."""
        self._wait = self._interval if written else min(2 * self._wait, max(self._interval, _LONGEST_WAIT))
        self._due = time.monotonic() + self._wait

    def report(self, version: SnapshotId, *, queries: int, recall_sum: float, left_out: int) -> None:
        """Write what was measured of a version until now. Raises StorageError."""
        if self._process != os.getpid():
            self._begin()
        self._number += 1
        path = self._reports.create(
            f"{self._index}/{version}/{self._reader}-{self._number}.json",
            {"queries": queries, "recall_sum": recall_sum, "left_out": left_out},
        )
        older = self._paths.get(version)
        self._paths[version] = path
        if older is not None:
            self._reports.delete(older)
