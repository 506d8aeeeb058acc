"""Random histories of writers with old handles: each write ends as it does beside somebody who sets properties."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.table import Table

from icepuffin.ops.binding import bindings
from icepuffin.ops.binding.bound_versions import index_versions, tag_target
from icepuffin.ops.binding.derived_snapshots import NewPack
from icepuffin.ops.binding.expiration import expire_derived
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index.definitions.ddl import create_index, drop_index
from icepuffin.ops.index.definitions.index_definition import DefinitionError
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy, RetentionScope
from icepuffin.ops.runs.maintenance import collect_table_garbage
from icepuffin.ops.table.snapshots import data_snapshots
from tests.conftest import STORAGE, make_rows
from tests.ops.catalog.bindings import binding
from tests.ops.catalog.writers import WRITES, assert_numbers, counted_commits
from tests.ops.index.comparison import DEFINITION

pytestmark = pytest.mark.filterwarnings("ignore:Delete operation did not match any records:UserWarning")
ACTS = ("publish", "publish", "publish a pack", "publish an older one", "expire", "sweep", "drop", "create")


class Guest:
    """Acts at random on the table `db.t`, as icepuffin does."""

    def __init__(self, catalog: Catalog, random: Random) -> None:
        self._catalog, self._random, self._number = catalog, random, 0

    def act(self, patch: pytest.MonkeyPatch) -> int:
        """Number of commits that were sent."""
        self._number += 1
        table, kind = self._catalog.load_table("db.t"), self._random.choice(ACTS)
        with counted_commits(self._catalog, patch) as sent:
            if kind.startswith("publish"):
                self._publish(table, kind)
            elif kind == "expire" and (versions := index_versions(table, "e")):
                chosen = self._random.choice(versions)
                expire_derived(table, [chosen.index_snapshot_id], chosen.tags)
            elif kind == "sweep":
                policy = RetentionPolicy(self._random.choice([RetentionScope.ALL, RetentionScope.NEWEST]))
                collect_table_garbage(table, storage=STORAGE, retentions={}, default=policy, grace_hours=0)
            elif kind == "create":
                create_index(table, DEFINITION)
            elif kind == "drop":
                self._drop(table)
        return len(sent)

    def _publish(self, table: Table, kind: str) -> None:
        tag = f"ann_e-{data_snapshots(table)[-1].snapshot_id}" if kind == "publish an older one" else "ann_e"
        request = binding(table, self._number, tag=tag, expected=tag_target(table, tag))
        newest = next((version for version in reversed(index_versions(table, "e")) if version.tags), None)
        packs = tuple(pack.holder_id for pack in newest.packs if pack.is_kept) if newest else ()
        new = NewPack(path=f"s3://nowhere/pack-{self._number}.puffin", size=4, footer_size=2)
        bindings.publish(table, replace(request, packs=packs, new_packs=(new,) if kind == "publish a pack" else ()))

    def _drop(self, table: Table) -> None:
        try:
            drop_index(table, "e")
        except DefinitionError as error:
            assert "has no index" in str(error)  # noqa: PT017  it was dropped before


def outcome(
    catalog: Catalog, patch: pytest.MonkeyPatch, write: Callable[[], Any], meanwhile: Callable[[], Any] | None
) -> tuple[int, str]:
    """(commits that a write took, how it ended). `meanwhile`: what happens before its first commit arrives."""
    with patch.context() as inner, counted_commits(catalog, inner) as sent:
        through, acts = type(catalog)._write_metadata, iter([meanwhile] if meanwhile else [])  # type: ignore[attr-defined]

        def write_metadata(*arguments: Any, **keywords: Any) -> None:
            through(*arguments, **keywords)
            next(acts, lambda: None)()

        inner.setattr(catalog, "_write_metadata", write_metadata)
        try:
            write()
        except (CommitFailedException, ValidationException, ValueError) as error:  # handles are in each other's way
            return len(sent), f"{type(error).__name__}: {re.sub('[0-9]+|db[.][a-z]+', '', str(error))}"
    return len(sent), "done"


@pytest.mark.parametrize("version", ["1", "2"])
def test_each_write_of_a_history_ends_as_beside_as_many_changes_of_properties(
    table_factory: Callable[..., Table],
    sql_catalog: Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: str,
    version: str,
) -> None:
    """Some fail in both: by a handle that saw no upgrade, a new column or rows by another one."""
    random, theirs = Random(seed), open_catalog("test", dict(sql_catalog.properties))
    guest = Guest(sql_catalog, random)
    quick = {"format-version": version, "commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "2"}
    for name in ("t", "control"):
        table_factory(name, **quick).append(make_rows(0, 10))
    handles = [(theirs.load_table("db.t"), theirs.load_table("db.control")) for _ in range(3)]

    def set_properties(count: int) -> None:
        for number in range(count):
            changed = {f"number-{number}": "1"}
            sql_catalog.load_table("db.control").transaction().set_properties(changed).commit_transaction()

    def upgrade(table: Table, _: int) -> None:
        table.transaction().upgrade_table_version(2).commit_transaction()

    writes = {**WRITES, "upgrade": upgrade}
    for place in range(1, 9):
        set_properties(guest.act(monkeypatch))
        name, number = random.choice(["append", "append", *writes]), random.randrange(3)
        sent: list[int] = []
        meets = random.random() < 0.3
        handle, twin = handles[number]
        ended = outcome(
            theirs,
            monkeypatch,
            lambda: writes[name](handle, place),  # noqa: B023
            (lambda: sent.append(guest.act(monkeypatch))) if meets else None,  # noqa: B023
        )
        beside = (lambda: set_properties(sum(sent))) if sent else None  # noqa: B023
        assert ended == outcome(theirs, monkeypatch, lambda: writes[name](twin, place), beside), (place, name)  # noqa: B023
        for table in ("db.t", "db.control"):
            assert_numbers(sql_catalog.load_table(table))
        if random.random() < 0.3:
            handles[number] = (theirs.load_table("db.t"), theirs.load_table("db.control"))
    rows = [sql_catalog.load_table(name).scan().to_arrow() for name in ("db.t", "db.control")]
    assert sorted(rows[0]["id"].to_pylist()) == sorted(rows[1]["id"].to_pylist())
