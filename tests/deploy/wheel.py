"""The project's wheel, built from what `deploy/Dockerfile` copies and from nothing else."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

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
            shutil.copytree(REPOSITORY / source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(REPOSITORY / source, target)
    program = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, capture_output=True)
    (wheel,) = (folder / "dist").glob("icepuffin-*.whl")
    return wheel
