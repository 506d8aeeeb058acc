"""One spelling for the paths that engines write: Spark `file:/x`, PyIceberg `file:///x`, Hadoop `s3a://`.

Every character of a path is literal: `day=a%2Fb` is the name of a folder, as Iceberg's writers make it.
"""

import re

_S3_SCHEMES = ("s3", "s3a", "s3n")


def normalize(location: str) -> str:
    """One spelling for one object: `file:///absolute/path` or `s3://bucket/key`; other schemes as they are.

    In a file system several slashes are one; in the key of an object each counts.
    """
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return f"file://{_single_slashes(location)}"
    if scheme.lower() == "file":
        path = f"/{rest[2:].partition('/')[2]}" if rest.startswith("//") else rest
        return f"file://{_single_slashes(path)}"
    return f"s3:{rest}" if scheme.lower() in _S3_SCHEMES else location


def _single_slashes(path: str) -> str:
    return re.sub("/{2,}", "/", path) if "//" in path else path


def relative_to(location: str, root: str) -> str:
    """`location`, normalised, and relative to `root` where it lies under it."""
    path, base = normalize(location), normalize(root).rstrip("/") + "/"
    return path.removeprefix(base)
