"""Paths as engines write them, made comparable. Spark writes `file:/x`, PyIceberg `file:///x`, Hadoop `s3a://`.

Every character of a path stands for itself: a folder `day=a%2Fb` has this very name, as Iceberg's writers make it.
"""

_S3_SCHEMES = ("s3", "s3a", "s3n")


def normalize(location: str) -> str:
    """One spelling for one object: `file:///absolute/path` or `s3://bucket/key`; other schemes as they are."""
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return f"file://{location}"
    if scheme.lower() == "file":
        return f"file:///{rest[2:].partition('/')[2]}" if rest.startswith("//") else f"file://{rest}"
    return f"s3:{rest}" if scheme.lower() in _S3_SCHEMES else location


def relative_to(location: str, root: str) -> str:
    """`location` without `root` where it lies under it; as it is, normalised, otherwise."""
    path, base = normalize(location), normalize(root).rstrip("/") + "/"
    return path.removeprefix(base)


def resolve(path: str, root: str) -> str:
    """Inverse of `relative_to`."""
    if "://" in path or path.startswith(("/", "file:")):
        return normalize(path)
    return f"{normalize(root).rstrip('/')}/{path}"
