"""The analyzers that make terms of texts, by their names."""

from typing import Any

from icepuffin.ops.imports import remedy

WORDS_ONLY = "none"
"""Analyzer that neither stems nor leaves words out"""
STEMMERS = {
    "en": "english", "ar": "arabic", "da": "danish", "de": "german", "es": "spanish", "fi": "finnish", "fr": "french",
    "hu": "hungarian", "it": "italian", "nl": "dutch", "no": "norwegian", "pt": "portuguese", "ro": "romanian",
    "ru": "russian", "sv": "swedish", "tr": "turkish",
}  # fmt: skip
"""Snowball's algorithms, by the language's ISO 639 code"""
ANALYZERS = ("en", WORDS_ONLY, *(code for code in STEMMERS if code != "en"))


def analyzer_identity(analyzer: str) -> str:
    """What the terms of an analyzer depend on: two of one identity make the same terms of each text.

    Raises ModuleNotFoundError where the extra `text` is not installed.
    """
    return (
        "none/1, Unicode 14" if analyzer == WORDS_ONLY else f"{analyzer}/1, Unicode 14, Snowball {snowball().version()}"
    )


def snowball() -> Any:
    """The module of the stemmers. Raises ModuleNotFoundError where the extra `text` is not installed."""
    try:
        import Stemmer  # noqa: PLC0415  not everybody has it
    except ModuleNotFoundError as error:
        error.msg = f"an index with columns of texts needs PyStemmer: {remedy(error)}"
        raise
    return Stemmer
