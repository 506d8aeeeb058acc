"""s3proxy: a real S3 server over a local folder, on loopback and a free port."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from icepuffin.ops.model import StorageConfig
from tests.services.jars import S3PROXY, fetch
from tests.services.processes import answers, free_port, java, serving

BUCKET = "lake"


@contextlib.contextmanager
def s3proxy(folder: Path, secret_key: str = "testsecret") -> Iterator[StorageConfig]:  # noqa: S107  of no other server
    """Run the server with one bucket, `lake`, and one key. Raises RuntimeError with its log where it does not start."""
    (folder / "data" / BUCKET).mkdir(parents=True)
    port = free_port()
    conf = folder / "s3proxy.conf"
    conf.write_text(
        f"s3proxy.endpoint=http://127.0.0.1:{port}\n"
        f"s3proxy.authorization=aws-v4\ns3proxy.identity=test\ns3proxy.credential={secret_key}\n"
        f"jclouds.provider=filesystem-nio2\njclouds.filesystem.basedir={folder / 'data'}\n"
    )
    command = [java(), "-Xmx384m", "-jar", str(fetch(S3PROXY)), "--properties", str(conf)]
    with serving(command, lambda: answers(port), folder / "s3proxy.log"):
        yield StorageConfig(
            {
                "s3.endpoint": f"http://127.0.0.1:{port}",
                "s3.access-key-id": "test",
                "s3.secret-access-key": secret_key,
                "s3.region": "us-east-1",
            }
        )
