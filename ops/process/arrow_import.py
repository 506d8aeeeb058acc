"""PyArrow for commands that show no rows: without pandas, which takes a quarter of a second of CPU."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from types import ModuleType


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not imported while PyArrow is", name=fullname)


def import_arrow() -> None:
    """Import `pyarrow.dataset`, which PyIceberg needs to read a table's metadata, and hide pandas from it.

    Where pandas is installed PyArrow imports it there, to see that True is none of its arrays. It looks for pandas
    again when somebody calls `to_pandas`.
    """
    if "pandas" in sys.modules:
        return
    hiding = _WithoutPandas()
    sys.meta_path.insert(0, hiding)
    try:
        import_module("pyarrow.dataset")
    finally:
        sys.meta_path.remove(hiding)
