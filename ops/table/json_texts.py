"""JSON of a table's metadata, which any writer may have written."""

import json
import re
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def is_text(value: str) -> bool:
    """Whether UTF-8 can write a text: it has no half of a surrogate pair."""
    return value.isascii() or not _SURROGATE.search(value)


def parse_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError for all else, brackets without end among it, and for texts in it that
    UTF-8 cannot write: JSON can, as `\\ud800`, and a page that shows one cannot be sent, whatever else is on it.
    """
    try:
        value = json.loads(text)
        if "\\u" in text and not is_text(json.dumps(value, ensure_ascii=False)):
            raise ValueError("it has half of a surrogate pair, which is no text")
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
    return value
