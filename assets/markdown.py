"""Names and messages within Markdown: the UI takes each description for Markdown."""

import re

_MARKUP = re.compile(r"[\\`*\[\]<>&|~]|(?<![^\W_])_|_(?![^\W_])")
"""What Markdown does not take for text. Between letters or digits `_` is text"""


def plain_text(text: str) -> str:
    """Markdown that shows a text as it is, in one line: no link, picture, emphasis or code comes of it."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))
