"""Paths as engines write them, made comparable. Spark writes `file:/x`, PyIceberg `file:///x`, Hadoop `s3a://`.

Every character of a path stands for itself: a folder `day=a%2Fb` has this very name, as Iceberg's writers make it.
"""

import re

_S3_SCHEMES = ("s3", "s3a", "s3n")


def normalize(location: str) -> str:
    """One spelling for one object: `file:///absolute/path` or `s3://bucket/key`; other schemes as they are.

    To a file system several slashes are one; in a store's key each counts.
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
    """`location` without `root` where it lies under it; as it is, normalised, otherwise."""
    path, base = normalize(location), normalize(root).rstrip("/") + "/"
    return path.removeprefix(base)
