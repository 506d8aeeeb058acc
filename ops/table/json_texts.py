"""JSON of a table's metadata, which any writer may have written."""

import json
from typing import Any


def parse_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError for all else, brackets without end among it."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
