"""An s3fs file system that reads every character of a key literally."""

from typing import Any

import s3fs


class LiteralFileSystem(s3fs.S3FileSystem):  # type: ignore[misc]  # no types
    """s3fs cuts `?versionId=` and what follows off a key; here it is part of the name, as in the store."""

    def split_path(self, path: str) -> tuple[str, str, Any]:
        """(bucket, key, no version)."""
        stripped = self._strip_protocol(path).lstrip("/")
        if "/" not in stripped:
            return stripped, "", None
        bucket, key = self._find_bucket_key(stripped)
        return bucket, key + path[len(path.rstrip("/")) :], None
