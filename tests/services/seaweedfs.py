"""SeaweedFS on loopback and free ports: S3, table buckets, an Iceberg REST catalog, and what maintains its tables."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.services.glue import catalog_servers
from tests.services.processes import free_port, serving

_KEYS = "test", "testsecret"


@contextlib.contextmanager
def seaweedfs(folder: Path) -> Iterator[dict[str, str]]:
    """Run `weed mini`, with the admin server that maintains tables. Yields settings of a catalog over a table bucket.
    Skips the test where it is not installed.
    """
    weed = catalog_servers().with_name("weed")
    ports = {name: free_port() for name in ("master.port", "volume.port", "filer.port", "s3.port", "admin.port")}
    catalog, s3 = free_port(), ports["s3.port"]
    command = [str(weed), "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-tableBucket=lake"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    command += [f"-s3.port.iceberg={catalog}", "-s3.port.lance=0", "-webdav=false", "-master.telemetry=false"]
    keys = dict(zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), _KEYS, strict=True))
    log = folder / "weed.log"
    with serving(command, lambda: "running and ready" in log.read_text(), log, cwd=folder, env={**os.environ, **keys}):
        yield {
            "type": "rest",
            "uri": f"http://127.0.0.1:{catalog}",
            "oauth2-server-uri": f"http://127.0.0.1:{catalog}/v1/oauth/tokens",
            "warehouse": "s3://lake",
            "credential": ":".join(_KEYS),
            "s3.endpoint": f"http://127.0.0.1:{s3}",
            "s3.access-key-id": _KEYS[0],
            "s3.secret-access-key": _KEYS[1],
            "s3.region": "us-east-1",
            "s3.path-style-access": "true",
        }
