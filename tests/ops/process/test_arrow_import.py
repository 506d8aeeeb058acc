"""PyArrow is imported without pandas, and nothing else is hidden."""

import sys
from importlib.util import find_spec

import pytest

from icepuffin.ops.process import arrow_import


def test_pandas_alone_is_hidden_and_only_while_pyarrow_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = []

    def import_module(name: str) -> None:
        imported.append(name)
        assert all(find_spec(other) for other in ("colorsys", "zipapp"))
        with pytest.raises(ModuleNotFoundError, match="pandas is not imported while PyArrow is"):
            find_spec("pandas")

    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    monkeypatch.setattr(arrow_import, "import_module", import_module)
    finders = list(sys.meta_path)
    arrow_import.import_arrow()
    assert sys.meta_path == finders
    monkeypatch.setitem(sys.modules, "pandas", sys)
    arrow_import.import_arrow()
    assert imported == ["pyarrow.dataset"], "not where pandas is there already"
