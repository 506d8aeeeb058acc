"""The project's wheel, built from what `deploy/Dockerfile` copies and from nothing else."""

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[2]


def copied_sources() -> list[str]:
    """Paths, relative to the repository, that the image's stages copy from it."""
    dockerfile = (REPOSITORY / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE)
    return [source for line in lines for source in line.split()]


def build_wheel(folder: Path) -> Path:
    """Copy those sources into the empty `folder` and build there; return the wheel's path."""
    for source in copied_sources():
        target = folder / source
        target.parent.mkdir(parents=True, exist_ok=True)
        if (REPOSITORY / source).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / source, target, symlinks=True, ignore=ignored, dirs_exist_ok=True)
        else:
            shutil.copy(REPOSITORY / source, target)
    program = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, capture_output=True)
    (wheel,) = (folder / "dist").glob("icepuffin-*.whl")
    return wheel


def required_distributions(wheel: Path) -> dict[str, metadata.Distribution]:
    """What an installation of the wheel brings along without extras: name -> the distribution installed here."""
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    pending = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    required: dict[str, metadata.Distribution] = {}
    while pending:
        requirement = Requirement(pending.pop())
        name = canonicalize_name(requirement.name)
        if name in required or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        required[name] = metadata.distribution(name)
        pending += required[name].requires or ()
    return required


def install_alone(wheel: Path, folder: Path) -> Path:
    """A new environment with the wheel and what it requires, and nothing else; return its interpreter.

    What is required is linked from this process's environment: nothing is fetched.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    for distribution in required_distributions(wheel).values():
        for top in {path.parts[0] for path in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))))
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index", "--no-deps"]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    return python
