"""The start of every blob of this project: magic, version and, where parts of its layout are optional, feature bits."""

from icepuffin.puffin.errors import BadBlobError, EarlierFormatError, LaterFormatError

COMMON = 1
"""Feature bit that every blob with feature bits has: those of the layouts before had 0 in its place"""


def require_format(blob: str, start: tuple[bytes, int], known: tuple[bytes, int]) -> None:
    """Compare the (magic, version) at the start of a blob with what this release writes. `blob`: for messages.

    Raises BadBlobError, and for another version EarlierFormatError or LaterFormatError.
    """
    magic, version = start
    if magic == known[0] and version > known[1]:
        raise LaterFormatError(f"{blob} of version {version}: a later release wrote it, this one reads {known[1]}")
    if magic == known[0] and 0 < version < known[1]:
        raise EarlierFormatError(f"{blob} of version {version}: its layout was given up, this release reads {known[1]}")
    if start != known:
        raise BadBlobError(f"{blob} starts with {magic!r} version {version}, not {known[0]!r} version {known[1]}")


def require_features(blob: str, features: int, readable: int) -> None:
    """Raises LaterFormatError for feature bits that are not `readable`, BadBlobError where COMMON is not set."""
    if unknown := [str(bit) for bit in range(features.bit_length()) if (features & ~readable) >> bit & 1]:
        raise LaterFormatError(f"{blob} has feature bit {', '.join(unknown)}: a later release wrote it")
    if not features & COMMON:
        raise BadBlobError(f"{blob} lacks feature bit 0, which every one has")
