"""A sensor under load: tables with long histories in a real catalog, a real Dagster instance, ticks as the daemon makes
them. Histories are synthetic (snapshots that share one manifest list); everything else is what runs in production.
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import sqlalchemy
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotLogEntry, Summary

from icepuffin.ops.resources import Catalogs
from icepuffin.orchestration.engines import catalogs_of
from icepuffin.orchestration.factory import build
from icepuffin.orchestration.settings import Settings, load
from tests.orchestration.lake import make_rows

_SERIAL = itertools.count(1)


@dataclass(frozen=True)
class Backlog:
    """Tables `demo.t0`, `demo.t1`, ... of catalog `demo`, and the settings that watch them."""

    directory: Path
    catalog: SqlCatalog
    names: tuple[str, ...]

    def settings(self, **table: object) -> Settings:
        lines = "".join(
            f"{key} = {str(value).lower() if isinstance(value, bool) else value!r}\n" for key, value in table.items()
        )
        tables = "".join(
            f'[tables.{name}]\ncatalog = "demo"\nname = "demo.{name}"\n{lines}'
            f'[tables.{name}.indexes.e]\ncolumn = "embedding"\n'
            for name in self.names
        )
        file = self.directory / "icepuffin.toml"
        file.write_text(
            f'[catalogs.demo]\ntype = "sql"\nuri = "sqlite:///{self.directory}/catalog.db"\n'
            f'warehouse = "file://{self.directory}/warehouse"\n{tables}',
            encoding="utf-8",
        )
        return load(file)

    def grow(self, name: str, count: int, *, after: int = 0) -> list[str]:
        """Commit that many snapshots to main at once, so many seconds after the last one. Returns their ids."""
        metadata = with_snapshots(self.catalog.load_table(f"demo.{name}").metadata, count, after=after)
        self._commit(name, metadata)
        return [str(item.snapshot_id) for item in metadata.snapshots[-count:]]

    def with_history(self, name: str, snapshots: int, versions: int, summary: Mapping[str, str]) -> str:
        """Commit so many snapshots at once, evenly among them copies of the table's index version, each of the snapshot
        before it. Returns where the metadata lies.

        summary: properties that all summaries get.
        """
        metadata = self.catalog.load_table(f"demo.{name}").metadata
        own = metadata.snapshots[-1]
        (file,) = (entry for entry in metadata.statistics if entry.snapshot_id == own.snapshot_id)
        data = metadata.model_copy(update={"snapshots": metadata.snapshots[:1]})
        grown = with_snapshots(data, snapshots - versions - 1)
        every, copies, entries = max(1, len(grown.snapshots) // max(1, versions)), [], []
        for number, snapshot in enumerate(grown.snapshots):
            properties = snapshot.summary.additional_properties if snapshot.summary else {}
            appended = Summary(Operation.APPEND, **{**properties, **summary})
            copies.append(snapshot.model_copy(update={"summary": appended}))
            if number % every == every - 1 and len(entries) < versions:
                copies.append(_version_of(snapshot, own, 6_000_000_000_000_000_000 + number))
                entries.append(file.model_copy(update={"snapshot_id": copies[-1].snapshot_id}))
        tag = metadata.refs["ann_e"].model_copy(update={"snapshot_id": entries[-1].snapshot_id})
        refs = {**grown.refs, "ann_e": tag}
        update = {"snapshots": copies, "statistics": entries, "refs": refs}
        return self._commit(name, grown.model_copy(update=update))

    def _commit(self, name: str, metadata: TableMetadata) -> str:
        table = self.catalog.load_table(f"demo.{name}")
        location = f"{table.location()}/metadata/{next(_SERIAL):05d}-synthetic.metadata.json"
        ToOutputFile.table_metadata(metadata, table.io.new_output(location))
        with self.catalog.engine.begin() as connection:
            connection.execute(
                sqlalchemy.text("UPDATE iceberg_tables SET metadata_location = :at WHERE table_name = :name"),
                {"at": location, "name": name},
            )
        return location

    @contextmanager
    def down(self, *clients: Catalogs) -> Iterator[None]:
        """The catalog's database is away, and connections to it are lost."""
        database, away = self.directory / "catalog.db", self.directory / "away.db"
        for catalog in (self.catalog, *(item for client in clients for item in client._opened.values())):
            catalog.engine.dispose()  # type: ignore[attr-defined]
        database.rename(away)
        database.mkdir()
        try:
            yield
        finally:
            database.rmdir()
            away.rename(database)


def _version_of(data: Snapshot, version: Snapshot, snapshot_id: int) -> Snapshot:
    """A copy of an index version, of another data snapshot."""
    properties = version.summary.additional_properties if version.summary else {}
    base = {"ann.base-snapshot-id": str(data.snapshot_id)}
    update = {
        "snapshot_id": snapshot_id,
        "sequence_number": data.sequence_number,
        "timestamp_ms": data.timestamp_ms,
        "summary": Summary(Operation.REPLACE, **{**properties, **base}),
    }
    return version.model_copy(update=update)


def with_snapshots(metadata: TableMetadata, count: int, *, after: int = 0) -> TableMetadata:
    """The metadata after `count` more appends, each 1 s after the last, the first so many seconds more."""
    last = metadata.snapshots[-1]
    added: list[Snapshot] = []
    for number in range(1, count + 1):
        added.append(
            last.model_copy(
                update={
                    "snapshot_id": 7_000_000_000_000_000_000 + next(_SERIAL),
                    "parent_snapshot_id": added[-1].snapshot_id if added else last.snapshot_id,
                    "sequence_number": (last.sequence_number or 0) + number,
                    "timestamp_ms": last.timestamp_ms + 1000 * (after + number),
                }
            )
        )
    log = [SnapshotLogEntry(snapshot_id=item.snapshot_id, timestamp_ms=item.timestamp_ms) for item in added]
    head = SnapshotRef(snapshot_id=added[-1].snapshot_id, snapshot_ref_type=SnapshotRefType.BRANCH)
    return metadata.model_copy(
        update={
            "snapshots": [*metadata.snapshots, *added],
            "current_snapshot_id": added[-1].snapshot_id,
            "last_sequence_number": added[-1].sequence_number,
            "last_updated_ms": added[-1].timestamp_ms,
            "snapshot_log": [*metadata.snapshot_log, *log],
            "refs": {**metadata.refs, "main": head},
        }
    )


def make_backlog(directory: Path, tables: int, snapshots: int) -> Backlog:
    """`tables` tables of `snapshots` snapshots each."""
    catalog = SqlCatalog("demo", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}/warehouse")
    catalog.create_namespace("demo")
    first: Table = catalog.create_table("demo.t0", make_rows(0, 1).schema)
    first.append(make_rows(0, 10))
    names = tuple(f"t{number}" for number in range(tables))
    backlog = Backlog(directory, catalog, names)
    if snapshots > 1:
        backlog.grow("t0", snapshots - 1)
    location = catalog.load_table("demo.t0").metadata_location
    for name in names[1:]:
        catalog.register_table(f"demo.{name}", location)
    return backlog


@dataclass(frozen=True)
class Tick:
    """What one sensor evaluation did."""

    calls: int
    """To the catalog."""
    shown: int
    """Snapshots that became partitions."""
    launched: tuple[str, ...]
    """Snapshots whose run started now."""
    skipped: str
    cursor_bytes: int
    evaluation_seconds: float
    """Seconds of the sensor's evaluation, which Dagster limits to 60."""


@dataclass
class Daemon:
    """Ticks sensors as Dagster's daemon does: checks, runs (each run key of a sensor once), the cursor."""

    instance: dg.DagsterInstance
    settings: Settings
    calls: int = 0
    launched: dict[str, list[str]] = field(default_factory=dict)
    """Snapshots whose run was started, in order, by sensor."""
    checks: list[dg.AssetCheckEvaluation] = field(default_factory=list)
    _cursors: dict[str, str | None] = field(default_factory=dict)
    _run_keys: set[tuple[str, str | None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.catalogs: Catalogs = catalogs_of(self.settings)
        self.definitions = build(self.settings)
        self.sensors: dict[str, Any] = {sensor.name: sensor for sensor in self.definitions.sensors or ()}
        self._counted: list[Catalog] = []

    def tick(self, name: str) -> Tick:
        self._count_calls()
        calls, before, begun = self.calls, self._partitions(name), time.perf_counter()
        context = dg.build_sensor_context(
            instance=self.instance,
            cursor=self._cursors.get(name),
            definitions=self.definitions,
            resources={"icepuffin_catalogs": self.catalogs},
        )
        result: dg.SensorResult = self.sensors[name](context)
        evaluated = time.perf_counter() - begun
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
            if isinstance(event, dg.AssetCheckEvaluation):
                self.checks.append(event)
        started = [item for item in result.run_requests or () if (name, item.run_key) not in self._run_keys]
        self._run_keys |= {(name, item.run_key) for item in started}
        launched = tuple(str(item.partition_key) for item in started)
        self.launched.setdefault(name, []).extend(launched)
        self._cursors[name] = result.cursor
        reason = result.skip_reason.skip_message if result.skip_reason else ""
        self._count_calls()
        shown = self._partitions(name) - before
        return Tick(self.calls - calls, shown, launched, reason or "", len(result.cursor or ""), evaluated)

    def _partitions(self, name: str) -> int:
        return len(self.instance.get_dynamic_partitions(name.replace("watch_demo_demo_", "snapshots/demo/demo/")))

    def succeed(self, name: str, keys: Sequence[str]) -> None:
        """The runs of these snapshots succeed."""
        for asset in self.definitions.resolve_asset_graph().materializable_asset_keys:
            if "_".join(asset.path).startswith(name.removeprefix("watch_") + "_"):
                for key in keys:
                    self.instance.report_runless_asset_event(dg.AssetMaterialization(asset, partition=key))

    def _count_calls(self) -> None:
        """Count `load_table` of every catalog that is open now."""
        for catalog in self.catalogs._opened.values():
            if catalog not in self._counted:
                self._counted.append(catalog)
                through = catalog.load_table

                def load_table(identifier: Any, through: Any = through) -> Table:
                    self.calls += 1
                    return through(identifier)  # type: ignore[no-any-return]

                catalog.load_table = load_table  # type: ignore[method-assign]
