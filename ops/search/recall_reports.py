"""Reports of live recall: what processes that search have measured, in a folder that others read.

Each process writes one small JSON object per index version, and a newer one in its place while it goes on measuring.
Names are never given twice, as the stores demand: the newer object comes before the older one goes.
"""

import json
import time
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from icepuffin.ops.confidence import confidence_interval
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.model import ObjectInfo, SnapshotId, StorageConfig
from icepuffin.ops.storage import ObjectMissingError, normalize, open_storage

_FORMAT = 1
_READINGS = 5
"""Attempts to read reports of which some are replaced meanwhile"""


class RecallReportError(IcepuffinError):
    """Raised for an object among the reports that is none; the message names it."""


@dataclass(frozen=True, slots=True)
class ReportedRecall:
    """Recall of the live queries that an index version has answered, in all processes that report it."""

    index_snapshot_id: SnapshotId
    readers: int
    """Processes that have reported, those that have ended since included"""
    queries: int
    """Queries that were answered exactly, too: the size of the sample"""
    recall: float
    """Mean share of the k nearest rows that an answer had"""
    low: float
    """Lower end of the 95 % confidence interval of `recall`"""
    high: float
    """Upper end of the 95 % confidence interval of `recall`"""
    left_out: int
    """Drawn queries that were not measured"""
    newest_ms: int
    """Time of the newest report by the store's clock, milliseconds since the epoch"""


@dataclass(frozen=True, slots=True)
class _Report:
    """One stored report, by its path `<table uuid>/<index>/<version>/<reader>-<number>.json`."""

    stored: ObjectInfo
    version: SnapshotId
    reader: str
    number: int


class RecallReports:
    """The reports about one table in a folder.

    `folder` may be shared by tables. Raises StorageError for a store that is not supported.
    """

    def __init__(self, folder: str, storage: StorageConfig, table_uuid: uuid.UUID) -> None:
        self._root = f"{normalize(folder).rstrip('/')}/{table_uuid}"
        self._storage = open_storage(self._root, storage)

    def read(self, index: str, versions: Collection[SnapshotId]) -> dict[SnapshotId, ReportedRecall]:
        """What was measured of these versions of an index; those without a measured query are left out.

        Raises RecallReportError, StorageError.
        """
        for attempt in range(_READINGS):
            try:
                return self._read(index, versions)
            except ObjectMissingError:  # a newer report took its place meanwhile
                if attempt == _READINGS - 1:
                    raise
        raise AssertionError

    def _read(self, index: str, versions: Collection[SnapshotId]) -> dict[SnapshotId, ReportedRecall]:
        newest: dict[tuple[SnapshotId, str], _Report] = {}
        for report in self._reports(f"{self._root}/{index}"):
            if report.version in versions:
                key = report.version, report.reader
                newest[key] = max(newest.get(key, report), report, key=lambda item: item.number)
        by_version: dict[SnapshotId, list[_Report]] = {}
        for report in newest.values():
            by_version.setdefault(report.version, []).append(report)
        reported = ((version, self._joined(version, reports)) for version, reports in by_version.items())
        return {version: recall for version, recall in reported if recall.queries}

    def _joined(self, version: SnapshotId, reports: list[_Report]) -> ReportedRecall:
        queries, recall_sum, left_out = 0, 0.0, 0
        for report in reports:
            of_process = self._content(report.stored)
            queries += of_process[0]
            recall_sum += of_process[1]
            left_out += of_process[2]
        recall = recall_sum / queries if queries else 0.0
        low, high = confidence_interval(recall, queries)
        newest_ms = max(report.stored.modified_ms for report in reports)
        return ReportedRecall(version, len(reports), queries, recall, low, high, left_out, newest_ms)

    def _content(self, stored: ObjectInfo) -> tuple[int, float, int]:
        """(measured queries, sum of their recall, drawn queries that were not measured)."""
        try:
            document = json.loads(self._storage.read_range(stored.path, 0, stored.size))
            queries, recall_sum = int(document["queries"]), float(document["recall_sum"])
            if document["format"] != _FORMAT or not 0 <= recall_sum <= queries:
                raise ValueError(document)  # noqa: TRY301
            return queries, recall_sum, int(document["left_out"])
        except (ValueError, KeyError, TypeError) as error:
            raise _no_report(stored) from error

    def of_other_versions(self, versions: Collection[int], *, older_than_ms: int) -> Iterator[ObjectInfo]:
        """Objects about versions that are not among `versions`, and that nobody has written to since a time."""
        for stored in self._storage.list(self._root):
            version = normalize(stored.path).split("/")[-2]
            if not version.isdecimal():
                raise _no_report(stored)
            if int(version) not in versions and stored.modified_ms < older_than_ms:
                yield stored

    def delete(self, path: str) -> None:
        """Delete a report; one that is gone already is no error."""
        self._storage.delete(path)

    def now_ms(self) -> int:
        """The store's time, by the clock of `ReportedRecall.newest_ms`."""
        return self._storage.now_ms(self._root)

    def _reports(self, folder: str) -> Iterator[_Report]:
        """The reports under a folder, without those that are being written."""
        for stored in self._storage.list(folder):
            version, name = normalize(stored.path).split("/")[-2:]
            if name.startswith("."):
                continue
            reader, dash, number = name.removesuffix(".json").partition("-")
            if not (dash and number.isdecimal() and version.isdecimal()):
                raise _no_report(stored)
            yield _Report(stored, SnapshotId(int(version)), reader, int(number))

    def create(self, name: str, document: dict[str, float]) -> str:
        """Write a report under a free name within the folder of the table; returns its path."""
        path = f"{self._root}/{name}"
        self._storage.create(path, json.dumps({"format": _FORMAT, **document}).encode())
        return path


def _no_report(stored: ObjectInfo) -> RecallReportError:
    return RecallReportError(f"{stored.path} is no report of live recall that this release reads: move it elsewhere")


class RecallReporter:
    """Writes the reports of one process about one index, once per `interval` seconds at most. For one thread."""

    def __init__(self, reports: RecallReports, index: str, *, interval: float = 60.0) -> None:
        self._reports = reports
        self._index = index
        self._interval = interval
        self._reader = uuid.uuid4().hex
        self._number = 0
        self._paths: dict[SnapshotId, str] = {}
        self._due = 0.0

    @property
    def seconds_until_due(self) -> float:
        """Seconds until the next report; 0 where it may be written now."""
        return max(0.0, self._due - time.monotonic())

    def wrote(self) -> None:
        """Begin the wait for the next report."""
        self._due = time.monotonic() + self._interval

    def report(self, version: SnapshotId, *, queries: int, recall_sum: float, left_out: int) -> None:
        """Write what was measured of a version until now. Raises StorageError."""
        self._number += 1
        path = self._reports.create(
            f"{self._index}/{version}/{self._reader}-{self._number}.json",
            {"queries": queries, "recall_sum": recall_sum, "left_out": left_out},
        )
        older = self._paths.get(version)
        self._paths[version] = path
        if older is not None:
            self._reports.delete(older)
