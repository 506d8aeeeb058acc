"""What the set-up installs packages with: uv finds them where pip is configured to look."""

import base64
import hashlib
import http.server
import importlib.util
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UV = Path(sys.prefix) / "bin" / "uv"


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of `deploy/packages.py`, which finds its neighbour as a script does."""
    monkeypatch.syspath_prepend(str(DEPLOY))
    spec = importlib.util.spec_from_file_location("packages", DEPLOY / "packages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_packages_of_the_demo_are_complete_and_no_more(packages: ModuleType) -> None:
    chosen = packages.locked(packages.DEMO)
    assert set(chosen.splitlines()) <= set(packages.lock().splitlines())
    names = {canonicalize_name(name) for name in re.findall(r"^([A-Za-z0-9._-]+)(?:\[.*\])?==", chosen, re.MULTILINE)}
    roots = [
        Requirement(line)
        for file in packages.DEMO
        for line in (DEPLOY.parent / "requirements" / f"{file}.in").read_text(encoding="utf-8").splitlines()
    ]
    for name in names:
        roots += [Requirement(line) for line in metadata.requires(name) or ()]
    for requirement in roots:
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            assert canonicalize_name(requirement.name) in names, requirement
    tools = {"pytest", "hypothesis", "ruff", "mypy", "duckdb", "polars", "tantivy", "fastapi", "langchain-core"}
    assert names & (tools | {"s3fs", "obstore"}) == set()


@pytest.fixture
def configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file of pip's that is its whole configuration."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")) or name in {"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "none"))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    return tmp_path / "pip.conf"


def listed_options(packages: ModuleType) -> dict[str, str]:
    options: dict[str, str] = packages.pip_options(packages.output([sys.executable, "-m", "pip", "config", "list"]))
    return options


def test_the_options_are_those_that_pip_takes(
    packages: ModuleType, configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration.write_text(
        "[global]\nindex-url = https://first.example/simple\ntimeout = 7\nretries = 2\nproxy =\n"
        "[install]\ntimeout = 8\ntrusted-host =\n  one.example\n  two.example:8443\n"
        "[download]\nretries = 9\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:it's=secret@second.example/simple")
    options = listed_options(packages)
    options.pop("cert", None)  # of this machine
    assert options.pop("trusted-host").split() == ["one.example", "two.example:8443"]
    assert options == {
        "config-file": str(configuration),
        "index-url": "https://user:it's=secret@second.example/simple",
        "timeout": "8",
        "retries": "2",
    }


def small_wheel(folder: Path) -> str:
    """Write the wheel of a package into a folder; return the line of a lock file that names it."""
    folder.mkdir(parents=True)
    path = folder / "icepuffin_trial-1.0-py3-none-any.whl"
    place = "icepuffin_trial-1.0.dist-info"
    contents = {
        "icepuffin_trial.py": "",
        f"{place}/METADATA": "Metadata-Version: 2.1\nName: icepuffin-trial\nVersion: 1.0\n",
        f"{place}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        name: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()) for name, text in contents.items()
    }
    record = "".join(
        f"{name},sha256={digest.decode().rstrip('=')},{len(contents[name])}\n" for name, digest in digests.items()
    )
    with ZipFile(path, "w") as wheel:
        for name, text in (contents | {f"{place}/RECORD": f"{record}{place}/RECORD,,\n"}).items():
            wheel.writestr(name, text)
    return f"icepuffin-trial==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder over HTTP."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


PLACES: dict[str, Callable[[str, Path], str]] = {
    "index": lambda address, _: f"index-url = {address}/simple",
    "second index": lambda address, _: f"index-url = {address}/empty\nextra-index-url =\n  {address}/simple",
    "folder": lambda address, wheels: f"index-url = {address}/empty\nfind-links =\n  {wheels}\n  {wheels}/none",
    "folder alone": lambda _, wheels: f"index-url = http://127.0.0.1:1\nno-index = true\nfind-links = {wheels}",
}


@pytest.mark.skipif(not UV.exists(), reason="pip has installed the packages here: there is no uv")
@pytest.mark.parametrize("place", PLACES)
def test_uv_finds_packages_where_pip_is_configured_to_look(
    packages: ModuleType, configuration: Path, tmp_path: Path, place: str
) -> None:
    wheels = tmp_path / "wheels" / "simple" / "icepuffin-trial"
    lock = tmp_path / "lock.txt"
    lock.write_text(small_wheel(wheels), encoding="utf-8")
    (tmp_path / "wheels" / "empty" / "icepuffin-trial").mkdir(parents=True)
    with served(tmp_path / "wheels") as address:
        configuration.write_text(f"[global]\n{PLACES[place](address, wheels)}\n", encoding="utf-8")
        options, variables = packages.uv_settings(listed_options(packages), os.environ)
        command = [UV, "pip", "install", *options, "--target", tmp_path / "installed", "--require-hashes", "-r", lock]
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "installed" / "icepuffin_trial.py").exists()


@pytest.mark.parametrize("missing", ["uv.txt", "demo.txt"])
def test_pip_installs_the_packages_out_loud_where_uv_cannot(
    packages: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str], missing: str
) -> None:
    """Where no index has uv, and where uv finds no index that has a package."""
    calls = tmp_path / "calls"
    (tmp_path / "bin").mkdir()
    for program in ("python", "uv"):
        path = tmp_path / "bin" / program
        cannot = f'case "$*" in *{missing}*) [ {program} = python ] && [ {missing} = demo.txt ] || exit 1 ;; esac'
        answer = f'case "$*" in "cache dir"*) echo {tmp_path} ;; esac'
        path.write_text(f'#!/bin/sh\necho "{program} $*" >>{calls}\n{answer}\n{cannot}\n', encoding="utf-8")
        path.chmod(0o755)
    assert packages.install(tmp_path, "demo")
    assert "uv did not install the packages" in capfd.readouterr().err
    *_, locked, project = calls.read_text(encoding="utf-8").splitlines()
    assert locked.startswith("python -m pip ")
    assert locked.endswith(f"--no-deps --require-hashes -r {tmp_path}/demo.txt")
    assert project.startswith("python -m pip ")
    assert project.endswith(f"-e {DEPLOY.parent}")
    assert (tmp_path / "demo.txt").read_text(encoding="utf-8") == packages.locked(packages.DEMO)
