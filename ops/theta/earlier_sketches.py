"""Sketches per data file that earlier runs published."""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from icepuffin.ops.binding.bound_versions import BoundPack, DerivedVersion, sketch_versions
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.messages import MAX_LISTED, listed
from icepuffin.ops.storage import Storage, path_mover
from icepuffin.ops.storage.base import ObjectSource, StorageError
from icepuffin.ops.table.snapshots import table_name
from icepuffin.ops.tasks.sketches.images import Sketch
from icepuffin.ops.tasks.sketches.statistic import StatisticKey
from icepuffin.ops.theta.file_sketches import FileKey, FileSketchesReader
from icepuffin.puffin import PuffinReader
from icepuffin.puffin.errors import PuffinError

_log = logging.getLogger(__name__)

_MAX_VERSIONS = 16
"""Number of versions whose footers are read in search of a file"""
_OPENED_AT_ONCE = 16
"""Number of files whose footers are read at the same time"""

LocatedSketches = Mapping[FileKey, Mapping[StatisticKey, FileSketchesReader]]
"""The file in which the sketch of each data file and statistic lies"""


class EarlierSketches:
    """The file sketches of earlier versions, nearest version first. A file of sketches is opened when it may be needed.

    open_file: gives the reader of a path; raises IcepuffinError or PuffinError where the file is lost or broken.
    here: sequence number of the snapshot that they are to serve.
    """

    def __init__(
        self,
        versions: Sequence[DerivedVersion],
        open_file: Callable[[str], FileSketchesReader],
        *,
        here: int,
        table: str,
    ) -> None:
        self._versions = versions
        self._open_file = open_file
        self._here = here
        self._table = table
        self._readers: dict[str, FileSketchesReader | None] = {}
        self._notes: list[str] = []

    @property
    def nearest(self) -> DerivedVersion | None:
        """The nearest version; None where there is none."""
        return self._versions[0] if self._versions else None

    def field_ids(self) -> frozenset[int]:
        """Columns that had a sketch at this snapshot or before it."""
        earlier = [version for version in self._versions if version.base_sequence_number <= self._here]
        return frozenset[int]().union(*(version.fields for version in earlier))

    def nearest_has(self, statistics: Collection[StatisticKey]) -> bool:
        """Whether the nearest version has sketches of all of these, of any file. Reads its footers."""
        nearest = self.nearest
        kept = [reader.statistics() for reader in self._open(nearest)] if nearest else []
        return frozenset[StatisticKey]().union(*kept).issuperset(statistics)

    def located(self, keys: Iterable[FileKey], statistics: Collection[StatisticKey]) -> LocatedSketches:
        """The files that sketches lie in, of the columns whose type is still the same. Reads footers alone."""
        located: dict[FileKey, dict[StatisticKey, FileSketchesReader]] = {key: {} for key in keys}
        for version in self._versions:
            # no version of before it came has a file, so that after an append alone only the nearest one is opened
            possible = [
                key
                for key, found in located.items()
                if len(found) < len(statistics) and key.added <= version.base_sequence_number
            ]
            for reader in self._open(version) if possible else ():
                for key in possible:
                    with self._noting_damage(key):
                        for statistic in reader.image_sizes(key):
                            if statistic in statistics:
                                located[key].setdefault(statistic, reader)
        return located

    def read(self, located: LocatedSketches) -> dict[FileKey, dict[StatisticKey, Sketch]]:
        """The sketches that were located; those that are broken are left out."""
        sketches_by_key: dict[FileKey, dict[StatisticKey, Sketch]] = {key: {} for key in located}
        for key, sketches in self.read_each(located):
            sketches_by_key[key] |= sketches
        return sketches_by_key

    def read_each(self, located: LocatedSketches) -> Iterator[tuple[FileKey, dict[StatisticKey, Sketch]]]:
        """The same, one file after the other; a file comes several times whose sketches lie in several of ours."""
        by_reader: dict[FileSketchesReader, dict[FileKey, set[StatisticKey]]] = defaultdict(lambda: defaultdict(set))
        for key, readers in located.items():
            for statistic, reader in readers.items():
                by_reader[reader][key].add(statistic)
        for reader, wanted in by_reader.items():
            for group in reader.in_order(wanted):
                with suppress(IcepuffinError, PuffinError):  # each file's own read raises it again
                    reader.fetch(group)
                for key in group:
                    sketches: dict[StatisticKey, Sketch] = {}
                    with self._noting_damage(key):
                        sketches = reader.read(key, wanted[key])
                    yield key, sketches

    def packs(self) -> Mapping[FileSketchesReader, BoundPack]:
        """Packs that the next version may share: those of the nearest version that can be read and have their tags."""
        nearest = self.nearest
        if nearest is None:
            return {}
        self._open(nearest)
        opened = ((self._readers[pack.path], pack) for pack in nearest.packs if pack.is_kept)
        return {reader: pack for reader, pack in opened if reader is not None}

    def _open(self, version: DerivedVersion) -> list[FileSketchesReader]:
        """The readers of a version's own file and of its packs, newest first, without those that are lost, as a note
        says: what is found broken is written anew, and serves from then on.
        """
        paths = [version.puffin_path, *(pack.path for pack in reversed(version.packs))]
        unopened = [path for path in dict.fromkeys(paths) if path not in self._readers]
        if unopened:
            with ThreadPoolExecutor(min(_OPENED_AT_ONCE, len(unopened))) as threads:
                outcomes = list(threads.map(self._try_to_open, unopened))
            for path, outcome in zip(unopened, outcomes, strict=True):
                self._readers[path] = outcome if isinstance(outcome, FileSketchesReader) else None
                if isinstance(outcome, Exception):
                    message = f"the file sketches of snapshot {version.base_snapshot_id} are lost: {outcome}"
                    self._notes.append(message)
                    _log.warning("%s: %s", self._table, message)
        return [reader for path in paths if (reader := self._readers[path]) is not None]

    def _try_to_open(self, path: str) -> FileSketchesReader | Exception:
        try:
            if not path:
                raise StorageError("their pack has expired")
            return self._open_file(path)
        except (IcepuffinError, PuffinError) as error:
            return error

    @contextmanager
    def _noting_damage(self, key: FileKey) -> Iterator[None]:
        """Turn the error of a broken blob into a note: its file is counted again."""
        try:
            yield
        except (IcepuffinError, PuffinError) as error:
            self._notes.append(f"the file sketches of {key.path} are broken: {error}")
            if len(self._notes) <= MAX_LISTED:
                _log.warning("%s", self._notes[-1])

    @property
    def note(self) -> str:
        """Sketches that were lost, in words, of many the first; empty where there are none."""
        return "; ".join(listed(list(dict.fromkeys(self._notes))))


def open_earlier_sketches(table: Table, store: Storage, snapshot: Snapshot) -> EarlierSketches:
    """The file sketches that can serve one snapshot. Opens no file."""

    def open_file(path: str) -> FileSketchesReader:
        source = ObjectSource(store, path)
        return FileSketchesReader(PuffinReader(source), source.fetch, path_mover(path, table.location()))

    here = snapshot.sequence_number or 0
    nearest_first = sorted(
        sketch_versions(table),  # format v1 has no sequence numbers: the newest comes first
        key=lambda v: (abs(v.base_sequence_number - here), -v.sequence_number, -v.timestamp_ms),
    )
    return EarlierSketches(nearest_first[:_MAX_VERSIONS], open_file, here=here, table=table_name(table))
