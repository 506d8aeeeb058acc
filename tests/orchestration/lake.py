"""A real SQLite catalog with a small table in several snapshots, and the settings for it."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.orchestration.instance import DAGSTER_YAML, prepare_home

DIMS = 8


def without_captured_output(home: Path) -> Path:
    """A Dagster instance that keeps no run's stdout: the processes that follow it cost a second per run."""
    prepare_home(home)
    lines = "compute_logs:\n  module: dagster._core.storage.noop_compute_log_manager\n  class: NoOpComputeLogManager\n"
    (home / "dagster.yaml").write_text(DAGSTER_YAML + lines, encoding="utf-8")
    return home


@dataclass(frozen=True)
class Lake:
    """One table `demo.packages` of catalog `demo` in a folder."""

    directory: Path
    catalog: Catalog
    table: Table

    @property
    def settings_file(self) -> Path:
        return self.directory / "icepuffin.toml"

    def append(self, rows: int = 60) -> int:
        """Write a snapshot. Returns its id."""
        self.table.refresh()
        start = sum(len(batch) for batch in self.table.scan(selected_fields=("id",)).to_arrow().to_batches())
        self.table.append(make_rows(start, rows))
        return self.head()

    def head(self) -> int:
        self.table.refresh()
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def keep(self) -> None:
        """What is in the folder now is what `restore` puts back."""
        self.catalog.engine.dispose()  # type: ignore[attr-defined]  # what SQLite holds back goes into its file
        shutil.copytree(self.directory, self._kept)

    def restore(self) -> None:
        """As if nothing had happened since `keep`: in the same place, which the table's metadata names."""
        self.catalog.engine.dispose()  # type: ignore[attr-defined]
        shutil.rmtree(self.directory)
        shutil.copytree(self._kept, self.directory)
        self.table.refresh()

    @property
    def _kept(self) -> Path:
        return self.directory.with_name(f"{self.directory.name}-kept")

    def settings(self, **table: object) -> str:
        """Settings text; keyword arguments become keys of `[tables.packages]`."""
        lines = "".join(f"{key} = {_toml(value)}\n" for key, value in {"retry_delay_seconds": 0, **table}.items())
        return (
            f'threads = 2\n[catalogs.demo]\ntype = "sql"\nuri = "sqlite:///{self.directory}/catalog.db"\n'
            f'warehouse = "file://{self.directory}/warehouse"\n'
            "[spark]\ndriver_only_rows = 1000000\n"
            f'[tables.packages]\ncatalog = "demo"\nname = "demo.packages"\n{lines}'
            '[tables.packages.indexes.embedding]\ncolumn = "embedding"\npq_m = 4\nmax_degree = 16\nsearch_list = 32\n'
        )

    def write_settings(self, **table: object) -> Path:
        self.settings_file.write_text(self.settings(**table), encoding="utf-8")
        return self.settings_file


def make_lake(directory: Path, snapshots: int = 3) -> Lake:
    """A new catalog in `directory` with that many appends."""
    directory.mkdir(exist_ok=True)
    uri, warehouse = f"sqlite:///{directory}/catalog.db", f"file://{directory}/warehouse"
    catalog = open_catalog("demo", {"type": "sql", "uri": uri, "warehouse": warehouse})
    catalog.create_namespace("demo")
    lake = Lake(directory, catalog, catalog.create_table("demo.packages", make_rows(0, 1).schema))
    for _ in range(snapshots):
        lake.append()
    lake.write_settings()
    return lake


def make_rows(start: int, rows: int) -> pa.Table:
    vectors = np.random.default_rng(start).normal(size=(rows, DIMS)).astype(np.float32)
    return pa.table(
        {
            "id": pa.array(range(start, start + rows), pa.int64()),
            "name": [f"package {number % 7}" for number in range(rows)],
            "embedding": pa.array(list(vectors), pa.list_(pa.float32())),
        }
    )


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(list(value) if isinstance(value, tuple) else value)
