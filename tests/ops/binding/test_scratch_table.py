"""The scratch table on which a catalog is tried, where a catalog stands in whose metadata icepuffin does not see."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.update import SetSnapshotRefUpdate, TableUpdate

from icepuffin.ops.binding import bindings, catalog_trial
from icepuffin.ops.binding.catalog_trial import require_bindable
from icepuffin.ops.binding.errors import UnsupportedCatalogError
from icepuffin.ops.binding.files_folder import FilesFolder
from tests.conftest import ROWS, make_rows
from tests.ops.catalog.bindings import bind_as_before, binding


class OtherCatalog:
    """A SQLite catalog, of which icepuffin does not know that PyIceberg writes its tables' metadata."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.created: list[tuple[str, ...]] = []
        self.keeps_ages = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def create_table(self, identifier: tuple[str, ...], *arguments: Any, **options: Any) -> Table:
        self.created.append(identifier)
        return self._catalog.create_table(identifier, *arguments, **options)

    def load_table(self, identifier: tuple[str, ...]) -> Table:
        table = self._catalog.load_table(identifier)
        table.catalog = self  # type: ignore[assignment]
        return table

    def commit_table(self, table: Table, requirements: Any, updates: tuple[TableUpdate, ...]) -> Any:
        if not self.keeps_ages:
            updates = tuple(
                update.model_copy(update={"max_ref_age_ms": None})
                if isinstance(update, SetSnapshotRefUpdate)
                else update
                for update in updates
            )
        return self._catalog.commit_table(table, requirements, updates)


@pytest.fixture
def catalog(sql_catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> OtherCatalog:
    monkeypatch.setattr(catalog_trial, "_TRIED", {})
    return OtherCatalog(sql_catalog)


@pytest.fixture
def table(catalog: OtherCatalog, table_factory: Callable[..., Table]) -> Table:
    table_factory()
    return catalog.load_table(("db", "t"))


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def test_the_scratch_table_lies_in_the_tables_namespace_and_leaves_no_file(
    catalog: OtherCatalog, tmp_path: Path
) -> None:
    catalog.create_namespace(("db", "inner"))
    catalog.create_table(("db", "inner", "t"), ROWS)
    table, before = catalog.load_table(("db", "inner", "t")), files(tmp_path)
    catalog.created.clear()
    assert require_bindable(table) is FilesFolder.METADATA
    ((*namespace, name),) = catalog.created
    assert namespace == ["db", "inner"]
    assert name.startswith("icepuffin_trial_")
    assert catalog.list_tables(("db", "inner")) == [("db", "inner", "t")]
    assert files(tmp_path) == before


def test_a_catalog_that_drops_the_ages_of_tags_is_named(catalog: OtherCatalog, table: Table) -> None:
    catalog.keeps_ages = False
    with pytest.raises(UnsupportedCatalogError, match="does not keep the max-ref-age-ms of tag ann_trial"):
        require_bindable(table)


def test_a_version_without_its_statistics_file_does_not_show_what_the_catalog_keeps(
    catalog: OtherCatalog, table: Table
) -> None:
    table.append(make_rows(0, 3))
    version = bindings.publish(table, binding(table))
    require_bindable(table)
    assert catalog.created == []
    with table.update_statistics() as update:
        update.remove_statistics(version.index_snapshot_id)
    require_bindable(table.refresh())
    assert len(catalog.created) == 1


def test_a_version_with_a_parent_does_not_show_that_the_catalog_gives_none(catalog: OtherCatalog, table: Table) -> None:
    table.append(make_rows(0, 3))
    bind_as_before(table)
    require_bindable(table)
    assert len(catalog.created) == 1
