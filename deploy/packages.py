"""Installs locked packages, and the project, into the environment of the Python that runs it: `packages.py demo | all`.

uv does it in a fifth of the time that pip takes. It reads neither pip's files nor its variables: the indexes, proxies
and certificates that pip is configured with are passed on to it. Where it cannot be had or fails, this is printed, and
pip installs the packages.
"""

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import runtime_lock

ROOT = Path(__file__).resolve().parent.parent
DEMO = ("runtime", "dagster", "ui", "spark", "sql", "text")
"""Files of requirements whose packages the demo needs, and what its documents name"""
BUILDER = "setuptools"
"""What builds pyspark, which has no wheel, and the project"""
VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "HTTPS_PROXY",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
    "retries": "UV_HTTP_RETRIES",
}
"""Option of pip -> variable of uv. The address of an index may hold a password, which a command line would show."""


def lock() -> str:
    return (ROOT / "requirements" / "lock.txt").read_text(encoding="utf-8")


def locked(files: Sequence[str]) -> str:
    """The part of the lock that these files of requirements need, and what builds it."""
    packages = runtime_lock.entries(lock())
    roots = [f"-r requirements/{file}.in" for file in files]
    return "".join(packages[name] for name in runtime_lock.needed(packages, [*roots, BUILDER]))


def pip_options(listing: str) -> dict[str, str]:
    """What `pip config list` prints, as `pip install` reads it: the last section that has an option counts."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        key, _, text = line.partition("=")
        section, _, option = key.partition(".")
        if section in sections and (value := ast.literal_eval(text)):
            sections[section][option] = value
    return {option: value for options in sections.values() for option, value in options.items()}


def uv_settings(options: Mapping[str, str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Options and variables that tell uv what these options and this environment tell pip."""
    variables = {VARIABLES[option]: value for option, value in options.items() if option in VARIABLES}
    if indexes := variables.get("UV_INDEX"):  # pip looks for a version in all indexes; the lock says which file it is
        variables |= {"UV_INDEX": " ".join(indexes.split()), "UV_INDEX_STRATEGY": "unsafe-best-match"}
    if links := variables.get("UV_FIND_LINKS"):  # pip warns of a folder that is not there, uv fails
        folders = [folder if ":" in folder else Path(folder).expanduser() for folder in links.split()]
        variables["UV_FIND_LINKS"] = ",".join(str(at) for at in folders if isinstance(at, str) or at.exists())
    if proxy := variables.get("HTTPS_PROXY"):
        variables["HTTP_PROXY"] = proxy
    for bundle in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # pip's library reads them
        if environment.get(bundle):
            variables.setdefault("SSL_CERT_FILE", environment[bundle])
    without_index = options.get("no-index", "").lower() in {"1", "on", "t", "true", "y", "yes"}
    return ["--no-index"] if without_index else [], variables


def succeeds(command: Sequence[str | Path], **variables: str) -> bool:
    """What the command prints is seen."""
    return subprocess.run(command, env=os.environ | variables, check=False).returncode == 0


def output(command: Sequence[str | Path], **variables: str) -> str:
    return subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True, check=True).stdout


def install_by_uv(environment: Path, requirements: Path) -> bool:
    """Whether it could be done."""
    python, uv = environment / "bin" / "python", environment / "bin" / "uv"
    builder = environment / "builder.txt"
    builder.write_text(locked(()), encoding="utf-8")
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    own = ["-r", ROOT / "requirements" / "uv.txt", "-r", builder]
    if not succeeds([*pip, "install", "--quiet", "--no-compile", "--no-deps", "--require-hashes", *own]):
        return False
    options, variables = uv_settings(pip_options(output([*pip, "config", "list"])), os.environ)
    cache = Path(output([uv, "cache", "dir", "--color", "never"], **variables).strip())
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    if there.stat().st_dev != environment.stat().st_dev:  # uv copies then, too, but warns for every file system
        variables["UV_LINK_MODE"] = os.environ.get("UV_LINK_MODE", "copy")
    command = [uv, "pip", "install", *options, "--python", python, "--no-deps", "--no-build-isolation"]
    return succeeds([*command, "--require-hashes", "-r", requirements], **variables) and succeeds(
        [*command, "--reinstall-package", "icepuffin", "-e", ROOT], **variables
    )


def install_by_pip(environment: Path, requirements: Path) -> bool:
    """Python compiles what is imported by itself: to compile every module at once took a third of the time."""
    pip = [environment / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install"]
    return succeeds([*pip, "--no-compile", "--no-deps", "--require-hashes", "-r", requirements]) and succeeds(
        [*pip, "--quiet", "--no-deps", "--no-build-isolation", "-e", ROOT]
    )


def install(environment: Path, name: str) -> bool:
    """Install a set of packages and the project, by uv or else by pip."""
    requirements = environment / f"{name}.txt"
    requirements.write_text(lock() if name == "all" else locked(DEMO), encoding="utf-8")
    if install_by_uv(environment, requirements):
        return True
    sys.stderr.write("==> uv did not install the packages; the lines above say why. pip does, which takes minutes\n")
    return install_by_pip(environment, requirements)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ["DIST_EXTRA_CONFIG"] = str(ROOT / "deploy" / "wheels.cfg")
    if not install(Path(sys.prefix), sys.argv[1]):
        sys.exit("icepuffin: packages could not be installed; the lines above say why")


if __name__ == "__main__":
    main()
