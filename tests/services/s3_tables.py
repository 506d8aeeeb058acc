"""Amazon S3 Tables on loopback and a free port, as MiniStack serves it: a table bucket and its REST catalog."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.processes import answers, free_port, serving

_SERVER = "ICEPUFFIN_S3_TABLES_SERVER"
"""Environment variable with the program `ministack`, which has an environment of its own"""
_KEYS = {"access-key-id": "test", "secret-access-key": "test"}


@contextlib.contextmanager
def s3_tables(folder: Path) -> Iterator[dict[str, str]]:
    """Run the server. Yields settings of a catalog over a table bucket. Skips the test where it is not installed."""
    program = os.environ.get(_SERVER)
    if program is None:
        pytest.skip(f"{_SERVER} is not set: `make catalogs` sets it")
    import boto3  # type: ignore[import-not-found]  # noqa: PLC0415  of the environment of `make catalogs`

    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "GATEWAY_PORT": str(port), "PYTHONPATH": ""}
    with serving([program], lambda: answers(port), folder / "ministack.log", cwd=folder, env=environment):
        keys = {f"aws_{name.replace('-', '_')}": value for name, value in _KEYS.items()}
        client = boto3.client("s3tables", region_name="us-east-1", endpoint_url=endpoint, **keys)
        yield {
            "type": "rest",
            "uri": f"{endpoint}/iceberg",
            "warehouse": client.create_table_bucket(name="lake")["arn"],
            "rest.sigv4-enabled": "true",
            "rest.signing-name": "s3tables",
            "rest.signing-region": "us-east-1",
            "s3.endpoint": endpoint,
            "s3.region": "us-east-1",
            "s3.path-style-access": "true",
            **{f"{prefix}.{name}": value for name, value in _KEYS.items() for prefix in ("client", "s3")},
        }
