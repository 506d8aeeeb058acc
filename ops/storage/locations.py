"""One spelling for the paths that engines write: Spark `file:/x`, PyIceberg `file:///x`, Hadoop `s3a://`, `wasbs://`.

Every character of a path is literal: `day=a%2Fb` is the name of a folder, as Iceberg's writers make it.
"""

import re
from collections.abc import Callable

_SCHEMES = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("abfss", "abfs", "wasbs", "wasb"), "abfss"),
}
"""Spelling of each scheme of an object store: they differ in the client that was meant, not in the object"""
_IS_WHOLE = re.compile(r"[a-z][a-z0-9+.-]*:/")
OBJECT_STORES = tuple(dict.fromkeys(f"{scheme}:" for scheme in _SCHEMES.values()))
"""Normalised schemes of object stores, each with its colon"""


def normalize(location: str) -> str:
    """One spelling for one object: `file:///absolute/path`, `s3://bucket/key`, `gs://bucket/key` or
    `abfss://container@account.dfs.core.windows.net/key`; other schemes as they are.

    In a file system several slashes are one; in the key of an object each counts.
    """
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return f"file://{_single_slashes(location)}"
    if scheme.lower() == "file":
        path = f"/{rest[2:].partition('/')[2]}" if rest.startswith("//") else rest
        return f"file://{_single_slashes(path)}"
    spelled = _SCHEMES.get(scheme.lower())
    if spelled == "abfss":
        authority, slash, key = rest.removeprefix("//").partition("/")
        return f"abfss://{authority.replace('.blob.', '.dfs.', 1)}{slash}{key}"
    return f"{spelled}:{rest}" if spelled else location


def _single_slashes(path: str) -> str:
    return re.sub("/{2,}", "/", path) if "//" in path else path


def split_location(location: str) -> tuple[str, str]:
    """(bucket or container as a location, key in it)."""
    scheme, _, rest = normalize(location).partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key


def relative_to(location: str, root: str) -> str:
    """`location`, normalised, and relative to `root` where it lies under it."""
    path, base = normalize(location), normalize(root).rstrip("/") + "/"
    return path.removeprefix(base)


def path_mover(file: str, location: str) -> Callable[[str], str]:
    """Gives a path that a file of ours has as one relative to a table's location today.

    In the file it is relative to the location for which that was made, which has the file in one of its folders:
    another one where the table's location was set anew, and this one where the table was moved with its files.
    """
    then, now = normalize(file).rsplit("/", 2)[0].rstrip("/"), normalize(location).rstrip("/")
    if then == now:
        return str
    return lambda path: relative_to(path if _IS_WHOLE.match(path) else f"{then}/{path}", now)
