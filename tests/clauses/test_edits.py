"""Each edit still fits one place, its clause stands on a page, and its test is there: `make clauses` runs them."""

import ast

import pytest

from tests.clauses.edits import EDITS, PAGES, Edit, broken_sources
from tests.clauses.guards import ALL_EDITS
from tests.repository import REPOSITORY


@pytest.mark.parametrize("edit", ALL_EDITS, ids=lambda edit: f"{edit.changes}-{edit.test}")
def test_an_edit_fits_one_place_and_leaves_python(edit: Edit) -> None:
    ((path, source),) = broken_sources(edit)
    ast.parse(source)
    assert source != path.read_text(encoding="utf-8")
    assert path.parent.name != "ann_kernels", "a kernel that is compiled already would be run as it was"


def test_clauses_stand_on_the_pages_and_tests_under_their_names() -> None:
    pages = "".join((REPOSITORY / page).read_text(encoding="utf-8") for page in PAGES)
    assert [edit.clause for edit in EDITS if edit.clause not in pages] == []
    sources = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py")]
    places = {edit.test: sum(f"def {edit.test}(" in source for source in sources) for edit in ALL_EDITS}
    assert {name: count for name, count in places.items() if count != 1} == {}
