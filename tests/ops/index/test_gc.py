"""Garbage collection beside runs that publish: what a commit came to name since the table was read stays."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.table import Table

from icepuffin.ops.catalog import bindings
from icepuffin.ops.index import collect_garbage
from icepuffin.ops.model import ObjectInfo
from icepuffin.ops.storage import open_storage
from icepuffin.ops.storage.local import LocalStorage
from tests.conftest import STORAGE, make_rows
from tests.ops.catalog.bindings import binding

TableFactory = Callable[..., Table]


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    made = table_factory()
    made.append(make_rows(0, 10))
    return made


@pytest.mark.parametrize("before", [False, True])
def test_what_is_published_while_files_are_listed_stays(
    table: Table, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """The file is there before the listing; its commit comes before the listing has ended, or before it has begun."""
    new_binding, listed = binding(table), LocalStorage.list
    other = table.catalog.load_table(table.name())

    def published_meanwhile(self: LocalStorage, prefix: str) -> Iterator[ObjectInfo]:
        if before:
            bindings.publish(other, new_binding)
        yield from list(listed(self, prefix))
        if not before:
            bindings.publish(other, new_binding)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "list", published_meanwhile)
        assert collect_garbage(table, storage=STORAGE, grace=timedelta(0)).deleted == ()
    assert open_storage(new_binding.puffin_path, STORAGE).exists(new_binding.puffin_path)
    table.refresh()
    for snapshot in table.metadata.snapshots:
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == 10


def test_names_that_only_begin_or_end_as_ours_are_not_ours(table: Table) -> None:
    """Whoever keeps notes beside the metadata keeps them."""
    names = (
        "ann-notes.txt",
        "theta-plan.csv",
        "snap-1-0-x.avro",
        "icepuffin-snap-1.txt",
        "my-ann-e.puffin",
        "x/ann-e.puffin",
    )
    folder = Path(f"{table.location()}/metadata".removeprefix("file://"))
    (folder / "x").mkdir()
    for name in (*names, "ann-e-snap-1.puffin", "icepuffin-snap-1-0-x.avro"):
        (folder / name).write_bytes(b"x")
    deleted = collect_garbage(table, storage=STORAGE, grace=timedelta(0)).deleted
    assert {Path(path).name for path in deleted} == {"ann-e-snap-1.puffin", "icepuffin-snap-1-0-x.avro"}
    assert all((folder / name).exists() for name in names)
