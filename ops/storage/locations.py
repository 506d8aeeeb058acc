"""Paths as engines write them, made comparable. Spark writes `file:/x`, PyIceberg `file:///x`, Hadoop `s3a://`."""

from urllib.parse import urlsplit

_S3_SCHEMES = ("s3", "s3a", "s3n")


def normalize(location: str) -> str:
    """One spelling for one object: `file:///absolute/path` or `s3://bucket/key`; other schemes as they are."""
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        return f"file://{parts.path if parts.scheme else location}"
    if parts.scheme in _S3_SCHEMES:
        return f"s3://{location.split('://', 1)[1]}"
    return location


def relative_to(location: str, root: str) -> str:
    """`location` without `root` where it lies under it; as it is, normalised, otherwise."""
    path, base = normalize(location), normalize(root).rstrip("/") + "/"
    return path.removeprefix(base)


def resolve(path: str, root: str) -> str:
    """Inverse of `relative_to`."""
    if "://" in path or path.startswith(("/", "file:")):
        return normalize(path)
    return f"{normalize(root).rstrip('/')}/{path}"
