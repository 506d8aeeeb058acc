"""A real PostgreSQL on loopback and a free port, from the binaries that Maven Central carries for tests."""

import contextlib
import os
import platform
import pwd
import shutil
import signal
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2

from tests.services.jars import fetch
from tests.services.processes import free_port, serving

PASSWORD = "pg-secret-not-to-be-shown"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64v8"}


@contextlib.contextmanager
def postgres() -> Iterator[int]:
    """Run the server. Returns its port. User `postgres`, `PASSWORD`, database `postgres`.

    PostgreSQL refuses to run as root: there it runs as `nobody`, in a folder that this user can reach.
    """
    machine = _MACHINES[platform.machine()]
    archive = fetch(f"io.zonky.test.postgres:embedded-postgres-binaries-linux-{machine}:17.11.0")
    folder = Path(tempfile.mkdtemp(prefix="icepuffin-postgres-"))
    who = _other_user() if os.geteuid() == 0 else {}
    try:
        with zipfile.ZipFile(archive) as jar:
            (packed,) = (name for name in jar.namelist() if name.endswith(".txz"))
            with jar.open(packed) as stream, tarfile.open(fileobj=stream, mode="r|xz") as files:
                files.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and newer
                files.extractall(folder)  # noqa: S202  checked by sha256
        (folder / "password").write_text(PASSWORD)
        if who:
            for path in (folder, folder / "password"):
                os.chown(path, who["user"], who["group"])
        init = [f"{folder}/bin/initdb", "-D", f"{folder}/data", "-U", "postgres", "-A", "scram-sha-256"]
        init += [f"--pwfile={folder}/password", "--no-sync", "--locale=C", "-E", "UTF8"]
        done = subprocess.run(init, capture_output=True, text=True, check=False, cwd=folder, **who)
        if done.returncode:
            raise RuntimeError(f"initdb: {done.stdout[-1000:]}{done.stderr[-2000:]}")
        port = free_port()
        command = [f"{folder}/bin/postgres", "-D", f"{folder}/data", "-p", str(port), "-F"]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        # SIGTERM would wait for every client to leave, and processes of its own outlive SIGKILL; SIGQUIT ends them, too
        signals = {"stop": signal.SIGINT, "crash": signal.SIGQUIT}
        with serving(command, lambda: _accepts(port), folder / "log", cwd=folder, **signals, **who):
            yield port
    finally:
        shutil.rmtree(folder)


def _accepts(port: int) -> bool:
    """It listens before it is ready: until then it says that the database system is starting up."""
    with contextlib.suppress(psycopg2.OperationalError):
        psycopg2.connect(host="127.0.0.1", port=port, user="postgres", password=PASSWORD, dbname="postgres").close()
        return True
    return False


def uri(port: int) -> str:
    """For SQLAlchemy."""
    return f"postgresql+psycopg2://postgres:{PASSWORD}@127.0.0.1:{port}/postgres"


def _other_user() -> dict[str, Any]:
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
