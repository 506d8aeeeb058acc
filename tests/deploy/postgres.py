"""A real Postgres on loopback, in a folder of its own, for as long as a test needs it."""

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PASSWORD = "not a secret"


def programs() -> Path | None:
    """Where initdb and postgres are: on PATH, or in Debian's folder of the newest version."""
    found = shutil.which("initdb")
    if found:
        return Path(found).parent
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)


@contextmanager
def postgres(folder: Path) -> Iterator[int]:
    """Run a server with the user `icepuffin`; -> its port. Postgres refuses root: then it is `nobody`'s."""
    found = programs()
    assert found is not None
    owner = "nobody" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data, secret = folder / "data", folder / "password"
    secret.write_text(PASSWORD)
    for made in (folder, secret):
        shutil.chown(made, owner)
    arguments = ["-D", str(data), "-U", "icepuffin", "--pwfile", str(secret), "-A", "scram-sha-256", "--no-sync"]
    subprocess.run([found / "initdb", *arguments], check=True, capture_output=True, user=owner, cwd=folder)
    control = [found / "pg_ctl", "-D", str(data), "-w", "-l", str(folder / "log")]
    options = f"-h 127.0.0.1 -p {port} -k {folder} -F"
    subprocess.run([*control, "-o", options, "start"], check=True, stdout=subprocess.DEVNULL, user=owner, cwd=folder)
    try:
        yield port
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=True, capture_output=True, user=owner, cwd=folder)
