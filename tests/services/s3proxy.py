"""s3proxy: a real S3 server over a local folder, on loopback and a free port."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from ops.model import StorageConfig
from tests.services.jars import S3PROXY, fetch

BUCKET = "lake"
_START_SECONDS = 60


@contextlib.contextmanager
def s3proxy(folder: Path) -> Iterator[StorageConfig]:
    """Run the server with one bucket, `lake`. Raises RuntimeError with its log where it does not start."""
    (folder / "data" / BUCKET).mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    conf, log = folder / "s3proxy.conf", folder / "s3proxy.log"
    conf.write_text(
        f"s3proxy.endpoint=http://127.0.0.1:{port}\n"
        "s3proxy.authorization=aws-v4\ns3proxy.identity=test\ns3proxy.credential=testsecret\n"
        f"jclouds.provider=filesystem-nio2\njclouds.filesystem.basedir={folder / 'data'}\n"
    )
    command = ["java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += ["-jar", str(fetch(S3PROXY)), "--properties", str(conf)]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as server:
        try:
            _wait(server, port, log)
            yield StorageConfig(
                {
                    "s3.endpoint": f"http://127.0.0.1:{port}",
                    "s3.access-key-id": "test",
                    "s3.secret-access-key": "testsecret",
                    "s3.region": "us-east-1",
                }
            )
        finally:
            server.terminate()


def _wait(server: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"s3proxy did not start: {log.read_text()[-2000:]}")
