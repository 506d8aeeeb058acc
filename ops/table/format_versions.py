"""Format versions of tables: which are not read, and which are not committed to."""

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from icepuffin.ops.errors import TableStateError


class UnsupportedFormatError(TableStateError):
    """Raised when a table has a format version that is not read, or that this catalog cannot commit to."""

    retryable = False


def unsupported_format(table: str, error: Exception) -> UnsupportedFormatError | None:
    """What to raise where PyIceberg does not know the format version of a table's metadata; None for other errors."""
    for fault in _faults(error):
        context = fault.get("ctx", {})
        if fault["type"] == "union_tag_invalid" and "format-version" in str(context.get("discriminator")):
            return UnsupportedFormatError(
                f"{table} has format version {context['tag']}, and versions {context['expected_tags']} are read. "
                "Use a release that reads it, if there is one; nothing was changed"
            )
    return None


def invalid_field(error: Exception) -> str:
    """Where the metadata of a table is not as Iceberg specifies it, and how; empty for other errors."""
    for fault in _faults(error):
        parts = fault["loc"]
        versions = [depth for depth in range(len(parts)) if parts[:depth] in ((), ("metadata",))]
        kept = [str(part) for depth, part in enumerate(parts) if depth not in versions or isinstance(part, str)]
        return ": ".join(filter(None, [".".join(kept), f"{fault['msg']:.200}"]))
    return ""


def _faults(error: Exception) -> list[ErrorDetails]:
    invalid = error if isinstance(error, ValidationError) else error.__cause__  # PyIceberg wraps pydantic's error
    return invalid.errors(include_input=False, include_url=False) if isinstance(invalid, ValidationError) else []
