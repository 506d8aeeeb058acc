"""Ids, names, times and places that follow from the code alone, for what is to be written twice with the same bytes."""

import random
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, tzinfo
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.avro import file as avro_file
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import metadata as pyiceberg_metadata
from pyiceberg.table import update as pyiceberg_update

from icepuffin.ops.binding import commit, derived_snapshots
from icepuffin.ops.binding.measurements import Measurement
from icepuffin.ops.model import ObjectInfo
from icepuffin.ops.rows import parquet
from icepuffin.ops.storage import local_storage
from icepuffin.ops.storage.local_storage import LocalStorage

LOCATION = "file:///golden"
START = 1_767_225_600.0
"""2026-01-01, in seconds since the epoch"""


@contextmanager
def lying_in(folder: Path) -> Iterator[None]:
    """While it is entered, files of golden locations are those of a folder."""
    to_path, parse, listed = local_storage.to_path, PyArrowFileIO.parse_location, LocalStorage.list
    root = LOCATION.removeprefix("file://")

    def moved(path: str) -> str:
        return path.replace(root, str(folder), 1) if path.startswith(f"{root}/") else path

    def moved_path(path: str) -> Path:
        return Path(moved(str(to_path(path))))

    def parsed(path: str, *options: Any) -> tuple[str, str, str]:
        scheme, host, name = parse(path, *options)
        return scheme, host, moved(name)

    def named(store: LocalStorage, prefix: str) -> Iterator[ObjectInfo]:
        for info in listed(store, prefix):
            yield replace(info, path=info.path.replace(str(moved_path(prefix)), str(to_path(prefix)), 1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_storage, "to_path", moved_path)
        patch.setattr(parquet, "to_path", moved_path)
        patch.setattr(PyArrowFileIO, "parse_location", staticmethod(parsed))
        patch.setattr(LocalStorage, "list", named)
        yield


@contextmanager
def repeatable(now: Callable[[], float], salt: str = "") -> Iterator[None]:
    """While it is entered, ids follow from who asks and how often, and from `salt`; `now` is what clocks show."""
    counts, measured = Counter[str](), Measurement.text

    def seeded() -> random.Random:
        frame = sys._getframe(2)
        caller = f"{salt}{Path(frame.f_code.co_filename).name} {frame.f_code.co_qualname}"
        counts[caller] += 1
        return random.Random(f"{caller} {counts[caller]}")

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "datetime":  # type: ignore[override]
            return datetime.fromtimestamp(time.time(), tz)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=seeded().getrandbits(128), version=4))
        # marks of Avro files; others need bytes that differ, as numba does for the names of compiled kernels
        patch.setattr(avro_file, "os", SimpleNamespace(urandom=lambda size: bytes(range(size))))
        patch.setattr(time, "time", now)
        patch.setattr(pyiceberg_metadata, "datetime", SimpleNamespace(datetime=Clock))
        for module in (pyiceberg_update, commit, derived_snapshots):
            patch.setattr(module, "datetime", Clock)
        patch.setattr(Measurement, "text", lambda own: measured(replace(own, seconds=1.0, threads=1)))
        yield
